"""The paper's monolithic ILP on HiGHS: all models, regions and templates in one program, stated as sparse arrays.

:func:`solve_monolith` runs it in a process of its own, which may take so much memory and is killed a little after its time,
so that it cannot bring down who compares with it. In its favour:

- its time counts from when HiGHS begins: columns, arrays and handing them over are free. What it finds until it is killed,
  half its time and five seconds later, counts as well, as HiGHS looks at the clock late in large programs;
- presolve and the search for symmetries are off: at this size they alone outlast the time (with them no plan at all, where
  without them there is one after a quarter of it);
- its columns are the problem's candidates, out of which the build has taken what needs no column in any optimum; so are
  templates that a region does not sell or cannot hold even once, and regions where a phase of a model has none. Nothing else is
  dropped or narrowed;
- an instance counts as serving at most all of the demand, which tightens the relaxation; what nothing needs of its answer is
  trimmed;
- in shortage it is told so and has only the largest common share to find, not the least cost at it.

The paper's program has none of the rules that came after it; a problem with one of them is refused.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tasks.allocation.checker import check_result
from tasks.allocation.columns import RATE_TOLERANCE, Columns, make_columns
from tasks.allocation.formulation import active_demands
from tasks.allocation.highs import FEASIBILITY_TOLERANCE, MODEL_STATUS, MipStatus, QuietHighs
from tasks.allocation.outcome import make_result, relative_gap, served_shares, trim
from tasks.allocation.types import AllocationProblem, AllocationResult, Shortage, SolveLimits, SolveStatus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = list[tuple[int, int, int, int]]  # pool, workload, template, instances

_GIB = 2**30
_SETUP_S = 900.0  # of a process that never comes to HiGHS
_LOOK_S = 0.5  # at most so often tells the process its bound


@dataclass(frozen=True, slots=True)
class Program:
    """min cost x, row_lower <= A x <= row_upper, 0 <= x <= upper, the first ``whole`` of x integers."""

    cost: Floats
    upper: Floats
    whole: int
    matrix: sparse.csc_matrix
    row_lower: Floats
    row_upper: Floats


@dataclass(frozen=True, slots=True)
class Monolith:
    """What it came to. ``plan``: the best checked one, None: none that serves something of every model. ``bound``: the
    solver's own, on the cost from below, or in shortage (``is_short``) on the common share from above."""

    status: str
    columns: int
    is_short: bool
    plan: AllocationResult | None
    bound: float
    solve_s: float
    cpu_s: float
    peak_gib: float
    note: str = ""

    def gap(self, bound: float) -> float:
        """The plan's distance to a bound, relative to its cost, or in shortage to that bound; 1 without a plan."""
        if self.plan is None:
            return 1.0
        if self.is_short:
            return max(0.0, 1 - self.plan.theta / bound) if bound > 0 else 0.0
        return max(0.0, relative_gap(self.plan.objective_usd, bound))


