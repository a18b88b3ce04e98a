"""Ctrl-C is put off while a flow runs, once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from flows import cli
from flows.interrupt import interrupt_sets


@pytest.fixture(autouse=True)
def ctrl_c_rises() -> Iterator[None]:
    """Python's own handler: a job in the background of a script inherits that SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_what_a_library_makes_of_ctrl_c_is_no_bug(
    is_interrupted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An import that is cut short and tried again fails in words of its own: pandas does when pyarrow looks for it."""

    def half_import(**_: object) -> None:
        if is_interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise AttributeError("partially initialized module 'pandas'")

    monkeypatch.setattr(sys, "argv", ["coral", "plan"])
    monkeypatch.setattr(cli, "app", half_import)
    if not is_interrupted:
        with pytest.raises(AttributeError):
            cli.main()
        return
    assert cli.main() == 130
    assert "interrupted: what was published is untouched" in capsys.readouterr().err


def test_a_bug_after_a_ctrl_c_that_was_put_off_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends with the best plan so far, and the check of that plan fails."""

    def fails(**_: object) -> None:
        with interrupt_sets(threading.Event()):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("the solver's answer fails the independent check")

    monkeypatch.setattr(sys, "argv", ["coral", "plan"])
    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(RuntimeError, match="independent check"):
        cli.main()
