"""Why a plan looks as it does: what more supply is worth, what each choice and each rule costs.

Everything is a cost range [low, high] of the changed problem: ``high`` is a plan that was found, ``low`` a valid bound.
Cheap ranges come first, for everything: bounds at the duals of the present plan, which stay valid for any problem over the
same supply, and plans that change one model alone. What is still apart is then solved anew while time is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers.generation import generate, joint_bound
from tasks.allocation.covers.master import Duals
from tasks.allocation.covers.pricing import Grid, ModelBlocks, model_blocks
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.shortfalls import used_nodes
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, SolveLimits, SolveStatus
from tasks.allocation.without import alone, apart, forbidding, in_one_region, is_plan, with_nodes

_GAP = 1e-5
_TOP = 5  # supplies that are solved with a node more and less
_LEAST_S = 0.3  # less time than this is not worth a solve
_QUICK_SHARE = 0.5  # of the time, at most, for the cheap ranges
_GRID = 16_384
_MANY_REGIONS, _GRID_MANY = 3, 4_096
_SAME = 1e-6  # relative: two costs this close are one


@dataclass(frozen=True, slots=True)
class Range:
    """A least cost, USD/h, that lies in [low, high]. ``high`` None: no plan is known; ``is_impossible``: proven that there
    is none."""

    low: float
    high: float | None
    is_impossible: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left open: both ends are one, or there is proven to be no plan."""
        return self.is_impossible or (self.high is not None and self.high - self.low <= _SAME * max(1.0, self.high))

    def within(self, other: Range) -> Range:
        """What both say."""
        if self.is_impossible or other.is_impossible:
            return Range(max(self.low, other.low), None, True)
        highs = [r.high for r in (self, other) if r.high is not None]
        high = min(highs, default=None)
        low = max(self.low, other.low)
        return Range(low if high is None else min(low, high), high)


@dataclass(frozen=True, slots=True)
class SupplyPrice:
    """What a node of a (region, configuration) is worth: ``dual_usd_per_h`` of the LP; cost with one ``more`` and one
    ``fewer`` (None = not among the dearest, or there is none to take)."""

    region: str
    node_config: str
    nodes: int
    used: int
    dual_usd_per_h: float
    more: Range | None
    fewer: Range | None


@dataclass(frozen=True, slots=True)
class WithoutTemplate:
    """Cost where a (region, template) of the plan may not be used; ``instead`` is what its workload runs then."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    cost: Range
    instead: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class NextBest:
    """Cost where a model uses none of the templates it uses now where it uses them; ``instances`` are those it runs then."""

    model: str
    cost: Range
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Cost with a rule turned the other way. ``is_on``: the plan keeps the rule, the cost is without it; else with it."""

    rule: str
    is_on: bool
    cost: Range