def formulate_monolith(problem: AllocationProblem, columns: Columns, *, is_short: bool) -> Program:
    """The paper's online ILP over ``columns``, phases of a model together in a region.

    Notation
        sets        r regions, k (pool, configuration), m models, w phases of m, i columns: a template of a phase in a pool
        constants   U_ik nodes, p_i USD/h, a_i share of m's demand one instance serves, A_k capacity, n'_i running, K start-up
                    hours charged, M_i most instances of use
        variables   n_i instances, whole, 0..M_i; I_i >= 0 start-up charge (running columns only); q_mr in [0, 1] share of m
                    served from r; theta in [0, 1] common share (``is_short`` only)
        objective   min  sum_i p_i n_i + I_i, where I_i = K p_i n_i for columns that do not run; ``is_short``: min -theta
        constraints capacity  sum_i U_ik n_i <= A_k
                    phase     sum_i in w,r a_i n_i - q_mr >= 0     for every phase w of m
                    demand    sum_r q_mr >= 1, or theta
                    start-up  I_i - K p_i n_i >= -K p_i n'_i       removing is free

    Raises ValueError where the problem has a rule that the paper's program has not.
    """
    _refuse(problem, is_short=is_short)
    n, K = len(columns), problem.init_share
    charged = np.flatnonzero(columns.running > 0) if K > 0 else np.zeros(0, dtype=np.intp)
    demands, regions, workloads = active_demands(problem), len(problem.regions), len(problem.candidates)
    used, node = np.nonzero(columns.counts)
    capacities = len(problem.pools) * len(problem.node_configs)
    phase_row = capacities + columns.workload.astype(np.int64) * regions + columns.region
    first_demand = capacities + workloads * regions
    start_row = first_demand + len(demands) + np.arange(len(charged))
    q, theta = n + len(charged), n + len(charged) + len(demands) * regions
    rows = [columns.pool[used].astype(np.int64) * len(problem.node_configs) + node, phase_row, start_row, start_row]
    cols = [used, np.arange(n), charged, n + np.arange(len(charged))]
    fees = K * columns.price_usd_per_h[charged]
    values = [columns.counts[used, node].astype(np.float64), columns.share, -fees, np.ones(len(charged))]
    phases = {c.workload_id: w for w, c in enumerate(problem.candidates)}
    for m, demand in enumerate(demands):
        mine = q + m * regions + np.arange(regions)
        for w in (phases[workload_id] for workload_id in demand.workload_ids):
            rows.append(capacities + w * regions + np.arange(regions))
            cols.append(mine)
            values.append(np.full(regions, -1.0))
        rows.append(np.full(regions, first_demand + m))
        cols.append(mine)
        values.append(np.ones(regions))
    size = theta + int(is_short)
    cost = np.zeros(size)
    if is_short:
        rows.append(first_demand + np.arange(len(demands)))
        cols.append(np.full(len(demands), theta))
        values.append(np.full(len(demands), -1.0))
        cost[theta] = -1.0
    else:
        cost[:n] = columns.price_usd_per_h * (1 + np.where(columns.running > 0, 0.0, K))
        cost[n:q] = 1.0
    upper = np.ones(size)
    upper[:n], upper[n:q] = columns.max_instances, np.inf
    height = first_demand + len(demands) + len(charged)
    row_lower, row_upper = np.zeros(height), np.full(height, np.inf)
    row_lower[:capacities], row_upper[:capacities] = -np.inf, problem.capacity_nodes.ravel()
    row_lower[first_demand : first_demand + len(demands)] = 0.0 if is_short else 1.0
    row_lower[first_demand + len(demands) :] = -fees * columns.running[charged]
    matrix = sparse.coo_matrix(
        (np.concatenate(values), (np.concatenate(rows).astype(np.int32), np.concatenate(cols).astype(np.int32))),
        shape=(height, size),
    ).tocsc()
    return Program(cost, upper, n, matrix, row_lower, row_upper)


def _refuse(problem: AllocationProblem, *, is_short: bool) -> None:
    spot = any(not pool.is_firm for pool in problem.pools)
    rules = {
        "quotas": bool(problem.quotas),
        "a budget": problem.budget_usd_per_h is not None,
        "KV between regions": bool(problem.links),
        "least regions": any(d.min_regions > 1 for d in problem.demands),
        "least replicas": any(d.min_replicas > 1 for d in problem.demands),
        "N+1": any(d.survives_loss for d in problem.demands),
        "a cap on spot": spot and any(0 < d.max_spot_share < 1 for d in problem.demands),
        "priorities in shortage": is_short and problem.shortage is not Shortage.UNIFORM,
    }
    found = [name for name, is_there in rules.items() if is_there]
    if found:
        raise ValueError(f"the paper's program has no {', no '.join(found)}")


