"""What a build is computed from, and the names that follow: profile keys, profile set, library.

Names are hashes of content, so the same inputs find the same files, whoever computed them and when.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from catalogs.engines import engine_version
from catalogs.ids import short_hash
from catalogs.measured import MeasuredRate
from catalogs.scenario import LoadedScenario
from catalogs.types import Efficiency, Gpu, NodeConfig, Workload
from flows.feeds import load_with_feeds
from flows.runner import code_hash
from flows.settings import BuildSettings
from tasks.profiling.memory import ProfileSettings

# A node of n GPUs has about n legal layouts, at some 0.05 s each for the prefill of 64 layers and half for decode.
_WORK_PER_GPU_S = 0.05


@dataclass(frozen=True)
class WorkloadInputs:
    """One workload of a build. ``sold_sets`` are the node configurations each of the model's regions sells."""

    workload: Workload
    sold_sets: tuple[tuple[str, ...], ...]

    @property
    def workload_id(self) -> str:
        """The workload's id."""
        return self.workload.workload_id


@dataclass(frozen=True)
class ProfileInputs:
    """All that one profile file is computed from: a workload on the configurations of one GPU type.

    A file per GPU type, because a new type must leave those of the others as they are. ``settings`` and ``measured`` hold
    just what concerns the type.
    """

    workload: Workload
    gpu: Gpu
    node_configs: tuple[NodeConfig, ...]
    efficiency: Efficiency | None
    mode: str
    max_stages: int
    settings: ProfileSettings
    measured: tuple[MeasuredRate, ...] = ()

    @functools.cached_property
    def key(self) -> str:
        """Hash of all fields, and of our profiling code."""
        return short_hash({**_plain(asdict(self)), "code": _profiling_code()})

    @property
    def work_s(self) -> float:
        """About the seconds of one core that the file takes."""
        return _WORK_PER_GPU_S * sum(config.gpu_count for config in self.node_configs)


@dataclass(frozen=True)
class BuildInputs:
    """The resolved inputs of a build; ``workloads`` sorted by id. ``library_key`` names whose current library it makes."""

    loaded: LoadedScenario
    workloads: tuple[WorkloadInputs, ...]
    node_configs: tuple[NodeConfig, ...]
    gpus: Mapping[str, Gpu]
    efficiencies: Mapping[str, Efficiency]
    mode: str
    n_max: int
    rho: float
    solver: str
    library_key: str

    def profile_inputs(self, item: WorkloadInputs) -> tuple[ProfileInputs, ...]:
        """What the profile files of a workload are computed from, one per GPU type, by its id."""
        settings, measured = self.settings_of(item), self.measured_of(item)
        found = []
        for gpu, facts in self.gpus.items():
            configs = tuple(config for config in self.node_configs if config.gpu == gpu)
            names = {config.node_config for config in configs}
            own = tuple(factor for factor in settings.calibration if factor[0] == gpu)
            found.append(
                ProfileInputs(
                    workload=item.workload,
                    gpu=facts,
                    node_configs=configs,
                    efficiency=self.efficiencies.get(gpu),
                    mode=self.mode,
                    max_stages=self.n_max,
                    settings=replace(settings, calibration=own),
                    measured=tuple(rate for rate in measured if rate.node_config in names),
                )
            )
        return tuple(found)

    def settings_of(self, item: WorkloadInputs) -> ProfileSettings:
        """Profiling settings of a workload (:func:`profile_settings`)."""
        return profile_settings(self.loaded, item.workload.model.model)

    def measured_of(self, item: WorkloadInputs) -> tuple[MeasuredRate, ...]:
        """Measured rates of a workload, in the file's order."""
        workload = item.workload
        return tuple(r for r in self.loaded.measured if (r.model, r.phase) == (workload.model.model, workload.phase))

    def library_id(self, profile_set_id: str, solver_version: str) -> str:
        """Id of the library these inputs and profiles lead to. What regions sell whole decides which combinations exist."""
        return short_hash(
            {
                "profile_set_id": profile_set_id,
                "n_max": self.n_max,
                "rho": self.rho,
                "mode": self.mode,
                "solver_version": solver_version,
                "configurations": {item.workload_id: item.sold_sets for item in self.workloads},
            }
        )


def resolve_inputs(settings: BuildSettings, loaded: LoadedScenario | None = None) -> BuildInputs:
    """Load the scenario (unless given) and resolve what its library is computed from. Raises the catalogs' errors."""
    loaded = load_with_feeds(settings.scenario, settings.lake_root) if loaded is None else loaded
    library = loaded.scenario.library
    mode = settings.mode or library.mode
    configs = tuple(sorted(loaded.node_configs.values(), key=lambda config: config.node_config))
    names = {config.gpu for config in configs}
    return BuildInputs(
        loaded=loaded,
        workloads=_workloads(loaded),
        node_configs=configs,
        gpus={name: loaded.catalog.gpus[name] for name in sorted(names)},
        efficiencies={name: factors for name, factors in sorted(loaded.catalog.efficiencies.items()) if name in names},
        mode=mode,
        n_max=library.n_max,
        rho=library.rho,
        solver=settings.solver,
        library_key=library_key(loaded, mode),
    )


def profile_settings(loaded: LoadedScenario, model: str) -> ProfileSettings:
    """Profiling settings of a model: the engine's, with the de-ratings that benchmarks of the model gave."""
    own = [c for c in loaded.calibrations if c.model == model]
    engine = engine_version(loaded.scenario.engine.name, loaded.scenario.engine.version)
    return ProfileSettings.of_engine(engine, calibration=tuple((c.gpu, c.phase.value, c.derate) for c in own))


def library_key(loaded: LoadedScenario, mode: str | None = None) -> str:
    """Whose current library a build makes: the scenario's own, or that of the scenario in another mode."""
    scenario = loaded.scenario
    return scenario.id if mode in (None, scenario.library.mode) else f"{scenario.id}@{mode}"


def _workloads(loaded: LoadedScenario) -> tuple[WorkloadInputs, ...]:
    """Each distinct workload once, with what the regions of all models that use it sell."""
    by_id = {workload.workload_id: workload for workload in loaded.workloads}
    regions: dict[str, set[str]] = {workload_id: set() for workload_id in by_id}
    for demand in loaded.model_demands:
        for workload_id in demand.workload_ids:
            regions[workload_id].update(demand.regions)
    items = []
    for workload_id, workload in sorted(by_id.items()):
        sold = {frozenset(loaded.sold_sets.get(region, ())) for region in regions[workload_id]}
        # A region that sells part of what another one sells adds no combination, so it must not change the library's id.
        largest = [tuple(sorted(some)) for some in sold if some and not any(some < other for other in sold)]
        items.append(WorkloadInputs(workload, tuple(sorted(largest))))
    return tuple(items)


@functools.cache
def _profiling_code() -> str:
    return code_hash(("tasks.profiling",))


def _plain(value: Any) -> Any:
    """``value`` as JSON knows it; dates as text."""
    return json.loads(json.dumps(value, default=str, allow_nan=False))
