"""Ctrl-C at a moment of our choosing.

A KeyboardInterrupt may rise anywhere, also inside libraries that turn it into an error of their own (pydantic does while
prefect serializes a task's context). So while a flow runs the signal only sets an event, which the flow looks at
wherever it waits. A second Ctrl-C is not put off.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupt_sets(event: threading.Event, *others: signal.Signals) -> Iterator[None]:
    """Inside the block SIGINT (and each of ``others``) sets ``event``, and raises KeyboardInterrupt only when it is set already.

    In another thread than the main one, where no handler can be installed, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, *others)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