def load(program: Program, limits: SolveLimits) -> highspy.Highs:
    """HiGHS with the program in it, ready to run."""
    highs = QuietHighs(limits.threads)
    options = {
        "mip_rel_gap": limits.gap,
        "time_limit": limits.time_s,
        "presolve": "off",
        "mip_detect_symmetry": False,
        "random_seed": limits.seed,
        "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
        "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
    }
    for name, value in options.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"HiGHS refuses {name} = {value}")
    matrix, kinds = program.matrix, np.zeros(len(program.cost), dtype=np.int32)
    kinds[: program.whole] = 1
    passed = highs.passModel(
        len(program.cost),
        len(program.row_lower),
        matrix.nnz,
        1,  # by column
        1,  # minimise
        0.0,
        program.cost,
        np.zeros(len(program.cost)),
        program.upper,
        program.row_lower,
        program.row_upper,
        matrix.indptr[:-1].astype(np.int32),
        matrix.indices.astype(np.int32),
        matrix.data,
        kinds,
    )
    if passed == highspy.HighsStatus.kError:
        raise ValueError("HiGHS refuses the program")
    return highs


def solve_monolith(
    problem: AllocationProblem, limits: SolveLimits, *, is_short: bool, most_gib: float = 12.0
) -> Monolith:
    """The best that HiGHS makes of the whole program within ``limits.time_s``; never raises for what becomes of it there.

    Status: optimal (to ``limits.gap``), time limit, killed (it overran its time), out of memory, infeasible, or failed.
    """
    ended = _in_a_process((problem, limits, is_short, most_gib), limits.time_s)
    told = {"bound": math.inf if is_short else 0.0, "columns": 0, **ended.told}
    bound = min(1.0, told["bound"]) if is_short else max(0.0, told["bound"])
    plan, fault = None, ""
    if "plan" in told:
        plan, fault = checked_plan(problem, told["plan"], bound, is_short=is_short)
    return Monolith(
        status=ended.status,
        columns=told["columns"],
        is_short=is_short,
        plan=plan,
        bound=bound,
        solve_s=ended.solve_s,
        cpu_s=ended.cpu_s,
        peak_gib=ended.peak_gib,
        note="; ".join(word for word in (ended.words, fault) if word),
    )


@dataclass(frozen=True, slots=True)
class _Ended:
    """How the process ended: the last that it told of each thing, and its last word on standard error."""

    told: dict[str, Any]
    status: str
    words: str
    solve_s: float
    cpu_s: float
    peak_gib: float


def _in_a_process(what: object, time_s: float) -> _Ended:
    """Hand ``what`` to :func:`_run_here` in a process of its own and listen; it is killed half its time and 5 s late."""
    here, pipe = Path(__file__).resolve(), subprocess.PIPE
    command, environment = [sys.executable, str(here)], {**os.environ, "PYTHONPATH": str(here.parent.parent)}
    told: dict[str, Any] = {"setup_s": 0.0}
    killed = threading.Event()
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:

        def kill() -> None:
            killed.set()
            process.kill()

        timer, began = threading.Timer(_SETUP_S, kill), time.monotonic()
        timer.start()
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            _hand_over(process, what)
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # killed while it wrote
                news = json.loads(line)
                told.update(news)
                if "setup_s" in news:
                    timer.cancel()
                    timer, began = threading.Timer(time_s * 1.5 + 5, kill), time.monotonic()
                    timer.start()
            solve_s = time.monotonic() - began
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        finally:
            timer.cancel()
            process.kill()
    words = lines[-1] if lines else ""
    is_full = "MemoryError" in words or "bad_alloc" in words
    status = "killed" if killed.is_set() else "out of memory" if is_full else "failed"
    cpu_s = max(usage.ru_utime + usage.ru_stime - told["setup_s"], 0.0)
    return _Ended(told, told.get("status", status), words, solve_s, cpu_s, usage.ru_maxrss * 1024 / _GIB)


