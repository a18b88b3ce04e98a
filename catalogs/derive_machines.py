"""Machine types and node configurations, from the raw machine list."""

from __future__ import annotations

from typing import Any

from catalogs.gpus import GpuNames
from catalogs.ids import node_config_id
from catalogs.offers import per_gpu_at_count

Row = dict[str, Any]

MACHINES_AS_OF = "2026-07-30"
GRID_COUNTS = (1, 2, 4, 8)
# Only providers whose prices have a date here; RunPod and Lambda feeds are undated and come with the price feeds.
PROVIDERS = ("aws", "gcp")

_GCP_QUOTA = {
    "L4": "NVIDIA_L4_GPUS",
    "A100-40GB-SXM": "NVIDIA_A100_GPUS",
    "A100-80GB-SXM": "NVIDIA_A100_80GB_GPUS",
    "H100-SXM": "NVIDIA_H100_GPUS",
    "H200-SXM": "NVIDIA_H200_GPUS",
    "B200-SXM": "NVIDIA_B200_GPUS",
}


def instance_type_rows(raw: list[dict[str, str]], changes: list[dict[str, str]], names: GpuNames) -> list[Row]:
    """Machine types that are sold, with the date from which the us-east-1 price log knows those that are new."""
    first_seen: dict[str, str] = {}
    for line in changes:
        day = line["generated_at"][:10]
        first_seen[line["instance_type"]] = min(day, first_seen.get(line["instance_type"], day))
    rows = []
    for line in raw:
        if line["sold"] != "1" or line["cloud"] not in PROVIDERS:
            continue
        gpu = names.encode(line["gpu"], scope="skypilot")
        family, unit = _quota(line["cloud"], line["instance_type"], gpu)
        since = first_seen.get(line["instance_type"], "") if line["cloud"] == "aws" else ""
        rows.append(
            {
                "provider": line["cloud"],
                "instance_type": line["instance_type"],
                "gpu": gpu,
                "gpu_count": int(line["gpu_count"]),
                "link": line["inter_gpu_link"],
                "link_gb_per_s": _number(line["inter_gpu_gbps_bidir"]),
                "network_gbit_per_s": _number(line["network_gbps"]),
                "is_cheapest_for_count": {"1.0": True, "0.0": False}.get(line["cheapest_for_count"]),
                "quota_family": family,
                "quota_unit": unit,
                "sold_since": since or None,
                "note": line["note"] or None,
                "source": "public vendor figures, Karpenter, Cyclenerd pricing",
                "as_of": MACHINES_AS_OF,
            }
        )
    return sorted(rows, key=lambda row: (row["provider"], row["instance_type"]))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _quota(provider: str, instance_type: str, gpu: str) -> tuple[str | None, str | None]:
    """AWS limits vCPUs of the G/VT and of the P machines, GCP limits GPUs of a type."""
    if provider == "aws":
        return ("P" if instance_type.startswith("p") else "G and VT"), "vcpu"
    return _GCP_QUOTA.get(gpu), "gpu"


def node_config_rows(gpus: list[Row], machines: list[Row]) -> list[Row]:
    """Every GPU x {1, 2, 4, 8} and every other count that is sold. Counts nobody sells are marked derived; their network
    rate is interpolated per GPU between the sold counts (blank where no count is sold)."""
    rows = []
    for gpu in gpus:
        sold = {m["gpu_count"] for m in machines if m["gpu"] == gpu["gpu"]}
        network = {count: _network(machines, gpu["gpu"], count) for count in sold}
        known = {count: rate for count, rate in network.items() if rate is not None}
        for count in sorted(sold | set(GRID_COUNTS)):
            is_sold = count in sold
            rate = network[count] if is_sold else per_gpu_at_count(known, count) if known else None
            rows.append(
                {
                    "node_config": node_config_id(gpu["gpu"], count),
                    "gpu": gpu["gpu"],
                    "gpu_count": count,
                    "memory_gib": gpu["memory_gib"] * count,
                    "link": _link(gpu["link"], count),
                    "network_gbit_per_s": rate,
                    "is_derived": not is_sold,
                    "source": _source(is_sold, known),
                    "as_of": MACHINES_AS_OF,
                }
            )
    return rows


def _source(is_sold: bool, known: dict[int, float]) -> str:
    if is_sold:
        return "instance_types.csv: cheapest machine of each provider"
    if known:
        return f"not sold; network interpolated per GPU from x{', x'.join(map(str, sorted(known)))}"
    return "not sold by a provider in instance_types.csv"


def _link(link: str, count: int) -> str:
    """Link in a node. A bridge joins two cards only; larger nodes of such cards talk over PCIe."""
    if count == 1:
        return "none"
    if link == "none" or ("bridge" in link and count > 2):
        return "pcie"
    return "nvlink"


def _network(machines: list[Row], gpu: str, count: int) -> float | None:
    """Smallest network rate over the cheapest machine of each provider that sells this count."""
    rates = []
    for provider in {machine["provider"] for machine in machines}:
        own = [m for m in machines if (m["provider"], m["gpu"], m["gpu_count"]) == (provider, gpu, count)]
        cheapest = [m for m in own if m["is_cheapest_for_count"]] or own
        rates += [m["network_gbit_per_s"] for m in cheapest if m["network_gbit_per_s"] is not None]
    return min(rates, default=None)
