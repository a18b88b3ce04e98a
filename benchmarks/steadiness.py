"""Does planning every window pay, and stay calm? A day of real demand over real price changes, window by window.

    python benchmarks/steadiness.py                     # 60-minute windows, on-demand prices, in about a minute
    python benchmarks/steadiness.py --window-min 6      # 240 windows
    python benchmarks/steadiness.py --market spot       # the cheaper of spot and on demand: prices that move at every step

Demand: the day of request rates of ``traces/alibaba_genai_qps_5min.parquet`` (two kinds of requests, two models), peak 10 req/s.
Prices: every change of GCP's us-central1 and us-east4 (``prices/gcp_price_history.parquet``) and AWS' us-east-1 (``prices/
aws_us-east-1_ondemand_changes.csv``) from 2024-09 to 2025-11, spread over the day in order: 14 months of changes in 24 hours.

Policies: ``never`` = the best plan of the day's highest demand at its first prices, kept; ``always`` = the best plan of every
window, start-up charges over that window; ``steady P`` = what scheduled runs do: the current plan stays unless it fails or
another saves more than P %, start-up charges over --payback-min, and staying will have cost its start-ups by the next window.
Every plan is checked to meet its window's demand by the independent checker.

The bound no policy can beat is that of benchmarks/steadiness_bound.py: the sum of the windows' least rents, plus the start-ups
that not even a policy that knows the whole day could avoid.
Exit code 1 where ``steady`` at the default percentage costs more than --most times the bound.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from steadiness_bound import day_bound

from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Market
from flows.build import build_library, registered_library
from flows.planning import solve
from flows.planning_inputs import planning_inputs
from flows.settings import BuildSettings, SilentProgress
from tasks.allocation.checker import check_result
from tasks.allocation.steady import Decision, Regret, as_result, steady_choice
from tasks.allocation.types import AllocationProblem, AllocationResult, pool_name

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
PEAK_REQ_PER_S = 10.0
SINCE, UNTIL = datetime(2024, 9, 1, tzinfo=UTC), datetime(2025, 12, 1, tzinfo=UTC)
SCENARIO = """
schema: 1
id: steadiness
price_as_of: 2026-07-30
offers: {regions: [gcp/us-central1, gcp/us-east4, aws/us-east-1], markets: [on_demand], date_tolerance_days: 1000}
models:
  - {model: microsoft/phi-4, demand_req_per_s: 10, lengths: {trace: azure-conv-2023}, slo: {ttft_ms: 1200, tpot_ms: 60}}
  - {model: openai/gpt-oss-20b, demand_req_per_s: 10, lengths: {trace: azure-code-2023}, slo: {ttft_ms: 900, tpot_ms: 30}}
library: {n_max: 2, rho: 12, mode: cycle}
policy: {headroom: start, demand_percentile: null}
availability: {default_nodes: 64}
"""
Prices = NDArray[np.float64]


@dataclass
class Bill:
    """What a policy paid, USD, and how it moved."""

    rent_usd: float = 0.0
    start_usd: float = 0.0
    changes: int = 0
    started: int = 0
    stopped: int = 0
    solves_s: float = 0.0

    @property
    def total_usd(self) -> float:
        """Rent and start-ups."""
        return self.rent_usd + self.start_usd


def day_of_demand(windows: int) -> NDArray[np.float64]:
    """[models, windows] req/s: the day's two kinds of requests, each to a peak of PEAK_REQ_PER_S; the mean of each window."""
    rows = pq.read_table(SHARED / "traces" / "alibaba_genai_qps_5min.parquet").to_pylist()
    found = []
    for kind in ("Generative Requests", "API Requests"):
        points = sorted((r["t_s"], r["qps_anon"]) for r in rows if r["request_type"] == kind)
        minutes = np.interp(np.arange(24 * 60) * 60.0, *np.array(points).T)
        means = minutes.reshape(windows, -1).mean(axis=1)
        found.append(means / means.max() * PEAK_REQ_PER_S)
    return np.array(found)


def price_steps(loaded: LoadedScenario, problem: AllocationProblem, market: str) -> list[Prices]:
    """Prices [regions, configurations] after every change, in order; NaN where not sold."""
    place = {
        (offer.region, offer.instance_type): (problem.regions.index(offer.region), problem.node_configs.index(config))
        for (region, config), offer in loaded.best.items()
        if region in problem.regions
    }
    events: list[tuple[datetime, tuple[int, int], float]] = []
    for row in pq.read_table(SHARED / "prices" / "gcp_price_history.parquet").to_pylist():
        key = place.get(("gcp/" + row["region"], row["instance_type"]))
        if key is not None and row["snapshot_time"] < UNTIL:
            both = [row["price_usd_hr"], row["spot_usd_hr"] if market == "spot" else None]
            events.append((row["snapshot_time"], key, min(price for price in both if price)))
    with (SHARED / "prices" / "aws_us-east-1_ondemand_changes.csv").open() as file:
        for line in csv.DictReader(file):
            key, at = place.get(("aws/us-east-1", line["instance_type"])), datetime.fromisoformat(line["generated_at"])
            if key is not None and at < UNTIL:
                events.append((at, key, float(line["price_usd_hr"])))
    now = np.full(problem.price_usd_per_h.shape, np.nan)
    steps: list[Prices] = []
    for at, key, price in sorted(events):
        changed = now[key] != price
        now[key] = price
        if changed and at >= SINCE:
            steps.append(now.copy())
    return steps