def _hand_over(process: subprocess.Popen[bytes], what: object) -> None:
    assert process.stdin is not None
    try:
        pickle.dump(what, process.stdin)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended; why is on its standard error


def checked_plan(
    problem: AllocationProblem, rows: Rows, bound: float, *, is_short: bool
) -> tuple[AllocationResult | None, str]:
    """The rows as a plan that the independent check passes, or None and why."""
    used = {(w, t) for _, w, t, _ in rows}
    keep = [sorted(t for of, t in used if of == w) for w in range(len(problem.candidates))]
    few = replace(
        problem,
        candidates=tuple(
            replace(
                c,
                template_ids=tuple(c.template_ids[t] for t in mine),
                counts=c.counts[mine],
                throughput_mtok_per_s=c.throughput_mtok_per_s[mine],
            )
            for c, mine in zip(problem.candidates, keep, strict=True)
        ),
    )
    columns = make_columns(few, prune=False)
    many = {(p, w, keep[w].index(t)): count for p, w, t, count in rows}
    places = zip(columns.pool.tolist(), columns.workload.tolist(), columns.template.tolist(), strict=True)
    counts = np.array([many.get(place, 0) for place in places], dtype=np.int64)
    shares = served_shares(few, columns, counts)
    theta = min(shares.values())
    if theta <= 0:
        return None, "serves nothing of some model"
    counts = trim(few, columns, counts, dict.fromkeys(shares, theta))
    whole = not is_short or theta >= 1 - RATE_TOLERANCE  # without shortage the check says if it is not
    result = make_result(
        few,
        columns,
        counts,
        status=SolveStatus.TIME_LIMIT if whole else SolveStatus.SHORTFALL,
        lower_bound_usd=0.0 if is_short else bound,
        theta=1.0 if whole else theta,
        theta_upper=max(theta, bound) if is_short else 1.0,
        solve_s=0.0,
    )
    faults = check_result(problem, result)
    return (None, "; ".join(faults)) if faults else (result, "")


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def _run_here() -> None:
    """The process's own part: read the problem, state it, run HiGHS, tell what it finds as lines of JSON."""
    problem, limits, is_short, most_gib = pickle.load(sys.stdin.buffer)
    memory = int(most_gib * _GIB)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    columns = make_columns(problem, prune=False)
    place = np.column_stack([columns.pool, columns.workload, columns.template])
    program = formulate_monolith(problem, columns, is_short=is_short)
    highs, sign = load(program, limits), -1.0 if is_short else 1.0
    del columns

    def rows(values: Floats) -> Iterator[list[int]]:
        counts = np.rint(values[: program.whole]).astype(np.int64)
        for i in np.flatnonzero(counts).tolist():
            yield [*place[i].tolist(), int(counts[i])]

    last = 0.0

    def listen(kind: object, _text: str, out: object, _answer: object, _data: object) -> None:
        nonlocal last
        if kind == highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution:
            _tell(plan=list(rows(np.asarray(out.mip_solution))))  # type: ignore[attr-defined]
        bound = float(out.mip_dual_bound)  # type: ignore[attr-defined]
        if math.isfinite(bound) and time.monotonic() - last > _LOOK_S:
            last = time.monotonic()
            _tell(bound=sign * bound)

    highs.setCallback(listen, None)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)
    _tell(columns=program.whole, setup_s=time.process_time())
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        _tell(plan=list(rows(np.asarray(highs.getSolution().col_value))))
    if math.isfinite(info.mip_dual_bound):
        _tell(bound=sign * info.mip_dual_bound)
    words = {MipStatus.OPTIMAL: "optimal", MipStatus.LIMIT: "time limit", MipStatus.INFEASIBLE: "infeasible"}
    is_full = status == highspy.HighsModelStatus.kMemoryLimit
    _tell(status=words.get(MODEL_STATUS[status], "out of memory" if is_full else "failed"))


if __name__ == "__main__":
    _run_here()
