"""Start-up of the command line: `python benchmarks/cli_startup.py`. Target: `coral --help` in at most 0.4 s.

Prints the best and the median of ten fresh processes per command, in wall seconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = (("--help",), ("plan", "--help"), ("plans", "show", "--help"))
RUNS = 10


def seconds(args: tuple[str, ...]) -> float:
    """Wall time of one process."""
    started = time.perf_counter()
    subprocess.run([str(Path(sys.executable).with_name("coral")), *args], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    for args in COMMANDS:
        times = sorted(seconds(args) for _ in range(RUNS))
        print(f"coral {' '.join(args):18}  best {times[0]:.2f} s  median {statistics.median(times):.2f} s")


if __name__ == "__main__":
    main()
