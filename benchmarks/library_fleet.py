"""A fleet as :mod:`fleet_instances` makes one, of templates that ``coral build`` solves.

    python benchmarks/library_fleet.py DIR            # builds its libraries in DIR, once: about seven minutes
    python benchmarks/allocation.py library-fleet --lake DIR

46 models of two phases: the catalog's, each with up to three kinds of traffic and SLOs; ten regions of AWS and Google Cloud;
ten GPUs in 41 configurations; list prices of one date; combinations of up to three nodes, of which a workload has 16 to 3,142
on its frontier (728 at the median). Prices, demands and supply of an instance are drawn as there, but a model's demand is the
least of what its phases draw.

Such a fleet is harder than one made by a law: a few instances of the largest nodes, of which a region has one to five, serve
the large models.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from allocation_instances import least_scale

from catalogs.catalog import load_catalog
from catalogs.types import Basis
from tasks.allocation.types import AllocationProblem, ModelDemand, WorkloadCandidates

GPUS = (
    *("T4", "L4", "A10G", "V100-16GB-SXM2", "V100-32GB-SXM2"),
    *("A100-40GB-SXM", "A100-80GB-SXM", "L40S", "H100-SXM", "H200-SXM"),
)
REGIONS = (
    *("aws/us-east-1", "aws/us-east-2", "aws/us-west-2", "aws/ap-northeast-2", "aws/eu-central-1"),
    *("gcp/us-central1", "gcp/us-east4", "gcp/us-west1", "gcp/europe-west4", "gcp/asia-southeast1"),
)
# Prompt and output tokens (means of the Azure traces and of BurstGPT, as in the shipped scenarios); SLOs in ms (time to first
# token, time per token) of all models, and of the large ones.
TRAFFIC = ((1155, 211), (2048, 28), (621, 126))
SLOS = (((1200, 50), (2000, 100)), ((900, 80), (3000, 120)), ((1600, 30), (1500, 60)))
LARGE = (
    *("Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "meta-llama/Meta-Llama-3.1-405B"),
    *("openai/gpt-oss-120b", "zai-org/GLM-4.5"),
)
TOO_LARGE = ("moonshotai/Kimi-K2-Instruct",)  # for three nodes
MODELS, TEMPLATES, NODES = 46, 4000, 3
_LEAST_SHARE, _MOST_SHARE = (
    1 / 60,
    1 / 4,
)  # of its demand that an instance of the median template serves, as in the other fleet


def scenario(kind: int) -> dict[str, object]:
    """A scenario of the catalog's models with one kind of traffic."""
    tokens, slos = TRAFFIC[kind], SLOS[kind]
    models = []
    for name in sorted(set(load_catalog().models) - set(TOO_LARGE)):
        ttft_ms, tpot_ms = slos[name in LARGE]
        models.append(
            {
                "model": name,
                "weight_dtype": "bf16",
                "kv_dtype": "bf16",
                "serving": "disaggregated",
                "demand_req_per_s": 25,
                "lengths": {"input": tokens[0], "output": tokens[1]},
                "slo": {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "percentile": 99},
            }
        )
    return {
        "schema": 1,
        "id": f"library-fleet-{kind}",
        "price_as_of": "2025-05-01",
        "offers": {
            "regions": list(REGIONS),
            "markets": ["on_demand"],
            "only_sold": False,
            "other_dates": "drop",
            "include_gpus": list(GPUS),
        },
        "models": models,
        "library": {"n_max": NODES, "rho": 12, "mode": "cycle"},
        "policy": {
            "shortage": "uniform",
            "headroom": "auto",
            "demand_percentile": 95,
            "init_minutes": 6,
            "interval_minutes": 60,
        },
        "availability": {"default_nodes": 32},
    }


def scenario_file(folder: Path, kind: int) -> Path:
    """Where a kind's scenario lies in the benchmark's folder."""
    return folder / "scenarios" / f"library-fleet-{kind}" / "scenario.yaml"