@dataclass(frozen=True, slots=True)
class Why:
    """All of it. ``cost`` is what the ranges compare to (rent, and start-up charges where ``has_start_up``), ``bound`` the
    plan's; ``open_ends`` counts ranges that time did not allow to close."""

    cost_usd_per_h: float
    bound_usd_per_h: float
    has_start_up: bool
    supply: tuple[SupplyPrice, ...]
    templates: tuple[WithoutTemplate, ...]
    models: tuple[NextBest, ...]
    rules: tuple[RuleCost, ...]
    open_ends: int
    solves: int
    spent_s: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the problem with it turned the other way. ``is_on``: see :class:`RuleCost`."""

    rule: str
    is_on: bool
    problem: AllocationProblem


StandIns = Callable[[AllocationProblem, Mapping[str, frozenset[str]]], AllocationProblem]
"""The problem with what a frontier left out because of templates (by workload id) that are about to be forbidden."""


@dataclass(slots=True)
class _Case:
    """A changed problem. ``model``: the only model that changes; ``known``: what is known of its cost."""

    problem: AllocationProblem
    known: Range
    model: str | None = None
    instances: tuple[Instance, ...] = field(default=())


def rules_of(problem: AllocationProblem) -> list[Rule]:
    """The rules that are part of the problem itself: headroom, co-location, least regions."""
    rules = []
    if any(c.headroom < 1 for c in problem.candidates):
        whole = tuple(replace(c, headroom=1.0) for c in problem.candidates)
        rules.append(Rule("headroom", True, replace(problem, candidates=whole)))
    if any(len(d.workload_ids) > 1 and len(d.regions) > 1 for d in problem.demands):
        rules.append(Rule("co-location", True, apart(problem)))
    if any(d.min_regions > 1 for d in problem.demands):
        rules.append(Rule("min_regions", True, in_one_region(problem)))
    return rules


def explain(
    problem: AllocationProblem,
    result: AllocationResult,
    *,
    rules: Sequence[Rule] = (),
    stand_ins: StandIns = lambda problem, _: problem,
    time_s: float = 8.0,
) -> Why:
    """Explain ``result``, a plan that meets all demand of ``problem``, in about ``time_s`` seconds.

    ``rules`` are explained beside those of :func:`rules_of`. Raises ValueError for a result that is no such plan.
    """
    if not is_plan(result):
        raise ValueError(f"a result with status {result.status} and theta {result.theta} is not explained")
    return _Explainer(problem, result, stand_ins, time_s).run(rules)


class _Explainer:
    def __init__(
        self, problem: AllocationProblem, result: AllocationResult, stand_ins: StandIns, time_s: float
    ) -> None:
        self._problem, self._result, self._stand_ins = problem, result, stand_ins
        self._start, self._time_s = time.perf_counter(), time_s
        self._cost, self._bound = result.objective_usd, result.lower_bound_usd
        self._solves = 0
        self._duals, self._parts = self._base_duals()

    def run(self, rules: Sequence[Rule]) -> Why:
        supply = self._supply_cases()
        by_rule = [(rule, self._rule_case(rule)) for rule in (*rules_of(self._problem), *rules)]
        by_model = [(d.model, self._model_case(d.model)) for d in self._problem.demands if d.planned_req_per_s > 0]
        by_template = [(row, self._template_case(row)) for row in self._result.instances]
        local = [case for _, case in (*by_model, *by_template)]
        for case in (*(case for _, case in by_rule), *local):
            if self._left() > self._time_s * (1 - _QUICK_SHARE):
                self._bound_case(case)
        for case in local:
            if self._left() > self._time_s * (1 - _QUICK_SHARE):
                self._try_alone(case)
        cases = [case for pair in supply.values() for case in pair if case is not None]
        cases += [case for _, case in by_rule] + local
        self._close([case for case in cases if not case.known.is_exact])
        return Why(
            cost_usd_per_h=self._cost,
            bound_usd_per_h=self._bound,
            has_start_up=self._problem.init_share > 0,
            supply=self._supply_rows(supply),
            templates=tuple(
                WithoutTemplate(
                    row.region,
                    row.template_id,
                    row.workload_id,
                    row.instances,
                    case.known,
                    tuple(i for i in case.instances if i.workload_id == row.workload_id),
                )
                for row, case in by_template
            ),
            models=tuple(
                NextBest(model, case.known, self._of_model(case.instances, model)) for model, case in by_model
            ),
            rules=tuple(RuleCost(rule.rule, rule.is_on, case.known) for rule, case in by_rule),
            open_ends=sum(not case.known.is_exact for case in cases),
            solves=self._solves,
            spent_s=time.perf_counter() - self._start,
        )

    # ---- the changed problems -----------------------------------------------------------------------------------

    def _supply_cases(self) -> dict[tuple[int, int], tuple[_Case | None, _Case | None]]:
        """One node more and one fewer of the supplies of highest dual (above 0)."""
        problem, duals = self._problem, self._duals.supply
        order = np.argsort(-duals, axis=None, kind="stable")[:_TOP]
        used = used_nodes(problem, self._result.instances)
        cases: dict[tuple[int, int], tuple[_Case | None, _Case | None]] = {}
        for r, k in (divmod(int(i), duals.shape[1]) for i in order):
            dual, nodes = float(duals[r, k]), int(problem.capacity_nodes[r, k])
            if dual <= _SAME:
                continue
            at_duals = sum(self._parts.values()) - self._dual_value()
            more = Range(max(0.0, at_duals - dual), self._cost)
            # While a node is idle, one fewer changes nothing.
            low = max(self._bound, at_duals + dual)
            fewer = Range(min(low, self._cost), self._cost) if used[r, k] < nodes else Range(low, None)
            cases[r, k] = (
                _Case(with_nodes(problem, r, k, nodes + 1), more),
                _Case(with_nodes(problem, r, k, nodes - 1), fewer) if nodes > 0 else None,
            )
        return cases

    def _rule_case(self, rule: Rule) -> _Case:
        return _Case(rule.problem, Range(0.0, self._cost) if rule.is_on else Range(self._bound, None))

    def _template_case(self, row: Instance) -> _Case:
        wider = self._stand_ins(self._problem, {row.workload_id: frozenset({row.template_id})})
        return _Case(
            forbidding(wider, [(row.region, row.template_id)]),
            Range(self._bound, None),
            self._model_of(row.workload_id),
        )

    def _model_case(self, model: str) -> _Case:
        rows = self._of_model(self._result.instances, model)
        gone: dict[str, frozenset[str]] = {}
        for row in rows:
            gone[row.workload_id] = gone.get(row.workload_id, frozenset()) | {row.template_id}
        wider = self._stand_ins(self._problem, gone)
        pairs = [(row.region, row.template_id) for row in rows]
        return _Case(forbidding(wider, pairs), Range(self._bound, None), model)

    # ---- cheap ranges -------------------------------------------------------------------------------------------

    def _base_duals(self) -> tuple[Duals, dict[str, float]]:
        """Duals on the supply of the LP over covers, and each model's least cost at them."""
        problem = replace(self._problem, quotas=())
        columns = make_columns(problem)
        models = model_blocks(problem, columns, 1.0)
        limits = SolveLimits(gap=_GAP, time_s=self._time_s / 4)
        duals = Duals(np.zeros(problem.capacity_nodes.shape), 0.0, np.zeros(len(models)))
        if not models:
            return duals, {}
        found = generate(problem, columns, models, _grid(models), limits, Clock(limits))
        _, parts = joint_bound(problem, models, found.duals, _grid(models))
        return found.duals, {model.demand.model: part for model, part in zip(models, parts, strict=True)}

    def _dual_value(self) -> float:
        duals = self._duals
        supply = float((duals.supply * self._problem.capacity_nodes).sum())
        return supply + duals.budget * (self._problem.budget_usd_per_h or 0.0)

    def _bound_case(self, case: _Case) -> None:
        """Raise ``low`` to the bound at the present duals: the models' least costs in the changed problem, less what the
        supply is worth. Where one model changes, the others' are as before."""
        problem = replace(case.problem, quotas=())
        parts = dict(self._parts)
        if case.model is not None:
            problem = _only(problem, case.model)
            parts.pop(case.model, None)
        else:
            parts = {}
        models = model_blocks(problem, make_columns(problem), 1.0)
        if any(len(model.blocks) < model.wanted for model in models):
            case.known = Range(case.known.low, None, True)
            return
        _, own = joint_bound(problem, models, self._duals, _grid(models))
        low = sum(parts.values()) + sum(own) - self._dual_value()
        high = case.known.high
        case.known = Range(max(case.known.low, low if high is None else min(low, high)), high)

    def _try_alone(self, case: _Case) -> None:
        """Lower ``high`` to a plan in which only the case's model changes and all others keep what they have."""
        if case.known.is_exact or case.model is None:
            return
        demand = next(d for d in case.problem.demands if d.model == case.model)
        others = [row for row in self._result.instances if row.workload_id not in demand.workload_ids]
        rest = self._objective(others)
        found = self._solve(alone(case.problem, others, demand), self._left() / 4)
        if is_plan(found):
            self._take(case, rest + found.objective_usd, (*others, *found.instances))

    # ---- solving anew -------------------------------------------------------------------------------------------

    def _close(self, cases: list[_Case]) -> None:
        """Solve the cases anew, in order, each with twice its equal part of the time that is left."""
        for done, case in enumerate(cases):
            if self._left() < _LEAST_S:
                return
            found = self._solve(case.problem, min(self._left(), 2 * self._left() / (len(cases) - done)))
            if found.status is SolveStatus.INFEASIBLE:
                if case.known.high is None:
                    case.known = Range(case.known.low, None, True)
            elif is_plan(found):
                self._take(case, found.objective_usd, found.instances)
                case.known = case.known.within(Range(found.lower_bound_usd, case.known.high))

    def _solve(self, problem: AllocationProblem, time_s: float) -> AllocationResult:
        self._solves += 1
        return solve_covers(problem, SolveLimits(gap=_GAP, time_s=max(time_s, _LEAST_S)), allow_shortage=False)

    def _take(self, case: _Case, cost: float, instances: tuple[Instance, ...]) -> None:
        """``instances`` as the case's best plan, if it is."""
        high = case.known.high
        if high is None or cost < high:
            case.known = Range(min(case.known.low, cost), cost)
            case.instances = instances

    # ---- helpers ------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._time_s - (time.perf_counter() - self._start)

    def _objective(self, rows: Sequence[Instance]) -> float:
        """Rent and start-up charges of instances of the plan."""
        share = self._problem.init_share
        return math.fsum(row.cost_usd_per_h * (1 + share * row.new_instances / row.instances) for row in rows)

    def _model_of(self, workload_id: str) -> str:
        return next(d.model for d in self._problem.demands if workload_id in d.workload_ids)

    def _of_model(self, rows: Sequence[Instance], model: str) -> tuple[Instance, ...]:
        return tuple(row for row in rows if self._model_of(row.workload_id) == model)

    def _supply_rows(
        self, cases: Mapping[tuple[int, int], tuple[_Case | None, _Case | None]]
    ) -> tuple[SupplyPrice, ...]:
        """The supplies with a dual, dearest first; all others have none."""
        problem, duals = self._problem, self._duals.supply
        used = used_nodes(problem, self._result.instances)
        rows = []
        for r, k in (divmod(int(i), duals.shape[1]) for i in np.argsort(-duals, axis=None, kind="stable")):
            if duals[r, k] <= _SAME:
                break
            more, fewer = cases.get((r, k), (None, None))
            rows.append(
                SupplyPrice(
                    problem.regions[r],
                    problem.node_configs[k],
                    int(problem.capacity_nodes[r, k]),
                    int(used[r, k]),
                    float(duals[r, k]),
                    None if more is None else more.known,
                    None if fewer is None else fewer.known,
                )
            )
        return tuple(rows)


def _only(problem: AllocationProblem, model: str) -> AllocationProblem:
    demands = tuple(d for d in problem.demands if d.model == model)
    ids = {workload_id for d in demands for workload_id in d.workload_ids}
    return replace(problem, demands=demands, candidates=tuple(c for c in problem.candidates if c.workload_id in ids))


def _grid(models: Sequence[ModelBlocks]) -> Grid:
    """A grid of the demand for bounds, coarser where many regions are joined."""
    many = max((len(model.blocks) for model in models), default=1) > _MANY_REGIONS
    size = _GRID_MANY if many else _GRID
    return Grid(size, size // 512)
