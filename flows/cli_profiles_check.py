"""``coral profiles check`` and ``coral profiles fit``: the performance model against measurements."""

from __future__ import annotations

import typer


def register(profiles: typer.Typer) -> None:
    """Add the commands to the group."""
