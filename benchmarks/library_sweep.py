"""The paper's figure 13 by command: what larger libraries cost to build, and what their best template gains.

    python benchmarks/library_sweep.py                       # GPT-OSS-120B prefill, n_max 3..7, rho 6..18
    python benchmarks/library_sweep.py --prices paper        # the paper's relative prices per GPU instead of the scenario's
    python benchmarks/library_sweep.py --n-max 3,4,5,6 --rho 6,12 --model phi-4 --phase decode --out sweep.csv

Two sweeps as in the paper, n_max at rho = 12 and rho at n_max = 6, and n_max and rho together with --grid. Each library is
solved anew from the same profiles. ``best`` is the most tokens per USD of any template in a region at the scenario's
prices, ``gain`` what it is above the sweep's first; ``flat from`` the first value after which the best gains less than
0.1 %. Seconds are of the processor, of this process alone: solving and the frontier; a busy machine does not count.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa

from catalogs.errors import NothingFitsError
from catalogs.ids import split_node_config
from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Workload
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import ModelShape
from tasks.templates.combinations import counts_of
from tasks.templates.frontier import frontier_mask
from tasks.templates.shards import LibraryLimits, plan_shards, solve_shards

FLAT = 1e-3
# The paper's table of GPUs, relative prices: H100 7.6, A100 3.5, L40S 2.2, L4 1.0, A10G 1.2, whatever the node.
PAPER_PRICE = {"H100-SXM": 7.6, "A100-80GB-SXM": 3.5, "A100-40GB-SXM": 3.5, "L40S": 2.2, "L4": 1.0, "A10G": 1.2}


@dataclass(frozen=True)
class Point:
    """One library of the sweep."""

    n_max: int
    rho: float
    combinations: int
    templates: int
    frontier: int
    solve_s: float
    frontier_s: float
    best_tok_per_usd: float
    best_template: str
    region: str


class Sweep:
    """Libraries of one workload over one set of profiles."""

    def __init__(
        self, loaded: LoadedScenario, workload: Workload, mode: str, most_nodes: int, has_paper_prices: bool
    ) -> None:
        self.loaded, self.workload, self.mode, self.has_paper_prices = loaded, workload, mode, has_paper_prices
        self.configs = sorted(loaded.node_configs.values(), key=lambda config: config.node_config)
        gpus = {config.gpu: loaded.catalog.gpus[config.gpu] for config in self.configs}
        known = {gpu: row for gpu, row in loaded.catalog.efficiencies.items() if gpu in gpus}
        self.profiles = profile_workload(workload, self.configs, gpus, known, mode=mode, max_stages=most_nodes)

    def point(self, n_max: int, rho: float) -> Point:
        """Solve one library."""
        shape = ModelShape(self.workload.model, self.workload.weight_dtype, self.workload.kv_dtype)
        started = time.process_time()
        try:
            specs = plan_shards(
                self.profiles,
                layers=self.workload.model.layers,
                weight_bytes=int(shape.weight_bytes),
                memory_gib={config.node_config: config.memory_gib for config in self.configs},
                sold_sets=[sorted(sold) for sold in self.loaded.sold_sets.values()],
                limits=LibraryLimits(n_max, rho, self.mode),
                what=self.workload.alias,
            )
        except NothingFitsError:
            return Point(n_max, rho, 0, 0, 0, time.process_time() - started, 0.0, 0.0, "", "")
        tables = [table.select(_READ) for table in solve_shards(specs, self.profiles)]
        solved = time.process_time()
        templates = pa.concat_tables(tables)
        names, counts = counts_of(templates["combination_id"])
        rates = templates["throughput_mtok_per_s"].to_numpy()
        kept = int(frontier_mask(counts, rates).sum())
        pruned = time.process_time()
        best, row, region = self._best(names, counts, rates)
        text = templates["combination_id"][row].as_py() if row >= 0 else ""
        n = sum(spec.n_combinations for spec in specs)
        return Point(n_max, rho, n, len(rates), kept, solved - started, pruned - solved, best, text, region)

    def _price(self, region: str, name: str) -> float:
        """USD/h of a node, infinite where it is not sold; the paper's are in units of an L4."""
        if self.has_paper_prices:
            gpu, count = split_node_config(name)
            return PAPER_PRICE[gpu] * count
        offer = self.loaded.best.get((region, name))
        return np.inf if offer is None else offer.price_usd_per_h

    def _best(self, names: Sequence[str], counts: np.ndarray, rates: np.ndarray) -> tuple[float, int, str]:
        """(tokens per USD, row, region) of the best template in any region."""
        best, at, where = 0.0, -1, ""
        for region in ["any region"] if self.has_paper_prices else self.loaded.regions:
            price = np.array([self._price(region, name) for name in names])
            cost = np.where(counts > 0, counts * np.where(counts > 0, price, 0.0), 0.0).sum(axis=1)
            per_usd = rates * 3.6 / cost
            row = int(per_usd.argmax()) if len(per_usd) else -1
            if row >= 0 and per_usd[row] > best:
                best, at, where = float(per_usd[row]), row, region
        return best, at, where


