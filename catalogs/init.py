"""The starter folder of ``coral init``: a commented scenario and its CSV files, which validate as they are."""

from __future__ import annotations

import os
from pathlib import Path

from catalogs.errors import CoralError
from catalogs.tables import DATA_DIR
from catalogs.texts import is_regular_file, write_text

_SCENARIO = """\
# A scenario of your own. `coral validate scenario.yaml` lists every fault at once; `coral plan --scenario scenario.yaml`
# plans it. Paths are relative to this file. Times are UTC, prices USD per hour for the whole machine.
schema: 1
id: my-prod                       # lower case; plans are stored under this name
price_as_of: 2025-05-01           # prices nearest to this day are used; farther than 31 days gives a warning

offers:
  regions: [aws/eu-central-1, own/frankfurt]   # provider/region; those of offers.csv work too
  markets: [on_demand, owned]     # on_demand, spot (see policy.max_spot_share), owned; side by side, each at its price
  file: offers.csv                # your own prices and machines; they replace the catalog's for the same machine
  discount_pct: {aws: 12}         # your negotiated discount
  exclude_gpus: [T4, V100-16GB-SXM2]   # or include_gpus: [...], or node_configs: [L40Sx1, ...]
  # use_catalog: false            # only what is in offers.csv
  # only_sold: false              # also counts of GPUs that nobody sells, at derived prices (marked)

models:
  - model: qwen3-8b               # a name or alias of the catalog ...
    # weight_dtype: bf16          # default: the format the weights are published in
    # kv_dtype: bf16
    # demand_req_per_s: 10        # mean requests per second; not needed with a demand file; 0 releases, null holds
    # Tokens per request: a trace of the catalog, {file: mytrace.csv} (input_tokens, output_tokens; Azure, BurstGPT and
    # Mooncake files too), or {input: 1155, output: 211} for every request. Means alone give rates that are too high.
    lengths: {trace: azure-conv-2023}
    # prefix_hit_rate: 0.3        # share of prompt tokens found in the prefix cache
    slo: {ttft_ms: 1000, tpot_ms: 50, percentile: 99}   # milliseconds
    regions: [aws/eu-central-1]   # default: all of offers.regions
    min_regions: 1
    # min_replicas: 2             # instances of each phase in every region that serves it
    # n_plus_one: true            # a region goes on serving when a phase's largest instance there is lost
    # max_spot_share: 0.5         # of what a region serves, at most so much on spot; default: the policy's
    # node_configs: [L40S, L4x4]  # the only nodes it may use (a GPU = all its counts); exclude_node_configs: those it may not
    # weight: 2                   # counts so much where demand cannot be met and shortage is priority
  - model: my-org/my-8b-chat      # ... or a model of your own, from its Hugging Face config.json
    config: models/my-8b-chat.json
    lengths: {input: 621, output: 126}
    slo: {ttft_ms: 1500, tpot_ms: 80, percentile: 95}

library: {n_max: 3, rho: 12, mode: cycle}      # nodes per instance; GPU memory per instance in model sizes

policy:
  shortage: uniform               # or priority (by each model's weight)
  # budget_usd_per_h: 40          # the rent may not exceed it; where it is too little, the most is served for it
  # max_spot_share: 0.5           # with spot in offers.markets: at most so much of what a region serves of a model
  # spot_interrupt_per_h: 0.05    # how often a spot machine is taken back, where offers.csv does not say (interrupt_per_h)
  # spot_recovery_minutes: 6      # how long its instance is then down (default: init_minutes)
  # n_plus_one: true              # for every model that does not say otherwise
  # cross_region_kv: {usd_per_gb: 0.02, gbit_per_s: 10}   # prefill in one region, decode in another; per GB that leaves one
  # safety_percentile: 90         # plan with rates that hold in so many % of cases, given their errors
  # measured_only: true           # use only rates that are measured or fitted to measurements
  # launchable_only: true         # use only templates that stock engines launch; the plan says what that costs
  headroom: auto                  # share of the rates planned with, by simulation; or start, or {prefill: 0.8, decode: 0.9}
  demand_percentile: 95           # plan for this percentile of one-minute request counts; null plans for the mean
  init_minutes: 6                 # a new node serves nothing for so long ...
  interval_minutes: 60            # ... of the time between two plans
  hysteresis_pct: 1               # the plan stays while it meets demand and no other saves more than so many %; null = never
  fleet_max_age_minutes: 120      # a fleet seen longer ago (`coral ingest fleet`) does not tell what runs
  # What waits for `coral plans approve`: rent up by more than so many %, capacity down by more than so many % beyond demand,
  # demand moved by more than this factor. null = never
  guards: {cost_rise_pct: 20, capacity_fall_pct: 30, demand_factor: 5}
  # When `coral alerts` tells somebody: a gap above so many %, a fleet that differs from the plan for so many minutes
  alerts: {gap_pct: 1, drift_minutes: 30}

availability: {file: availability.csv, default_nodes: 8}   # nodes to assume where nothing is known
quotas: {file: quotas.csv}
demand: {file: demand.csv}
# Instead of files, what `coral ingest` takes in: offers.feed, availability.feed, demand.feed: lake; and how old it may be:
# feeds: {prices_hours: 48, availability_minutes: 120, demand_minutes: 180, on_stale: warn}      # or hold the last plan
# efficiency: {file: efficiency.csv}    # factors of your own GPUs; `coral profiles fit --out efficiency.csv` makes them
# profiles: {file: measured.csv}        # node rates that you measured; `coral profiles add rates.csv` checks and adds them
# calibration: {file: calibration.csv}  # de-ratings from `vllm bench serve`; `coral profiles add bench.json` adds them
"""

