"""How a plan moves with the factors under it, and what it costs to have planned with wrong ones.

Libraries are solved in memory and small (at most ``n_max`` nodes per template), so that a study of dozens of them takes a
minute or two; nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalogs.errors import CoralError, NothingFitsError
from catalogs.ids import split_node_config
from flows.build_inputs import BuildInputs, WorkloadInputs, resolve_inputs
from flows.build_work import node_counts
from flows.planning_inputs import check_demand_known, problem_of
from flows.settings import BuildSettings, Progress
from tasks.allocation.regret import repaired_cost_usd_per_h
from tasks.allocation.safety import safe_rates
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus
from tasks.profiling.measured import with_measured
from tasks.profiling.perturb import Inputs, drawn_speed, factor_names, perturbed, template_rates
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import ModelShape
from tasks.templates.frontier import frontier_mask
from tasks.templates.shards import LibraryLimits, plan_shards, solve_shards

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario

LIMITS = SolveLimits(gap=1e-4, time_s=20.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan in short: rent, and nodes by GPU; ``cost_usd_per_h`` None = demand is not met, ``note`` says why."""

    cost_usd_per_h: float | None
    gpus: Mapping[str, int]
    note: str = ""


@dataclass(frozen=True, slots=True)
class FactorRow:
    """A factor and the plans with it worse and better."""

    factor: str
    worse: Outcome
    better: Outcome


@dataclass(frozen=True, slots=True)
class RegretRow:
    """Plans made with believed rates at a safety percentile (None = as expected), where rates turn out otherwise.

    ``cost_usd_per_h`` as planned; shares and means over the draws. Regret = cost of the plan made good (nodes added where
    demand is short, given back where they are not needed) over that of the best plan, less 1.
    """

    safety_percentile: float | None
    cost_usd_per_h: float
    draws: int
    share_met: float
    worst_met_share: float
    regret_mean: float
    regret_p90: float
    regret_max: float


@dataclass(frozen=True)
class Library:
    """Templates (TEMPLATE_SCHEMA) and the largest relative error per GPU, by workload id."""

    templates: Mapping[str, pa.Table]
    rel_error: Mapping[str, Mapping[str, float]]


