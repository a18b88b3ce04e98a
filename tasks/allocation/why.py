"""Why a plan looks as it does: what more supply is worth, what each choice and each rule costs.

Everything is a cost range [low, high] of the changed problem: ``high`` is a plan that was found, ``low`` a valid bound. Each
changed problem is solved anew while time is left; what time does not allow keeps the range that is known without a solve.

Large problems are first narrowed to the columns that plans near the best can use: a plan that uses another column costs at
least what that column's use implies at the present duals, and so does the changed problem's where it only takes choices away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import dual_value, generate, joint_bound
from tasks.allocation.covers.master import Duals
from tasks.allocation.covers.pricing import Grid, ModelBlocks, dual_prices, model_blocks
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.in_use import used_nodes
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Instance,
    SolveLimits,
    SolveStatus,
    WorkloadCandidates,
)
from tasks.allocation.why_types import NextBest, Range, RuleCost, SupplyPrice, Why, WithoutTemplate
from tasks.allocation.without import (
    alone,
    apart,
    forbidding,
    is_plan,
    lifting,
    only_templates,
    with_nodes,
    with_stand_ins,
)

_GAP = 1e-6
_TOP = 5  # supplies that are solved with a node more and less
_LEAST_S = 0.3  # less time than this is not worth a solve
_ALONE_SHARE = 0.6  # of the time, when changes of one model alone end
_MOST_COLUMNS = 4_000  # solved anew as they are; of more, so many that are of most use
_GRID, _FIXING = 16_384, 1_024
_MANY_REGIONS, _GRID_MANY = 3, 4_096
_NO_DUAL = 1e-6  # a dual below this is none


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the problem with it turned the other way. ``is_on``: see :class:`RuleCost`."""

    rule: str
    is_on: bool
    problem: AllocationProblem


Library = Callable[[str], WorkloadCandidates]
"""All templates of a workload id in the problem's node configurations, those that a frontier leaves out included."""


@dataclass(slots=True)
class _Case:
    """A changed problem. ``known``: what is known of its cost; ``elsewhere``: the least cost of a plan of it that uses a
    column which ``problem`` lacks; ``model``: the only model that changes."""

    problem: AllocationProblem
    known: Range
    elsewhere: float
    model: str | None = None
    instances: tuple[Instance, ...] = field(default=())


def rules_of(problem: AllocationProblem) -> list[Rule]:
    """The rules that are part of the problem itself: headroom, co-location, and those of the models."""
    rules = []
    if any(c.headroom < 1 for c in problem.candidates):
        whole = tuple(replace(c, headroom=1.0) for c in problem.candidates)
        rules.append(Rule("headroom", True, replace(problem, candidates=whole)))
    if problem.links:
        rules.append(Rule("co-location", False, replace(problem, links=())))
    elif any(len(d.workload_ids) > 1 and len(d.regions) > 1 for d in problem.demands):
        rules.append(Rule("co-location", True, apart(problem)))
    is_on = {
        "min_regions": any(d.min_regions > 1 for d in problem.demands),
        "min_replicas": any(d.min_replicas > 1 for d in problem.demands),
        "n_plus_one": any(d.survives_loss for d in problem.demands),
        "max_spot_share": any(d.max_spot_share < 1 for d in problem.demands)
        and not all(pool.is_firm for pool in problem.pools),
        "node_configs": any(d.excluded or d.node_configs is not None for d in problem.demands),
    }
    return rules + [Rule(rule, True, lifting(problem, rule)) for rule, is_there in is_on.items() if is_there]


def explain(
    problem: AllocationProblem,
    result: AllocationResult,
    *,
    rules: Sequence[Rule] = (),
    library: Library | None = None,
    time_s: float = 8.0,
) -> Why:
    """Explain ``result``, a plan that meets all demand of ``problem``, in about ``time_s`` seconds.

    ``rules`` are explained beside those of :func:`rules_of`. ``library``: where the problem's candidates are a frontier, what
    may take the place of a template that is forbidden. Raises ValueError for a result that is no such plan.
    """
    if not is_plan(result):
        raise ValueError(f"a result with status {result.status} and theta {result.theta} is not explained")
    return _Explainer(problem, result, library, time_s).run(rules)