def windows_of(base: AllocationProblem, steps: list[Prices], demand: NDArray[np.float64]) -> list[AllocationProblem]:
    """The day's windows: their prices and demand, nothing running."""
    found = []
    for i in range(demand.shape[1]):
        prices = steps[int(i * len(steps) / demand.shape[1])]
        demands = tuple(replace(d, planned_req_per_s=float(demand[j, i])) for j, d in enumerate(base.demands))
        found.append(replace(base, price_usd_per_h=prices, demands=demands, init_share=0.0, running={}))
    return found


def decision_of(result: AllocationResult) -> Decision:
    """Instances by (region, market, template, workload)."""
    return {(r.region, r.market, r.template_id, r.workload_id): r.instances for r in result.instances}


def replay(
    windows: list[AllocationProblem],
    hours: float,
    init_h: float,
    choose: Callable[[AllocationProblem, Decision, int], AllocationResult],
) -> Bill:
    """The bill of a policy that chooses each window's plan knowing what runs."""
    bill, running = Bill(), Counter[tuple[str, Market, str, str]]()
    for i, window in enumerate(windows):
        known = {(pool_name(region, market), template): n for (region, market, template, _), n in running.items()}
        problem = replace(window, running=known)
        started = time.process_time()
        result = choose(problem, running, i)
        bill.solves_s += time.process_time() - started
        decided = Counter(decision_of(result))
        judged = replace(problem, init_share=1.0)
        plain = as_result(judged, decided, replace(result, lower_bound_usd=0.0))
        assert plain is not None, "a plan of other templates than the library's"
        faults = check_result(judged, plain)
        assert not faults, faults
        bill.rent_usd += plain.cost_usd_per_h * hours
        bill.start_usd += plain.init_usd * init_h  # init_share 1: the hourly price of what is new
        new, gone = decided - running, running - decided
        bill.changes += bool(new or gone)
        bill.started, bill.stopped = bill.started + new.total(), bill.stopped + gone.total()
        running = decided
    return bill


def main() -> None:
    """Replay, print, exit 1 for a steady policy that costs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window-min", type=int, default=60)
    parser.add_argument("--market", choices=("on_demand", "spot"), default="on_demand")
    parser.add_argument("--hysteresis-pct", type=float, nargs="*", default=[1.0])
    parser.add_argument("--payback-min", type=float, default=60.0)
    parser.add_argument("--init-min", type=float, default=6.0)
    parser.add_argument("--lake", type=Path)
    parser.add_argument("--most", type=float, default=1.02)
    parser.add_argument("--bound-s", type=float, default=120.0, help="for each model's search for the bound")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(_run(options, Path(folder)))


def _run(options: argparse.Namespace, folder: Path) -> int:
    from warehouse.connect import Lake

    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO)
    settings = BuildSettings(scenario, options.lake or folder / "lake", sample_n=0)
    build_library(settings, SilentProgress())
    loaded = load_scenario(scenario)
    with Lake.open(settings.lake_root, read_only=True) as lake:
        base = planning_inputs(loaded, lake, registered_library(settings, loaded)).problem
    hours, init_h = options.window_min / 60, options.init_min / 60
    steps = price_steps(loaded, base, options.market)
    demand = day_of_demand(24 * 60 // options.window_min)
    windows = windows_of(base, steps, demand)
    bound = day_bound(windows, hours, init_h, options.bound_s)
    rent, least = bound.rent, bound.total
    print(
        f"{len(windows)} windows of {options.window_min} min, {len(steps)} price changes ({options.market}); "
        f"bound {least:,.2f} USD: rent {rent:,.2f}, unavoidable start-ups {least - rent:,.2f} "
        f"(best found knowing the day: {bound.found:,.2f})",
        flush=True,
    )
    bills = dict(_policies(options, windows, demand, hours, init_h))
    for name, bill in bills.items():
        print(
            f"{name:>12}: {bill.total_usd:9,.2f} USD = {bill.total_usd / least:.4f} x bound; start-ups {bill.start_usd:8,.2f}; "
            f"{bill.changes:4} changes, {bill.started:5} instances started, {bill.stopped:5} stopped; "
            f"{bill.solves_s:.0f} s of processor",
            flush=True,
        )
    steady = bills[f"steady {options.hysteresis_pct[0]:g}"]
    return int(steady.total_usd > options.most * least)


def _policies(
    options: argparse.Namespace,
    windows: list[AllocationProblem],
    demand: NDArray[np.float64],
    hours: float,
    init_h: float,
) -> list[tuple[str, Bill]]:
    first = windows[0]
    peak = tuple(replace(d, planned_req_per_s=float(demand[j].max())) for j, d in enumerate(first.demands))
    fixed = solve(replace(first, demands=peak))

    def never(problem: AllocationProblem, running: Decision, window: int) -> AllocationResult:
        return fixed

    def always(problem: AllocationProblem, running: Decision, window: int) -> AllocationResult:
        return solve(replace(problem, init_share=init_h / hours))

    def steady(percent: float) -> Callable[[AllocationProblem, Decision, int], AllocationResult]:
        def choose(problem: AllocationProblem, running: Decision, window: int) -> AllocationResult:
            problem = replace(problem, init_share=options.init_min / options.payback_min)
            best = solve(problem)
            kept = steady_choice(problem, running, best, percent, Regret(so_far_usd[0], hours, init_h))
            # What the log of a run that keeps its plan says: its gap, of its cost, until the next run.
            so_far_usd[0] = so_far_usd[0] + kept.gap * kept.cost_usd_per_h * hours if kept else 0.0
            return kept or best

        so_far_usd = [0.0]
        return choose

    policies: Mapping[str, Any] = {"never": never, "always": always}
    policies = {**policies, **{f"steady {p:g}": steady(p) for p in options.hysteresis_pct}}
    return [(name, replay(windows, hours, init_h, choose)) for name, choose in policies.items()]


if __name__ == "__main__":
    main()
