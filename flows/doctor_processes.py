"""Does what should run, run; and does anything run that should not? Prefect servers, `coral serve`, and leftovers."""

from __future__ import annotations

import importlib.metadata
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from flows.doctor import Check, Status
from flows.server import configured_api_url
from flows.serving import serving

_AREA = "server"
_TIMEOUT_S = 5.0
# Modules of ours that are children of a command, and end with it.
_CHILDREN = ("flows.server", "flows.tied")


def server_checks(lake_root: Path) -> Iterator[Check]:
    """The Prefect server that commands use, and the `coral serve` of this lake."""
    url = configured_api_url()
    if url is None:
        yield Check(_AREA, "prefect", Status.OK, "PREFECT_API_URL is not set: each command has a server of its own")
    else:
        yield _answers("prefect", url, "start it (`prefect server start`), or unset PREFECT_API_URL")
    now = serving(lake_root)
    if now is None:
        yield Check(
            _AREA, "schedule", Status.NOTE, "no `coral serve` runs for this lake", "`coral serve` plans on time"
        )
        return
    yield _answers("schedule", now.url, f"see {now.home / 'server.log'}; end process {now.pid} and serve again")
    if not psutil.pid_exists(now.worker_pid):
        remedy = f"it is started again by itself; if not, see {now.home / 'worker.log'}"
        yield Check(_AREA, "worker", Status.WARNING, "the worker of `coral serve` does not run just now", remedy)
    else:
        yield Check(_AREA, "worker", Status.OK, f"process {now.worker_pid} of `coral serve`, process {now.pid}")


def _answers(name: str, url: str, remedy: str) -> Check:
    """Whether a Prefect API answers at ``url``, and of which version it is."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/admin/version", timeout=_TIMEOUT_S) as answer:  # noqa: S310
            version = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Check(_AREA, name, Status.OK, f"a server answers at {url}, and lets nobody in without a key")
        return Check(_AREA, name, Status.FAILED, f"{url} answers with HTTP {error.code}: no Prefect API", remedy)
    except (OSError, ValueError) as error:
        return Check(_AREA, name, Status.FAILED, f"no Prefect server answers at {url} ({error})", remedy)
    ours = importlib.metadata.version("prefect")
    if version != ours:
        text = f"Prefect {version} at {url}, here {ours}"
        return Check(_AREA, name, Status.WARNING, text, "run the same version on both sides")
    return Check(_AREA, name, Status.OK, f"Prefect {version} at {url}")


def process_checks() -> Iterator[Check]:
    """Processes of ours that outlived what they belong to."""
    left = leftovers()
    if left:
        named = ", ".join(f"{process.pid} ({' '.join(module)})" for process, module in left)
        remedy = f"end them: kill {' '.join(str(process.pid) for process, _ in left)}"
        yield Check("processes", "leftovers", Status.WARNING, f"processes whose command has ended: {named}", remedy)
    else:
        yield Check("processes", "leftovers", Status.OK, "no process of an ended command is left")


def leftovers() -> list[tuple[psutil.Process, Sequence[str]]]:
    """Children of ended commands, as (process, module and its arguments): whose parent is not the one they were tied to."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            module = next((name for name in _CHILDREN if name in words), None)
            if module is None:
                continue
            rest = words[words.index(module) :]
            # "-" stands for whoever started it, which is not known afterwards.
            if len(rest) > 1 and rest[1].isdigit() and process.ppid() != int(rest[1]):
                found.append((process, rest))
        except psutil.Error:
            continue  # it has ended, or is another user's
    return found
