"""A PostgreSQL server for tests: on loopback, in a temporary folder, never as root; gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CANARY = "canary-7f3e9a"


@dataclass(frozen=True)
class Postgres:
    """A running server; ``address`` has no password."""

    address: str
    password: str


def _tool(name: str) -> str:
    """Debian keeps the server's tools off the PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = shutil.which(name) or (str(places[0]) if places else None)
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed (apt-get install postgresql)")
    return found


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    pytest.importorskip("duckdb_extension_postgres_scanner", reason="the extension's wheel is for Linux on x86-64")
    initdb, server = _tool("initdb"), _tool("postgres")
    # initdb refuses to run as root.
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="coral-pg-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = None
    try:
        (folder / "password").write_text(CANARY)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody")
        data = str(folder / "data")
        options = ["-D", data, "-U", "coral", "--pwfile", str(folder / "password"), "-A", "scram-sha-256", "--no-sync"]
        subprocess.run([initdb, *options], check=True, capture_output=True, cwd=folder, **user)
        (folder / "password").unlink()
        start = [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(start, cwd=folder, stdout=log, stderr=log, **user)
        _wait_ready(port, process, folder / "log")
        yield Postgres(f"postgres:host=127.0.0.1 port={port} user=coral dbname=postgres", CANARY)
    finally:
        if process is not None:
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    from flows_cases import wait_until

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    assert wait_until(lambda: answers() or process.poll() is not None, 60)
    assert process.poll() is None, log.read_text()
