"""Ctrl-C at a moment of our choosing.

A KeyboardInterrupt may rise anywhere, also inside libraries that turn it into an error of their own (pydantic does while
prefect serializes a task's context). So while a flow runs the signal only sets an event, which the flow looks at
wherever it waits. A second Ctrl-C is not put off. Elsewhere it rises as ever, and what a library makes of it is told from a
bug by :func:`was_interrupted`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SEEN = threading.Event()


def was_interrupted() -> bool:
    """Whether Ctrl-C rose since :func:`notice_interrupts`, whatever became of it. One that was put off cuts nothing short: what
    fails after it is a bug."""
    return _SEEN.is_set()


def notice_interrupts() -> None:
    """From here on Ctrl-C is remembered when it rises: an import that it cuts short fails later, in words of its own."""
    _SEEN.clear()
    is_usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _rise)
    if is_usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _rise)


def _rise(signum: int, frame: FrameType | None) -> None:
    _SEEN.set()
    raise KeyboardInterrupt


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
            _SEEN.set()
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, *others)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
