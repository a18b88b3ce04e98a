"""A process that ends with its parent, whatever ends that: run as ``python -m flows.tied PARENT MODULE [ARGUMENT ...]``.

``PARENT`` is the parent's process id, or ``-`` for whoever started it. Nothing but the standard library is imported
until the process is tied.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PARENT_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End this process when ``parent`` ends: by the kernel where it can (Linux), and by watching the parent's id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    # The first look also covers a parent that was gone before the signal was asked for.
    threading.Thread(target=watch, daemon=True).start()


def _main(arguments: list[str]) -> None:
    parent, module, *rest = arguments
    die_with_parent(os.getppid() if parent == "-" else int(parent))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
