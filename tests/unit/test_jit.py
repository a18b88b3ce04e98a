"""Machine code that is kept must be of the source as it is, also of the kernels that it calls from other files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLED = """from tasks.jit import kernel

@kernel
def value():
    return {value}
"""
CALLING = """from called import value
from tasks.jit import kernel

@kernel
def twice():
    return 2 * value()
"""
LAST = """from calling import twice
from tasks.jit import kernel

@kernel
def more():
    return twice() + 1

print(more(), more.stats.cache_hits[()] if () in more.stats.cache_hits else 0)
"""


def run(folder: Path, **more: str) -> list[str]:
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    env = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache"), **more}
    done = subprocess.run([sys.executable, "-P", "-m", "last"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_change_of_what_a_kernel_calls_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text(CALLED.format(value=1))
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "last.py").write_text(LAST)
    assert run(tmp_path) == ["3", "0"]
    assert run(tmp_path) == ["3", "1"]  # what is kept is used
    (tmp_path / "called.py").write_text(CALLED.format(value=100))
    assert run(tmp_path) == ["201", "0"]


def test_without_compiling_the_answer_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text(CALLED.format(value=1))
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "last.py").write_text(
        LAST.replace("more.stats.cache_hits[()] if () in more.stats.cache_hits else 0", "0")
    )
    assert run(tmp_path, NUMBA_DISABLE_JIT="1") == ["3", "0"]
