"""Five times kill -9 at random moments, of the command or of one of two worker processes over TCP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flows_cases import write_scenario

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_random_kills_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """The script ends with 1 and says what it saw when a re-run fails, the library is another one, a finished file was
    written again, or a process or a temporary file is left. The seed fixes who is killed; when, the machine decides too."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    command = [sys.executable, str(SCRIPT), "--kills", "5", "--seed", "3", "--scenario", str(write_scenario(tmp_path))]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = re.search(r"^5 kills \((\d) of the command, (\d) of workers\) in \d+ runs", done.stdout, re.MULTILINE)
    assert told, done.stdout
    assert min(int(told[1]), int(told[2])) >= 1
