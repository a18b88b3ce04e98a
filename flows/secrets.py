"""Secrets: from the environment, or from a Prefect Secret block that the environment names. Nowhere else, never stored.

``NAME`` holds the secret itself; ``NAME_BLOCK`` the name of a Secret block that does. A secret reaches a library through
the environment of this process alone: it is no parameter of a flow, no column of a table and no part of a message.
"""

from __future__ import annotations

import os
from typing import Any

from catalogs.errors import CoralError

BLOCK_SUFFIX = "_BLOCK"
# Read by PostgreSQL's own client library.
CATALOG_PASSWORD = "PGPASSWORD"  # noqa: S105 - the variable's name


def secret(name: str) -> str | None:
    """The secret of that name, or None where neither variable is set. Raises CoralError for a block that is not there.

    Reading a block asks the Prefect server that the environment points to.
    """
    given = os.environ.get(name)
    if given:
        return given
    block = os.environ.get(name + BLOCK_SUFFIX)
    if not block:
        return None
    from prefect.blocks.system import Secret

    try:
        loaded: Any = Secret.load(block)
        value = loaded.get()
    except ValueError as error:
        raise CoralError(
            f"{name}{BLOCK_SUFFIX} names the Prefect block {block!r}, which is not there",
            remedy=f"make a Secret block of that name, or set {name}",
        ) from error
    return value if isinstance(value, str) else str(value)


def load_secrets() -> None:
    """Put secrets that stand in blocks into this process' environment, where the libraries look that need them."""
    value = secret(CATALOG_PASSWORD)
    if value is not None:
        os.environ[CATALOG_PASSWORD] = value