_OFFERS = """\
# Your own prices and machines. The price is of the WHOLE machine per hour, not per GPU. GPU ids as in the catalog.
region,node_config,instance_type,market,price_usd_per_h,interrupt_per_h,network_gbit_per_s,as_of,source
aws/eu-central-1,L40Sx1,g6e.xlarge,on_demand,2.10,,,2025-05-01,my contract
own/frankfurt,L40Sx4,rack-7,owned,3.20,,100,2025-05-01,written off over three years
"""

_AVAILABILITY = """\
# Nodes that can be had. Blank nodes = unknown (quota or default_nodes counts, labelled assumed); 0 = none.
region,node_config,market,observed_at,nodes
aws/eu-central-1,L40Sx1,on_demand,2025-05-01T08:00:00Z,12
aws/eu-central-1,L40Sx4,on_demand,2025-05-01T08:00:00Z,
own/frankfurt,L40Sx4,owned,2025-05-01T08:00:00Z,2
"""

_QUOTAS = """\
# Limits of your accounts in the provider's unit: vcpu, gpu or node of a family (AWS: G and VT, P; or a GPU id).
provider,region,family,unit,limit
aws,aws/eu-central-1,G and VT,vcpu,768
"""

_DEMAND = """\
# Mean requests per second per planning window; the latest window that has begun counts.
# Blank = unknown (the last plan is held), 0 = none (nodes are released).
model,window_start,demand_req_per_s
qwen3-8b,2025-05-01T08:00:00Z,6
qwen3-8b,2025-05-01T09:00:00Z,8
my-org/my-8b-chat,2025-05-01T09:00:00Z,4
"""

_FLEET = """\
# What runs today, for `coral compare --fleet fleet.csv`: machines with the model, phase and layout they serve.
region,instance_type,count,model,phase,tp
aws/eu-central-1,g6e.xlarge,4,qwen3-8b,prefill,1
aws/eu-central-1,g6e.xlarge,4,qwen3-8b,decode,1
aws/eu-central-1,g6e.xlarge,2,my-org/my-8b-chat,prefill,1
aws/eu-central-1,g6e.xlarge,2,my-org/my-8b-chat,decode,1
"""

_RATES = """\
# Node rates that you measured, for `coral profiles add rates.csv`, which shows them beside the modelled ones and adds them to
# the scenario. THE FIGURES ARE MADE UP: put in yours.
node_config,model,phase,layers,position,stages,cycle_ms,throughput_tok_per_s,tp,pp,replicas,rel_error,as_of,source
L40Sx4,qwen3-8b,decode,36,only,1,,4000,1,1,4,0.05,2025-05-01,an example
"""

_N_REQUESTS, _SPAN_S = 120, 600


def _trace() -> str:
    """A made-up request trace of ten minutes: two requests close to one another, then a pause; prompts and answers vary."""
    lines = ["timestamp_s,input_tokens,output_tokens"]
    for i in range(_N_REQUESTS):
        at_s = (i // 2) * (2 * _SPAN_S / _N_REQUESTS) + 0.5 * (i % 2)
        lines.append(f"{at_s:g},{200 + i * 37 % 1400},{40 + i * 29 % 260}")
    return "\n".join(lines) + "\n"


_README = """\
# A starter scenario

| file | what it holds |
|---|---|
| `scenario.yaml` | models, SLOs, regions, policy; every key is explained in it |
| `offers.csv` | your own prices and machines |
| `availability.csv` | nodes that can be had |
| `quotas.csv` | limits of your accounts |
| `demand.csv` | mean request rates per window |
| `fleet.csv` | what runs today, for `coral compare --fleet fleet.csv` |
| `rates.csv` | rates that you measured, for `coral profiles add rates.csv` (made-up figures) |
| `trace.csv` | a request trace (made up), for `coral simulate --trace`, `coral ingest demand`, `lengths: {file: trace.csv}` |
| `models/my-8b-chat.json` | the config.json of a model of your own (an example of 8 billion parameters) |

`coral validate .` lists every fault at once; `coral plan --scenario scenario.yaml` makes the plan.
"""


def starter_files() -> dict[str, str]:
    """Path below the folder -> text of every starter file."""
    return {
        "scenario.yaml": _SCENARIO,
        "offers.csv": _OFFERS,
        "availability.csv": _AVAILABILITY,
        "quotas.csv": _QUOTAS,
        "demand.csv": _DEMAND,
        "fleet.csv": _FLEET,
        "rates.csv": _RATES,
        "trace.csv": _trace(),
        "models/my-8b-chat.json": (DATA_DIR / "models" / "Qwen__Qwen3-8B.json").read_text(encoding="utf-8"),
        "README.md": _README,
    }


def write_starter(folder: str | Path) -> list[Path]:
    """Write the starter files into ``folder`` (made if absent) and return their paths.

    Raises CoralError where one of them is already there (then nothing is written), or where the folder cannot be written.
    """
    root = Path(folder)
    files = starter_files()
    if is_regular_file(root):
        raise CoralError(f"{root} is a file", remedy="name a folder")
    there = [name for name in files if os.path.lexists(root / name)]
    if there:
        raise CoralError(f"{root} already holds {', '.join(there)}", remedy="name another folder; nothing was written")
    written = []
    for name, text in files.items():
        path = root / name
        write_text(path, text)
        written.append(path)
    return written
