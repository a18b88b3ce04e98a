"""How rates change when the distribution of request lengths counts instead of its means.

Three ways to read one trace, each with one node that holds the whole model: every request of mean length; the moments
(context of a decode step, attention of a prompt), with the mean prompt against the SLO; the moments and the prompt of the
SLO's percentile. Rates are tokens/s of the node at the best cycle; "-" = no batch meets the SLO.

    python benchmarks/lengths.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from catalogs import load_catalog
from catalogs.types import Lengths, ModelSpec, NodeConfig, Phase, Workload
from tasks.profiling.profile import profile_workload

PERCENTILE = 99.0
# (trace, TTFT ms, TPOT ms, prefix-cache hit rates)
TRACES = (
    ("azure-conv-2023", 1000.0, 50.0, (0.0,)),
    ("azure-code-2023", 1000.0, 50.0, (0.0,)),
    ("mooncake-conversation", 30000.0, 50.0, (0.0, 0.4)),
)
MODELS = ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B")
NODES = ("L40Sx4", "A100-80GB-SXMx8", "H100-SXMx8")


@dataclass(frozen=True)
class Row:
    """Rates in tokens/s; None = infeasible."""

    trace: str
    hit_rate: float
    model: str
    node: str
    phase: str
    means: float | None
    moments: float | None
    whole: float | None


def node_config(name: str) -> NodeConfig:
    """The catalog's configuration with a network that is not in the way: lengths alone are compared."""
    return replace(load_catalog().node_configs[name], network_gbit_per_s=3200.0)


def best_rate(spec: ModelSpec, phase: Phase, slo_ms: float, lengths: Lengths, hit: float, node: str) -> float | None:
    """The best rate of one node that is the whole pipeline."""
    catalog = load_catalog()
    workload = Workload(spec, "bf16", "bf16", phase, slo_ms, PERCENTILE, lengths, hit)
    table = profile_workload(workload, [node_config(node)], catalog.gpus, catalog.efficiencies, max_stages=1)
    rows = [row for row in table.to_pylist() if row["layers"] == spec.layers and row["throughput_tok_per_s"]]
    return max((row["throughput_tok_per_s"] for row in rows), default=None)


def rows() -> list[Row]:
    """Every trace, hit rate, model, node and phase."""
    catalog = load_catalog()
    found = []
    for trace, ttft_ms, tpot_ms, hits in TRACES:
        whole = catalog.lengths[trace].at(PERCENTILE)
        moments = replace(whole, input_at_percentile=whole.input_mean)
        means = Lengths.constant(whole.input_mean, whole.output_mean)
        for hit in hits:
            for model in MODELS:
                for phase, slo in ((Phase.PREFILL, ttft_ms), (Phase.DECODE, tpot_ms)):
                    if hit and phase is Phase.DECODE:
                        continue  # the decode node holds the whole context whatever prefill found in its cache
                    for node in NODES:
                        spec = catalog.models[model]
                        rates = [best_rate(spec, phase, slo, each, hit, node) for each in (means, moments, whole)]
                        found.append(Row(trace, hit, spec.alias, node, phase.value, *rates))
    return found


def shown(value: float | None) -> str:
    """A rate, or a dash."""
    return "-" if value is None else f"{value:,.0f}"


def change(row: Row) -> str:
    """The whole distribution against the means."""
    if row.means is None or row.whole is None:
        return "infeasible" if row.means else ""
    return f"{row.whole / row.means - 1:+.0%}"


def main() -> None:
    """Print the table, and write the rows as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = rows()
    print("| trace | hits | model | node | phase | means | moments | and p99 prompt | change |")
    print("|---|---|---|---|---|---:|---:|---:|---:|")
    for row in found:
        rates = " | ".join(shown(value) for value in (row.means, row.moments, row.whole))
        print(
            f"| {row.trace} | {row.hit_rate:.0%} | {row.model} | {row.node} | {row.phase} | {rates} | {change(row)} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
