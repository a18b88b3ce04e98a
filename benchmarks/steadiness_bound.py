"""The least that any policy can pay over all windows of a day, start-ups counted, even one that knows the whole day.

Sets. t: windows; m: models; w: phases of a model (workloads); p: pools (regions); i: columns, i.e. a template of a workload in a
pool.
Constants. c[t,i]: USD/h of one instance at the window's prices; r[i]: requests/s it serves, headroom taken off; d[t,m]: demand;
h: hours of a window; k: hours of its price that a start takes; z[t,m]: least rent of the window by itself, USD/h.
Variables. x[t,i]: instances, whole; s[t,i] >= 0: of them started; y[t,p]: share of the demand served in a pool.
Objective. min sum over t, i of h c[t,i] x[t,i] + k c[t,i] s[t,i].
Constraints. s[t,i] >= x[t,i] - x[t-1,i], x[-1] = 0; sum over p of y[t,p] >= 1; in each pool and phase: sum of r[i] x[t,i] >=
d[t,m] y[t,p] (phases stay together per region); sum over i of c[t,i] x[t,i] >= z[t,m], which follows and helps.

Models only meet in capacity, which is left out, so the sum of their optima is a bound. A column that another of its pool and
phase serves more for less in every window is left out: it is never needed. HiGHS' dual bound holds whenever it stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tasks.allocation.types import AllocationProblem, ModelDemand

Floats = NDArray[np.float64]
_MOST = 64  # instances of a column: far more than any optimum has
_EXACT = 1e-7


@dataclass(frozen=True)
class DayBound:
    """USD of the whole day: ``rent`` = sum of the windows' least rents; ``total`` = what no policy can go below, with start-ups;
    ``found`` = what the best plan of the whole day that the search has found costs (inf where none was)."""

    rent: float
    total: float
    found: float


@dataclass(frozen=True)
class _Column:
    phase: str
    pool: int
    req_per_s: float
    usd_per_h: Floats  # [windows]; inf = not sold


def day_bound(problems: Sequence[AllocationProblem], hours: float, init_h: float, limit_s: float) -> DayBound:
    """The bound over windows that differ in prices and demand only; ``limit_s`` of the clock for each model's search."""
    parts = [_of_model(problems, index, hours, init_h, limit_s) for index in range(len(problems[0].demands))]
    return DayBound(*(sum(getattr(part, name) for part in parts) for name in ("rent", "total", "found")))


def _of_model(
    problems: Sequence[AllocationProblem], index: int, hours: float, init_h: float, limit_s: float
) -> DayBound:
    columns = _columns(problems, problems[0].demands[index])
    demand = np.array([problem.demands[index].planned_req_per_s for problem in problems])
    price = np.array([column.usd_per_h for column in columns]).T
    least: dict[bytes, float] = {}
    for t in range(len(demand)):
        key = demand[t : t + 1].tobytes() + price[t].tobytes()
        if key not in least:
            rent = _search(columns, price[t : t + 1], demand[t : t + 1], 1.0, 0.0, None, limit_s)
            least[key] = rent.mip_dual_bound
    z = np.array([least[demand[t : t + 1].tobytes() + price[t].tobytes()] for t in range(len(demand))])
    found = _search(columns, price, demand, hours, init_h, z, limit_s)
    best = np.inf if found.fun is None else float(found.fun)
    return DayBound(float(z.sum()) * hours, float(found.mip_dual_bound), best)


def _columns(problems: Sequence[AllocationProblem], demand: ModelDemand) -> list[_Column]:
    prices = np.array([problem.price_usd_per_h for problem in problems])
    kept = []
    for c in (c for c in problems[0].candidates if c.workload_id in demand.workload_ids):
        rate = c.throughput_mtok_per_s / 1000 * c.headroom / c.tokens_per_request
        for pool in range(prices.shape[1]):
            own = []
            for i, counts in enumerate(c.counts):
                used = np.flatnonzero(counts)
                usd = prices[:, pool, used] @ counts[used].astype(float)
                own.append(_Column(c.workload_id, pool, float(rate[i]), np.where(np.isnan(usd), np.inf, usd)))
            sold = [column for column in own if not np.isinf(column.usd_per_h).all()]
            kept += [a for n, a in enumerate(sold) if not any(_beats(b, a, m < n) for m, b in enumerate(sold))]
    return kept


def _beats(b: _Column, a: _Column, is_first: bool) -> bool:
    """Whether ``b`` serves at least as much for at most as much in every window; of two alike the first does."""
    if b is a or b.req_per_s < a.req_per_s or (b.usd_per_h > a.usd_per_h).any():
        return False
    return is_first or b.req_per_s > a.req_per_s or bool((b.usd_per_h < a.usd_per_h).any())


def _search(
    columns: list[_Column], price: Floats, demand: Floats, hours: float, init_h: float, z: Floats | None, limit_s: float
) -> Any:
    """HiGHS' answer; ``init_h`` 0 leaves the start-ups out, ``z`` None the least rents."""
    windows, n = price.shape
    pools, phases = sorted({c.pool for c in columns}), sorted({c.phase for c in columns})
    sold = np.isfinite(price)
    usd = np.where(sold, price, 0.0)
    started, share = windows * n, 2 * windows * n  # where s and y begin
    entries: list[tuple[int, int, float]] = []
    low: list[float] = []

    def row(least: float, *terms: tuple[int, float]) -> None:
        entries.extend((len(low), variable, factor) for variable, factor in terms)
        low.append(least)

    for t in range(windows):
        x, y = t * n, share + t * len(pools)
        row(float(demand[t] > 0), *((y + q, 1.0) for q in range(len(pools))))
        for phase in phases:
            for q, pool in enumerate(pools):
                own = [i for i, c in enumerate(columns) if (c.phase, c.pool) == (phase, pool)]
                rates = ((x + i, columns[i].req_per_s / max(demand[t], 1e-9)) for i in own)
                row(0.0, (y + q, -1.0), *rates)
        if z is not None:
            row(float(z[t]) * (1 - _EXACT), *((x + i, float(usd[t, i])) for i in range(n)))
        for i in range(n if init_h else 0):
            before = [(x - n + i, 1.0)] if t else []
            row(0.0, (started + x + i, 1.0), (x + i, -1.0), *before)
    size = share + windows * len(pools)
    rows, variables, factors = zip(*entries, strict=True)
    matrix = coo_array((factors, (rows, variables)), shape=(len(low), size))
    cost = np.concatenate([(hours * usd).ravel(), (init_h * usd).ravel(), np.zeros(size - share)])
    most = np.concatenate([np.where(sold, _MOST, 0).ravel(), np.full(started, np.inf), np.ones(size - share)])
    whole = np.concatenate([np.ones(started), np.zeros(size - started)])
    options = {"time_limit": limit_s, "mip_rel_gap": _EXACT if z is None else 1e-4}
    return milp(
        cost,
        constraints=LinearConstraint(matrix, np.array(low), np.inf),
        bounds=Bounds(0, most),
        integrality=whole,
        options=options,
    )