_READ = ["combination_id", "throughput_mtok_per_s"]
_HEADER = "n_max   rho  combinations  templates  frontier  solve s  frontier s  1000 tok/USD    gain  best template"


def told(points: Sequence[Point], along: str) -> None:
    """Print a sweep as a table, and where it flattens."""
    print(f"\n{along}\n{_HEADER}")
    first = next((point.best_tok_per_usd for point in points if point.best_tok_per_usd), 0.0)
    for p in points:
        gain = f"{p.best_tok_per_usd / first - 1:+.2%}" if first else "-"
        print(
            f"{p.n_max:5}{p.rho:6g}{p.combinations:14,}{p.templates:11,}{p.frontier:10,}{p.solve_s:9.2f}{p.frontier_s:12.2f}"
            f"{p.best_tok_per_usd / 1e3:14,.1f}{gain:>8}  {p.best_template} in {p.region}"
        )
    last = points[-1].best_tok_per_usd
    flat = next((p for p in points if p.best_tok_per_usd >= last * (1 - FLAT)), None)
    if flat is not None and last:
        print(f"flat from n_max {flat.n_max}, rho {flat.rho:g}: larger ones gain less than {FLAT:.1%}")


def main() -> None:
    """Run the sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="paper-extended")
    parser.add_argument("--model", default="gpt-oss-120b")
    parser.add_argument("--phase", default="prefill", choices=["prefill", "decode"])
    parser.add_argument("--prices", default="scenario", choices=["scenario", "paper"])
    parser.add_argument("--mode", default="cycle", choices=["cycle", "paper"])
    parser.add_argument("--n-max", default="3,4,5,6,7", help="at rho = --at-rho")
    parser.add_argument("--rho", default="6,8,10,12,14,16,18", help="at n_max = --at-n-max")
    parser.add_argument("--at-rho", type=float, default=12)
    parser.add_argument("--at-n-max", type=int, default=6)
    parser.add_argument("--grid", action="store_true", help="every n_max with every rho")
    parser.add_argument("--out", type=Path, help="write the points as CSV")
    options = parser.parse_args()
    n_maxs, rhos = [int(n) for n in options.n_max.split(",")], [float(rho) for rho in options.rho.split(",")]
    loaded = load_scenario(options.scenario)
    alias = f"{options.model}/{options.phase}"
    workload = next((w for w in loaded.workloads if w.alias == alias), None)
    if workload is None:
        sys.exit(f"{options.scenario} has no workload {alias}: {', '.join(w.alias for w in loaded.workloads)}")
    sweep = Sweep(loaded, workload, options.mode, max(*n_maxs, options.at_n_max), options.prices == "paper")
    sweep.point(2, options.at_rho)  # compile or load the kernels
    solved: dict[tuple[int, float], Point] = {}

    def point(n_max: int, rho: float) -> Point:
        if (n_max, rho) not in solved:
            solved[n_max, rho] = sweep.point(n_max, rho)
        return solved[n_max, rho]

    prices = "the paper's relative prices" if sweep.has_paper_prices else f"prices of {loaded.price_as_of.isoformat()}"
    print(f"{alias}, {len(sweep.configs)} node configurations, {prices}, {options.mode} mode")
    if options.grid:
        for rho in rhos:
            told([point(n, rho) for n in n_maxs], f"n_max at rho {rho:g}")
    else:
        told([point(n, options.at_rho) for n in n_maxs], f"n_max at rho {options.at_rho:g}")
        told([point(options.at_n_max, rho) for rho in rhos], f"rho at n_max {options.at_n_max}")
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Point)])
            writer.writeheader()
            writer.writerows(asdict(p) for p in solved.values())


if __name__ == "__main__":
    main()
