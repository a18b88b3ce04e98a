"""Fixtures that several tests share: one Prefect API server for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_command_is_stopped() -> Iterator[None]:
    """A command that gave up leaves its tasks' stop set; the next test's jobs, run without a command, must not see it."""
    yield
    for name in ("flows.build_work", "flows.simulate_work"):
        if name in sys.modules:
            sys.modules[name].STOP.clear()


@pytest.fixture(scope="session")
def server_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose slot 0 the session's server holds."""
    return tmp_path_factory.mktemp("server-lake")


@pytest.fixture(scope="session")
def session_api_url(server_lake: Path) -> Iterator[str]:
    """URL of a real Prefect API server of Coral's own kind, started once per session."""
    from flows.server import ApiServer

    with ApiServer(server_lake) as server:
        yield server.wait_ready()


@pytest.fixture
def api_url(session_api_url: str, server_lake: Path) -> Iterator[str]:
    """The session's server, with the environment (and prefect, where imported) pointing to it for one test."""
    from flows.server import client_env, prefect_environment

    with prefect_environment(client_env(session_api_url, server_lake / "prefect" / "slot-0")):
        yield session_api_url


@pytest.fixture(scope="module")
def commands_share_a_server(session_api_url: str, server_lake: Path) -> Iterator[None]:
    """Commands that :mod:`cli_runner` starts use the session's server; one of its own costs each 5 s of processor."""
    import cli_runner

    from flows.server import client_env

    cli_runner.SHARED.update(client_env(session_api_url, server_lake / "prefect" / "slot-0"))
    yield
    cli_runner.SHARED.clear()
