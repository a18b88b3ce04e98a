"""Runs ``coral`` as a user does: a process of its own, in a folder that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# What the fixture `commands_share_a_server` adds to every command's environment.
SHARED: dict[str, str] = {}
OWN_SERVER = {"PREFECT_API_URL": ""}


def coral(
    *args: str | Path, cwd: Path, timeout_s: float = 300, stdin: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished process; stdout and stderr are text. ``variables`` are added to its environment."""
    code = "import sys; from flows.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "100", "CORAL_LAKE": "", **SHARED, **(variables or {})}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        input=stdin,
    )