class Study:
    """Plans of one scenario under changed factors."""

    def __init__(self, loaded: LoadedScenario, n_max: int) -> None:
        check_demand_known(loaded)
        self.loaded, self.n_max = loaded, min(n_max, loaded.scenario.library.n_max)
        self.inputs: BuildInputs = resolve_inputs(BuildSettings(loaded.path, Path()), loaded)
        self.base = {item.workload_id: self.inputs_of(item) for item in self.inputs.workloads}

    def inputs_of(self, item: WorkloadInputs) -> Inputs:
        """Factors and settings of a workload as the scenario has them."""
        return Inputs(self.inputs.efficiencies, self.inputs.settings_of(item))

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs on offer that have factors."""
        return tuple(gpu for gpu in self.inputs.gpus if gpu in self.inputs.efficiencies)

    def library(self, factor: str = "", ratio: float = 1.0) -> Library:
        """Templates with one factor changed. Raises NothingFitsError where a workload has none."""
        templates, errors = {}, {}
        for item in self.inputs.workloads:
            base = self.base[item.workload_id]
            found = base if not factor else perturbed(base, factor, ratio)
            profiles = self.profile(item, found)
            templates[item.workload_id] = self.solved(item, profiles)
            errors[item.workload_id] = _errors(profiles)
        return Library(templates, errors)

    def profile(self, item: WorkloadInputs, found: Inputs) -> pa.Table:
        """Rates of every configuration."""
        inputs = self.inputs
        table = profile_workload(
            item.workload,
            inputs.node_configs,
            inputs.gpus,
            found.efficiencies,
            found.settings,
            inputs.mode,
            self.n_max,
        )
        measured = inputs.measured_of(item)
        return with_measured(table, measured, item.workload, found.settings, inputs.mode, self.n_max)

    def solved(self, item: WorkloadInputs, profiles: pa.Table) -> pa.Table:
        """All templates of a workload."""
        workload, inputs = item.workload, self.inputs
        shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
        shards = plan_shards(
            profiles,
            layers=workload.model.layers,
            weight_bytes=int(shape.weight_bytes),
            memory_gib={config.node_config: config.memory_gib for config in inputs.node_configs},
            sold_sets=item.sold_sets,
            limits=LibraryLimits(self.n_max, inputs.rho, inputs.mode, "exact"),
            what=workload.alias,
        )
        return pa.concat_tables(solve_shards(shards, profiles))

    def problem(self, templates: Mapping[str, pa.Table]) -> AllocationProblem:
        """The online problem over the frontiers of these templates; nothing runs yet."""
        return problem_of(self.loaded, {name: _frontier(table) for name, table in templates.items()}, {})

    def plan(self, templates: Mapping[str, pa.Table]) -> tuple[AllocationProblem, AllocationResult]:
        """The best plan over these templates."""
        from tasks.allocation.covers.solver import solve_covers

        problem = self.problem(templates)
        return problem, solve_covers(problem, LIMITS)

    def outcome(self, factor: str = "", ratio: float = 1.0) -> Outcome:
        """The plan with one factor changed, in short."""
        try:
            problem, result = self.plan(self.library(factor, ratio).templates)
        except NothingFitsError as error:
            return Outcome(None, {}, str(error))
        if result.status not in _PLANNED:
            return Outcome(None, {}, result.status.value)
        return Outcome(result.cost_usd_per_h, _gpus(problem, result))


_PLANNED = (SolveStatus.OPTIMAL, SolveStatus.GAP, SolveStatus.TIME_LIMIT)


def factor_study(
    study: Study, change: float, progress: Progress, factors: Sequence[str] = ()
) -> tuple[Outcome, list[FactorRow]]:
    """The plan as it is, and with each factor ``change`` (a share) worse and better. Rows in the order of the factors."""
    names = tuple(factors) or factor_names(study.gpus)
    progress.start("factors", 2 * len(names) + 1)
    base = study.outcome()
    progress.advance("factors", 1)
    rows = []
    for name in names:
        rows.append(FactorRow(name, study.outcome(name, 1 - change), study.outcome(name, 1 + change)))
        progress.advance("factors", 2)
    progress.finish("factors")
    return base, rows


def regret_study(
    study: Study, draws: int, seed: int, progress: Progress, percentiles: Sequence[float | None] = (None, 90.0)
) -> list[RegretRow]:
    """Plans made with the believed rates, at each safety percentile, where true speeds are drawn ``draws`` times from the
    errors of the rates: one normal per GPU and phase, the same draws for every percentile. Raises CoralError where there
    is no plan to regret."""
    library = study.library()
    phase_of = {item.workload_id: item.workload.phase.value for item in study.inputs.workloads}
    plans = []
    for percentile in percentiles:
        problem, result = study.plan(_safe(library.templates, percentile))
        if result.status not in _PLANNED:
            raise CoralError(f"there is no plan to regret ({result.status.value})", remedy="loosen demand or supply")
        plans.append((percentile, problem, result))
    rng = np.random.default_rng(seed)
    met: dict[float | None, list[float]] = {percentile: [] for percentile in percentiles}
    regret: dict[float | None, list[float]] = {percentile: [] for percentile in percentiles}
    progress.start("regret", draws)
    for _ in range(draws):
        z = {(gpu, phase): float(rng.standard_normal()) for gpu in study.gpus for phase in ("prefill", "decode")}
        truth = {
            name: _true(table, library.rel_error[name], z, phase_of[name]) for name, table in library.templates.items()
        }
        _, best = study.plan(truth)
        rates = {
            i: r
            for t in truth.values()
            for i, r in zip(t["template_id"].to_pylist(), t["throughput_mtok_per_s"].to_pylist(), strict=True)
        }
        everything = problem_of(study.loaded, truth, {})
        for percentile, _, result in plans:
            share, cost = repaired_cost_usd_per_h(everything, result.instances, rates)
            met[percentile].append(share)
            regret[percentile].append(cost / best.cost_usd_per_h - 1)
        progress.advance("regret", 1)
    progress.finish("regret")
    return [_regret_row(percentile, result, met[percentile], regret[percentile]) for percentile, _, result in plans]


def _regret_row(percentile: float | None, result: AllocationResult, met: list[float], regret: list[float]) -> RegretRow:
    return RegretRow(
        safety_percentile=percentile,
        cost_usd_per_h=result.cost_usd_per_h,
        draws=len(met),
        share_met=float(np.mean(np.array(met) >= 1 - 1e-9)),
        worst_met_share=min(met),
        regret_mean=float(np.mean(regret)),
        regret_p90=float(np.percentile(regret, 90)),
        regret_max=max(regret),
    )


def _errors(profiles: pa.Table) -> dict[str, float]:
    """The largest relative error of a GPU's rates."""
    rated = profiles.filter(pc.is_valid(profiles["throughput_tok_per_s"]))
    worst: dict[str, float] = {}
    for config, error in zip(rated["node_config"].to_pylist(), rated["rel_error"].to_pylist(), strict=True):
        gpu = split_node_config(config)[0]
        worst[gpu] = max(worst.get(gpu, 0.0), error)
    return worst


def _frontier(templates: pa.Table) -> pa.Table:
    _, counts = node_counts(templates)
    return templates.filter(pa.array(frontier_mask(counts, templates["throughput_mtok_per_s"].to_numpy())))


def _with_rates(templates: pa.Table, rates: Iterable[int]) -> pa.Table:
    place = templates.column_names.index("throughput_mtok_per_s")
    return templates.set_column(place, templates.schema.field(place), pa.array(rates, pa.int64()))


def _safe(templates: Mapping[str, pa.Table], percentile: float | None) -> dict[str, pa.Table]:
    if percentile is None:
        return dict(templates)
    return {
        name: _with_rates(
            table, safe_rates(table["throughput_mtok_per_s"].to_numpy(), table["rel_error"].to_numpy(), percentile)
        )
        for name, table in templates.items()
    }


def _true(table: pa.Table, errors: Mapping[str, float], z: Mapping[tuple[str, str], float], phase: str) -> pa.Table:
    speeds = {gpu: drawn_speed(error, z[gpu, phase]) for gpu, error in errors.items()}
    return _with_rates(table, template_rates(table, speeds))


def _gpus(problem: AllocationProblem, result: AllocationResult) -> dict[str, int]:
    """Nodes rented by GPU, counted in GPUs."""
    counts: Counter[str] = Counter()
    index = {t: (c, i) for c in problem.candidates for i, t in enumerate(c.template_ids)}
    for row in result.instances:
        candidates, i = index[row.template_id]
        for k in np.flatnonzero(candidates.counts[i]):
            gpu, size = split_node_config(problem.node_configs[k])
            counts[gpu] += row.instances * int(candidates.counts[i, k]) * size
    return dict(sorted(counts.items()))
