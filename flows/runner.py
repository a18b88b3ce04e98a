"""Where tasks run: threads of this process, or a Dask scheduler elsewhere whose workers hold the very same code.

Threads are enough on one machine: the numba kernels release the GIL, and worker processes would each pay for the
imports and the compilation. On a scheduler, workers that run other code would write other results under the same
names, so every worker's fingerprint is compared first and a difference refused.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from catalogs.errors import CoralError
from flows.server import LOOPBACK, configured_api_url

if TYPE_CHECKING:
    from prefect_dask import DaskTaskRunner

DISTRIBUTION = "coral-planner"
OUR_PACKAGES = ("catalogs", "dashboards", "flows", "tasks", "warehouse")
# Packages whose version shows in the results: the numbers themselves, or the bytes of the Parquet files.
_RESULT_PACKAGES = ("numba", "numpy", "pyarrow")
_CONNECT_TIMEOUT_S = 10
_SHADOWED = "shadowed"
_MISSING = "missing"


def task_runner(dask_address: str | None, threads: int) -> DaskTaskRunner:
    """A runner on the scheduler at ``dask_address``, or (None) on ``threads`` threads of this process."""
    from prefect_dask import DaskTaskRunner

    # Its loggers report every connection; what matters of it arrives as an exception.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if dask_address is not None:
        return DaskTaskRunner(address=dask_address)
    return DaskTaskRunner(
        cluster_kwargs={
            # Threads and in-process messages. Dask opens two HTTP ports all the same, by default to the outside.
            "processes": False,
            "n_workers": 1,
            "threads_per_worker": threads,
            "dashboard_address": f"{LOOPBACK}:0",
            "worker_dashboard_address": f"{LOOPBACK}:0",
            # Dask would pause or restart a worker by this process' memory, of which tasks are only a part.
            "memory_limit": 0,
            "silence_logs": logging.CRITICAL,
        }
    )


def fingerprint() -> dict[str, str]:
    """What decides this process' results: our version, the hash of our code, Python and the packages that compute."""
    marks = {"python": ".".join(platform.python_version_tuple()[:2]), "code": code_hash()}
    for name in (DISTRIBUTION, *_RESULT_PACKAGES):
        try:
            marks[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            marks[name] = _MISSING
    return marks


@functools.cache
def code_hash(packages: tuple[str, ...] = ("catalogs", "flows", "tasks", "warehouse")) -> str:
    """First 16 hex digits of sha256 over the Python files that decide results, as this process would import them.

    Computed once per process: a worker that outlives an upgrade keeps the hash of the code it has loaded.
    ``shadowed`` or ``missing`` (with the package's name) when a package would come from elsewhere or not at all.
    """
    digest = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None:
            return f"{_MISSING}: {package}"
        folders = spec.submodule_search_locations
        if not folders:
            return f"{_SHADOWED}: {package} by {spec.origin}"
        root = Path(next(iter(folders)))
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def check_scheduler(dask_address: str, lake_root: Path) -> int:
    """Whether the workers behind ``dask_address`` can build for this lake; how many threads they have.

    Raises CoralError when the scheduler cannot be reached or has no workers, when a worker holds other code than this
    process, when it does not see ``lake_root``, or when workers elsewhere could not reach the Prefect API.
    """
    import distributed

    if configured_api_url() is None and not _is_loopback(dask_address):
        raise CoralError(
            f"workers behind {dask_address} cannot reach a Prefect API server of this command, which serves this machine only",
            remedy="set PREFECT_API_URL to a Prefect server that this machine and the workers reach",
        )
    try:
        with distributed.Client(dask_address, timeout=_CONNECT_TIMEOUT_S, set_as_default=False) as client:
            theirs = _ask_workers(client, fingerprint, dask_address)
            refuse_mismatch(fingerprint(), theirs)
            here = lake_root.expanduser().resolve()  # workers run in other working folders
            _refuse_other_lake(_ask_workers(client, _sees_lake, dask_address, str(here)), here)
            return sum(_ask_workers(client, _threads, dask_address).values())
    except (OSError, TimeoutError, ValueError) as error:
        raise CoralError(
            f"no Dask scheduler answers at {dask_address} ({error})",
            remedy="start `dask scheduler` there, or leave --dask-address out to use this machine",
        ) from error


def refuse_mismatch(ours: Mapping[str, str], theirs: Mapping[str, Mapping[str, str]]) -> None:
    """Raise CoralError naming every worker (key of ``theirs``) whose fingerprint differs from ``ours``, and in what."""
    if not theirs:
        raise CoralError("the Dask scheduler has no workers", remedy="start `dask worker` processes on it")
    differing = []
    for worker, marks in sorted(theirs.items()):
        names = [name for name in ours if marks.get(name) != ours[name]]
        if names:
            what = ", ".join(f"{name} {marks.get(name, _MISSING)} (here {ours[name]})" for name in names)
            differing.append(f"{worker}: {what}")
    if differing:
        raise CoralError(
            f"{len(differing)} of {len(theirs)} Dask workers would compute other results: {'; '.join(differing)}",
            remedy="install this coral-planner and the packages of constraints.txt on them, start them with "
            "PYTHONSAFEPATH=1, and restart them",
        )


def _refuse_other_lake(sees: Mapping[str, bool], lake_root: Path) -> None:
    blind = sorted(worker for worker, seen in sees.items() if not seen)
    if blind:
        raise CoralError(
            f"{len(blind)} of {len(sees)} Dask workers do not see the lake {lake_root}: {', '.join(blind)}",
            remedy="keep the lake on a file system that all of them mount at the same path",
        )


def _ask_workers(client: Any, question: Any, dask_address: str, *arguments: str) -> dict[str, Any]:
    """The answer of ``question(*arguments)`` on every worker, by worker address."""
    try:
        return client.run(question, *arguments)
    except (ImportError, AttributeError) as error:
        raise CoralError(
            f"a Dask worker behind {dask_address} has no usable coral-planner ({error})",
            remedy="install coral-planner there and start the worker with PYTHONSAFEPATH=1",
        ) from error


def _threads(dask_worker: Any) -> int:
    return int(dask_worker.state.nthreads)


def _sees_lake(folder: str) -> bool:
    return (Path(folder) / "lake.json").is_file()


def _is_loopback(dask_address: str) -> bool:
    host = urlsplit(dask_address if "://" in dask_address else f"tcp://{dask_address}").hostname
    return host is not None and (host in ("localhost", "::1") or host.startswith("127."))
