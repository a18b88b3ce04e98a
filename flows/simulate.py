"""``coral simulate``: decide what there is to run, and start a Prefect server and a flow only for several runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError
from flows.settings import Progress, SilentProgress, progress_stage
from flows.simulate_inputs import SimulateInputs, SimulateSettings, resolve

if TYPE_CHECKING:
    from flows.simulate_work import Run

STAGE = "simulate"


def run_simulation(settings: SimulateSettings, progress: Progress | None = None) -> dict[str, Any]:
    """The document of all streams and seeds (see :func:`flows.simulate_work.document`); runs that are done are not run again.
    Of a lake that may only be read they are kept for the call alone.

    Raises what :func:`flows.simulate_inputs.resolve` raises, what the tasks raise, and CoralError for workers elsewhere, which
    have only the lake to write to, where it may only be read.
    """
    from flows import simulate_work as work
    from warehouse.results import can_keep

    progress = progress or SilentProgress()
    with progress_stage(progress, "read plan and traces"):
        inputs = resolve(settings)
    for note in inputs.notes:
        progress.message(note)
    runs = work.runs_of(inputs, settings.seeds)
    if can_keep(settings.lake_root):
        return _run(settings, inputs, runs, progress)
    if settings.dask_address is not None:
        raise CoralError(
            f"{settings.lake_root} may only be read, and workers elsewhere leave their results there",
            remedy="simulate without --dask-address, or let this user write to the lake",
        )
    progress.message(f"{settings.lake_root} may only be read: what is simulated is not kept")
    with tempfile.TemporaryDirectory() as folder:
        work.copy_results(settings.lake_root, Path(folder), runs)
        return _run(replace(settings, lake_root=Path(folder)), inputs, runs, progress)


def _run(settings: SimulateSettings, inputs: SimulateInputs, runs: Sequence[Run], progress: Progress) -> dict[str, Any]:
    """The document, with what is missing of ``runs`` done first and kept in the settings' folder."""
    from flows import simulate_work as work

    todo = work.missing_runs(settings.lake_root, runs)
    if len(todo) == 1 and settings.dask_address is None:
        with progress_stage(progress, STAGE):
            work.run_job(work.SimulateJob(settings.lake_root, inputs, tuple(todo)))
    elif todo:
        _run_flow(settings, inputs, todo, len(runs) - len(todo), progress)
    return work.document(settings.lake_root, inputs, runs)


def _run_flow(
    settings: SimulateSettings, inputs: SimulateInputs, todo: list[Any], done: int, progress: Progress
) -> None:
    from flows.runner import check_scheduler
    from flows.server import api_server

    if settings.dask_address is not None:
        with progress_stage(progress, "check workers"):
            threads = check_scheduler(settings.dask_address, settings.lake_root)
            settings = replace(settings, threads=threads)
    progress.start("start server", 1)
    with api_server(settings.lake_root, preload=_import_flow):
        progress.advance("start server", 1)
        progress.finish("start server")
        from flows.simulate_flow import run_simulate_flow

        run_simulate_flow(settings, inputs, todo, done, progress)


def _import_flow() -> None:
    import flows.simulate_flow  # noqa: F401 - imported for its time, while the server starts


def check_report_path(out: Path) -> None:
    """Raise CoralError where a report cannot be written to ``out``: better before minutes of work than after."""
    if not out.resolve().parent.is_dir():
        raise CoralError(f"{out.parent} is not a folder", remedy="name the report in a folder that exists")
    if out.is_dir():
        raise CoralError(f"{out} is a folder", remedy="name a file for the report, such as simulation.html")


def write_report(document: dict[str, Any], out: Path) -> None:
    """The static HTML report of a simulation, drawn by the dashboards in a process of their own."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "simulation.json"
        source.write_text(json.dumps(document))
        command = [sys.executable, "-P", "-m", "dashboards.simulation_report", str(source), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the report was not drawn:\n{done.stderr}")
