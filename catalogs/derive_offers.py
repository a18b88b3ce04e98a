"""Dated offers, from the raw price files.

How the AWS files are dated. ``aws_vms.csv`` carries no date, but p5en.48xlarge stands at 84.80 USD/h in us-east-1, and
the dated log of us-east-1 changes has that price from 2025-03-31 until the cut of 2025-06-23 (63.296). So its prices held
on every day between the two; the shipped scenarios' 2025-05-01 is one. ``aws_vms_v8_subset.csv`` holds p5.4xlarge, which
the log knows from 2025-08-25 on, the latest first date of any price in it. :func:`check_dates` asserts both.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from catalogs.gpus import GpuNames
from catalogs.ids import node_config_id

Row = dict[str, Any]
Machines = Mapping[tuple[str, str], Row]

AWS_AS_OF = "2025-05-01"
AWS_V8_AS_OF = "2025-08-25"
# The change log runs to July 2026 without another change: its last prices hold at least to the month's first day.
AWS_LOG_AS_OF = "2026-07-01"
GCP_AS_OF = "2026-07-30"
GCP_SNAPSHOT_NEAR = datetime(2025, 5, 1, tzinfo=UTC)

_AWS_SOURCE = "skypilot-catalog @001367d2 (dated by the p5en price: 2025-03-31 to 2025-06-23)"
_AWS_V8_SOURCE = "skypilot-catalog @e385a0d3 (not before 2025-08-25)"
_AWS_LOG_SOURCE = "karpenter-provider-aws us-east-1 price log, to 2026-07"
_GCP_SOURCE = "Cyclenerd pricing.yml @fd66b26f"


def offer_rows(prices: Path, names: GpuNames, machines: Machines) -> list[Row]:
    """All offers with a price, sorted by id. Zones collapse to one row: on-demand prices agree over zones (checked),
    spot takes the lowest zone and says of how many. A blank price makes no offer: it is not zero."""
    changes = _read(prices / "aws_us-east-1_ondemand_changes.csv")
    aws, aws_v8 = _read(prices / "aws_vms.csv"), _read(prices / "aws_vms_v8_subset.csv")
    check_dates(changes, aws, aws_v8)
    rows = [
        *_from_skypilot("aws", aws, names, AWS_AS_OF, _AWS_SOURCE),
        *_from_skypilot("aws", aws_v8, names, AWS_V8_AS_OF, _AWS_V8_SOURCE),
        *_from_skypilot("gcp", _read(prices / "gcp_vms.csv"), names, GCP_AS_OF, _GCP_SOURCE),
        *_from_history(prices / "gcp_price_history.parquet", names),
        *_from_log(changes, machines),
    ]
    return sorted(rows, key=lambda row: row["offer_id"])


def check_dates(changes: list[Row], aws: list[Row], aws_v8: list[Row]) -> None:
    """Assert that the dates above are what the log proves. Raises ValueError where a newer file no longer agrees."""
    spans: dict[str, list[tuple[str, float]]] = {}
    for line in sorted(changes, key=lambda change: change["generated_at"]):
        spans.setdefault(line["instance_type"], []).append((line["generated_at"][:10], float(line["price_usd_hr"])))

    def price_on(instance_type: str, day: str) -> float | None:
        held = [price for since, price in spans.get(instance_type, []) if since <= day]
        return held[-1] if held else None

    for lines, day in ((aws, AWS_AS_OF), (aws_v8, AWS_V8_AS_OF)):
        for line in lines:
            known = price_on(line["InstanceType"], day)
            if line["Region"] != "us-east-1" or not line["Price"]:
                continue
            if known is None or abs(known - float(line["Price"])) > 1e-6:
                raise ValueError(
                    f"{line['InstanceType']} at {line['Price']} was not the us-east-1 price on {day} ({known})"
                )


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def _from_skypilot(provider: str, lines: list[Row], names: GpuNames, as_of: str, source: str) -> Iterable[Row]:
    groups: dict[tuple[str, str, str, int], list[Row]] = {}
    for line in lines:
        gpu = names.encode(line["AcceleratorName"], scope="skypilot", instance_type=line["InstanceType"])
        key = (line["Region"], line["InstanceType"], gpu, int(float(line["AcceleratorCount"])))
        groups.setdefault(key, []).append(line)
    for (region, instance_type, gpu, count), zones in groups.items():
        offer = {"provider": provider, "region": f"{provider}/{region}", "instance_type": instance_type, "as_of": as_of}
        offer["node_config"] = node_config_id(gpu, count)
        asked = {float(zone["Price"]) for zone in zones if zone["Price"]}
        if len(asked) > 1:
            raise ValueError(f"{instance_type} in {region} has several on-demand prices: {sorted(asked)}")
        if asked:
            yield _offer(offer, "on_demand", asked.pop(), source)
        spot = [float(zone["SpotPrice"]) for zone in zones if zone["SpotPrice"]]
        if spot:
            where = f"; lowest of {len(spot)} zones" if len(spot) > 1 else ""
            yield _offer(offer, "spot", min(spot), source + where)


def _offer(base: Row, market: str, price: float, source: str) -> Row:
    row = {**base, "market": market, "price_usd_per_h": round(price, 6), "source": source, "is_derived": False}
    row["offer_id"] = offer_id(base["region"], base["instance_type"], market, base["as_of"])
    return row | {"interrupt_per_h": None}


def offer_id(region: str, instance_type: str, market: str, as_of: str | date) -> str:
    """``aws/us-east-2/g6e.xlarge/on_demand/2025-05-01``."""
    return f"{region}/{instance_type}/{market}/{as_of}"


def _from_history(path: Path, names: GpuNames) -> Iterable[Row]:
    from pyarrow import compute, parquet

    table = parquet.read_table(path)
    nearest = min(set(table["snapshot_time"].to_pylist()), key=lambda moment: (abs(moment - GCP_SNAPSHOT_NEAR), moment))
    day = nearest.date().isoformat()
    for line in table.filter(compute.equal(table["snapshot_time"], nearest)).to_pylist():
        gpu = names.encode(line["gpu"], scope="skypilot")
        offer = {
            "provider": "gcp",
            "region": f"gcp/{line['region']}",
            "instance_type": line["instance_type"],
            "as_of": day,
        }
        offer["node_config"] = node_config_id(gpu, line["gpu_count"])
        source = f"Cyclenerd pricing.yml history @{line['commit']}"
        for market, column in (("on_demand", "price_usd_hr"), ("spot", "spot_usd_hr")):
            if line[column] is not None:
                yield _offer(offer, market, line[column], source)


def _from_log(changes: list[Row], machines: Machines) -> Iterable[Row]:
    latest: dict[str, Row] = {}
    for line in sorted(changes, key=lambda change: change["generated_at"]):
        latest[line["instance_type"]] = line
    for instance_type, line in latest.items():
        machine = machines.get(("aws", instance_type))
        if machine is None:
            continue
        offer = {"provider": "aws", "region": "aws/us-east-1", "instance_type": instance_type, "as_of": AWS_LOG_AS_OF}
        offer["node_config"] = node_config_id(machine["gpu"], machine["gpu_count"])
        yield _offer(
            offer, "on_demand", float(line["price_usd_hr"]), f"{_AWS_LOG_SOURCE}; since {line['generated_at'][:10]}"
        )