class _Explainer:
    def __init__(
        self, problem: AllocationProblem, result: AllocationResult, library: Library | None, time_s: float
    ) -> None:
        self._start, self._time_s = time.perf_counter(), time_s
        self._whole, self._result = problem, result
        self._library = library or {c.workload_id: c for c in problem.candidates}.__getitem__
        self._cost, self._bound = result.objective_usd, result.lower_bound_usd
        self._solves = 0
        self._narrow()

    def run(self, rules: Sequence[Rule]) -> Why:
        supply = self._supply_cases()
        by_rule = [(rule, self._rule_case(rule)) for rule in rules_of(self._problem)]
        by_model = [(d.model, self._model_case(d.model)) for d in self._problem.demands if d.planned_req_per_s > 0]
        by_template = [(row, self._template_case(row)) for row in self._result.instances]
        more_rules = [(rule, self._rule_case(rule)) for rule in rules]
        cases = [case for pair in supply.values() for case in pair if case is not None]
        cases += [case for _, case in (*by_rule, *by_model, *by_template, *more_rules)]
        self._close([case for case in cases if not case.known.is_exact])
        self._bound_rules([*by_rule, *more_rules])
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
            rules=tuple(RuleCost(rule.rule, rule.is_on, case.known) for rule, case in (*by_rule, *more_rules)),
            open_ends=sum(not case.known.is_exact for case in cases),
            solves=self._solves,
            spent_s=time.perf_counter() - self._start,
        )

    def _narrow(self) -> None:
        """Duals on the supply of the LP over covers, the bound at them, and the problem of few enough columns."""
        whole = self._whole
        columns, loose = make_columns(whole), _loose(whole)
        models = model_blocks(loose, columns, 1.0)
        self._problem, self._left_out, self._elsewhere = self._whole, frozenset[str](), math.inf
        nothing = np.zeros(whole.capacity_nodes.shape)
        self._duals, self._at_duals = Duals(nothing, 0.0, np.zeros(len(models)), np.zeros(len(whole.quotas))), 0.0
        if not models:
            return
        limits = SolveLimits(gap=_GAP, time_s=self._time_s / 4)
        self._duals = generate(loose, columns, models, _grid(models), limits, Clock(limits)).duals
        self._at_duals, _ = joint_bound(loose, models, self._duals, _grid(models))
        self._bound = max(self._bound, min(self._at_duals, self._cost))
        if len(columns) <= _MOST_COLUMNS:
            return
        prices = dual_prices(whole, self._duals.supply, self._duals.budget, self._duals.quota)
        if_used = bounds_if_used(columns, models, prices, dual_value(whole, self._duals), _FIXING)
        kept = np.argsort(if_used, kind="stable")[:_MOST_COLUMNS]
        self._elsewhere = float(np.delete(if_used, kept).min(initial=math.inf))
        stay: dict[str, set[str]] = {c.workload_id: set() for c in whole.candidates}
        pairs = np.unique(np.stack([columns.workload, columns.template]), axis=1).T.tolist()
        seen = {whole.candidates[w].template_ids[t] for w, t in pairs}
        for i in kept.tolist():
            c = whole.candidates[columns.workload[i]]
            stay[c.workload_id].add(c.template_ids[columns.template[i]])
        for row in self._result.instances:
            stay[row.workload_id].add(row.template_id)
        self._problem = only_templates(self._whole, stay)
        self._left_out = frozenset(seen) - frozenset().union(*stay.values())

    # ---- the changed problems -----------------------------------------------------------------------------------

    def _supply_cases(self) -> dict[tuple[int, int], tuple[_Case | None, _Case | None]]:
        """One node more and one fewer of the supplies of highest dual (above 0)."""
        problem, duals = self._problem, self._duals.supply
        order = np.argsort(-duals, axis=None, kind="stable")[:_TOP]
        used = used_nodes(problem, self._result.instances)
        cases: dict[tuple[int, int], tuple[_Case | None, _Case | None]] = {}
        for r, k in (divmod(int(i), duals.shape[1]) for i in order):
            dual, nodes = float(duals[r, k]), int(problem.capacity_nodes[r, k])
            if dual <= _NO_DUAL:
                continue
            more = Range(min(max(0.0, self._at_duals - dual), self._cost), self._cost)
            low = max(self._bound, self._at_duals + dual)
            # While a node is idle, one fewer changes nothing.
            fewer = Range(min(low, self._cost), self._cost) if used[r, k] < nodes else Range(low, None)
            cases[r, k] = (
                _Case(with_nodes(problem, r, k, nodes + 1), more, self._elsewhere - dual),
                _Case(with_nodes(problem, r, k, nodes - 1), fewer, self._elsewhere + dual) if nodes > 0 else None,
            )
        return cases

    def _rule_case(self, rule: Rule) -> _Case:
        known = Range(0.0, self._cost) if rule.is_on else Range(self._bound, None)
        is_narrowed = self._problem is not self._whole and rule.is_on
        return _Case(rule.problem, known, -math.inf if is_narrowed else math.inf)

    def _template_case(self, row: Instance) -> _Case:
        gone = {row.workload_id: frozenset({row.template_id})}
        return self._without([(row.pool, row.template_id)], gone, self._model_of(row.workload_id))

    def _model_case(self, model: str) -> _Case:
        rows = self._of_model(self._result.instances, model)
        gone: dict[str, frozenset[str]] = {}
        for row in rows:
            gone[row.workload_id] = gone.get(row.workload_id, frozenset()) | {row.template_id}
        return self._without([(row.pool, row.template_id) for row in rows], gone, model)

    def _without(self, pairs: list[tuple[str, str]], gone: Mapping[str, frozenset[str]], model: str) -> _Case:
        known = Range(self._bound, None)
        if self._left() < _LEAST_S:
            return _Case(self._problem, known, -math.inf, model)
        wider = self._problem
        for workload_id, ids in gone.items():
            wider = with_stand_ins(wider, workload_id, self._library(workload_id), ids, self._left_out)
        return _Case(forbidding(wider, pairs), known, self._elsewhere, model)

    # ---- solving anew -------------------------------------------------------------------------------------------

    def _close(self, cases: list[_Case]) -> None:
        """Solve the cases anew, in order, each with twice its equal part of the time that is left. Before that, some plan of
        every case in which one model changes: the others keep what they have, which is little work."""
        for case in cases:
            if case.model is not None and self._left() > self._time_s * (1 - _ALONE_SHARE):
                self._try_alone(case, self._left() / len(cases))
        cases = [case for case in cases if not case.known.is_exact]
        for done, case in enumerate(cases):
            if self._left() < _LEAST_S:
                return
            self._solve_case(case, 2 * self._left() / (len(cases) - done))

    def _try_alone(self, case: _Case, time_s: float) -> None:
        """Lower ``high`` to a plan in which only the case's model changes and all others keep what they have."""
        demand = next(d for d in case.problem.demands if d.model == case.model)
        others = [row for row in self._result.instances if row.workload_id not in demand.workload_ids]
        carried = [row for row in self._result.transfers if row.model != case.model]
        found = self._solve(alone(case.problem, others, demand, carried), time_s)
        if is_plan(found):
            kept = self._objective(others) + math.fsum(row.usd_per_h for row in carried)
            self._take(case, kept + found.objective_usd, (*others, *found.instances))

    def _solve_case(self, case: _Case, time_s: float) -> None:
        found = self._solve(case.problem, time_s)
        if is_plan(found):
            self._take(case, found.objective_usd, found.instances)
            low = min(found.lower_bound_usd, case.elsewhere)
            case.known = case.known.within(Range(max(low, 0.0), case.known.high))
        elif found.status is SolveStatus.INFEASIBLE and case.known.high is None:
            # No plan of these columns: there is none at all, or it uses another column.
            is_proven = math.isinf(case.elsewhere) and case.elsewhere > 0
            case.known = Range(max(case.known.low, 0.0 if is_proven else case.elsewhere), None, is_proven)

    def _bound_rules(self, rules: list[tuple[Rule, _Case]]) -> None:
        """Raise ``low`` of what was not closed to the bound at the present duals, which holds over the same supply."""
        whole = {rule.rule: rule.problem for rule in rules_of(self._whole)}
        for rule, case in rules:
            if case.known.is_exact or self._left() < _LEAST_S:
                continue
            problem = whole.get(rule.rule, case.problem)
            loose = _loose(problem)
            models = model_blocks(loose, make_columns(problem), 1.0)
            if all(len(model.blocks) >= model.wanted for model in models):
                low, _ = joint_bound(loose, models, self._duals, _grid(models))
                case.known = case.known.within(Range(max(low, 0.0), case.known.high))

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
            if duals[r, k] <= _NO_DUAL:
                break
            more, fewer = cases.get((r, k), (None, None))
            rows.append(
                SupplyPrice(
                    problem.pools[r].name,
                    problem.node_configs[k],
                    int(problem.capacity_nodes[r, k]),
                    int(used[r, k]),
                    float(duals[r, k]),
                    None if more is None else more.known,
                    None if fewer is None else fewer.known,
                )
            )
        return tuple(rows)


def _loose(problem: AllocationProblem) -> AllocationProblem:
    """A problem of covers that no plan of ``problem`` costs less than: where KV may cross regions, with its phases apart."""
    return apart(problem) if problem.links else problem


def _grid(models: Sequence[ModelBlocks]) -> Grid:
    """A grid of the demand for bounds, coarser where many regions are joined."""
    many = max((len(model.blocks) for model in models), default=1) > _MANY_REGIONS
    size = _GRID_MANY if many else _GRID
    return Grid(size, size // 512)
