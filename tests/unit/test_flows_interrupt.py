"""Ctrl-C is put off while a flow runs, once."""

from __future__ import annotations

import signal
import threading

import pytest

from flows.interrupt import interrupt_sets


def test_the_first_ctrl_c_sets_the_event_and_the_second_interrupts() -> None:
    event, before = threading.Event(), signal.getsignal(signal.SIGINT)
    with interrupt_sets(event):
        signal.raise_signal(signal.SIGINT)
        assert event.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_the_handler_alone() -> None:
    seen = []

    def run() -> None:
        with interrupt_sets(threading.Event()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