def build(folder: Path) -> None:
    """Write the scenarios and build their libraries; raises CalledProcessError where a build fails."""
    for kind in range(len(TRAFFIC)):
        path = scenario_file(folder, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(scenario(kind), sort_keys=False))
        start = "from flows.start import main; raise SystemExit(main())"
        options = ["build", "--scenario", str(path), "--lake", str(folder / "lake")]
        subprocess.run([sys.executable, "-c", start, *options], check=True)


@functools.cache
def library_problem(scenario: str, lake: Path) -> AllocationProblem:
    """The scenario's own online problem over the library in the lake, with nothing running."""
    from catalogs.scenario import load_scenario
    from flows.build import registered_library
    from flows.planning_inputs import planning_inputs
    from flows.settings import BuildSettings, lake_root_of
    from warehouse.connect import Lake

    loaded = load_scenario(scenario)
    settings = BuildSettings(scenario=scenario, lake_root=lake_root_of(lake))
    with Lake.open(settings.lake_root, read_only=True) as opened:
        return planning_inputs(loaded, opened, registered_library(settings, loaded)).problem


@functools.cache
def library(folder: Path) -> AllocationProblem:
    """All models with their templates, prices and regions; supply and demand are the scenarios' own."""
    candidates: list[WorkloadCandidates] = []
    demands: list[ModelDemand] = []
    for kind in range(len(TRAFFIC)):
        problem = library_problem(str(scenario_file(folder, kind)), folder / "lake")
        candidates += [_named(c, kind) for c in problem.candidates]
        demands += [
            replace(d, model=f"{d.model}~{kind}", workload_ids=tuple(f"{w}~{kind}" for w in d.workload_ids))
            for d in problem.demands
        ]
    return replace(problem, candidates=tuple(candidates), demands=tuple(demands[:MODELS]), quotas=())


def _named(c: WorkloadCandidates, kind: int) -> WorkloadCandidates:
    """The candidates under names that hold the kind of traffic."""
    return replace(
        c,
        workload_id=f"{c.workload_id}~{kind}",
        alias=f"{c.alias}~{kind}",
        model=f"{c.model}~{kind}",
        template_ids=tuple(f"{template}~{kind}" for template in c.template_ids),
    )


def make_library_fleet(folder: Path, seed: int, supplies: Sequence[float]) -> list[AllocationProblem]:
    """One problem per entry of ``supplies``, as :func:`fleet_instances.make_fleet`."""
    whole = library(folder)
    rng = np.random.default_rng(seed)
    price = whole.price_usd_per_h * rng.uniform(0.95, 1.1, whole.price_usd_per_h.shape)
    by_id = {c.workload_id: c for c in whole.candidates}
    candidates, demands = [], []
    for demand in whole.demands:
        rates = []
        for workload in demand.workload_ids:
            c = _some(by_id[workload], rng)
            candidates.append(c)
            share = float(np.exp(rng.uniform(np.log(_LEAST_SHARE), np.log(_MOST_SHARE))))
            rates.append(float(np.median(c.throughput_mtok_per_s)) / 1000 * c.headroom / c.tokens_per_request / share)
        demands.append(replace(demand, planned_req_per_s=min(rates)))
    sizes = np.array([int(config.rpartition("x")[2]) for config in whole.node_configs])
    mix = rng.gamma(1.5, 1.0, price.shape) / sizes**0.7
    mix[np.isnan(price)] = 0.0
    need = mix * least_scale(candidates, demands, mix)
    drawn = replace(
        whole,
        price_usd_per_h=price,
        capacity_basis={(r, c): Basis.ASSUMED for r in whole.regions for c in whole.node_configs},
        candidates=tuple(candidates),
        demands=tuple(demands),
        init_share=0.1,
    )
    return [replace(drawn, capacity_nodes=np.ceil(need * supply).astype(np.int64)) for supply in supplies]


def _some(c: WorkloadCandidates, rng: np.random.Generator) -> WorkloadCandidates:
    """At most as many templates as the other fleet has of a workload."""
    rows = np.sort(rng.permutation(len(c.template_ids))[:TEMPLATES])
    return replace(
        c,
        template_ids=tuple(c.template_ids[row] for row in rows),
        counts=c.counts[rows],
        throughput_mtok_per_s=c.throughput_mtok_per_s[rows],
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
