"""Price files as providers and people write them: each row accepted or set aside, and implausible prices held."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from catalogs import load_catalog
from catalogs.derive import raw_data_dir
from catalogs.errors import CoralError, InputError, UnknownNameError
from catalogs.lake_feeds import FeedPrice, PriceSnapshot
from catalogs.price_checks import judge_prices
from catalogs.price_feeds import PriceFile, PriceRow, read_price_file
from catalogs.types import Market, Offer

RAW = raw_data_dir() / "prices"
needs_raw = pytest.mark.skipif(not RAW.is_dir(), reason="raw data folder ../shared/data is absent")
NOW = datetime(2026, 7, 30, 12, tzinfo=UTC)
EAST = "aws/us-east-2"
# Column orders, quirks and gaps as in the catalogs of the four providers.
AWS = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
g6e.xlarge,L40S,1.0,4.0,32.0,"{'Gpus': [{'Name': 'L40S'}]}",1.861,0.9,us-east-2,use2-az1,x86_64
g6e.xlarge,L40S,1.0,4.0,32.0,"{'Gpus': [{'Name': 'L40S'}]}",1.861,0.7,us-east-2,use2-az2,x86_64
p4d.24xlarge,A100,8.0,96.0,1152.0,,,12.5,us-east-2,use2-az1,x86_64
p4de.24xlarge,A100-80GB,8.0,96.0,1152.0,,27.44705,,us-east-2,use2-az1,x86_64
"""
RUNPOD = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Price,SpotPrice
1x_A100-80GB_SECURE,8.0,117.0,A100-80GB,1.0,A100_80GB,US,1.69,0.89
1x_L40_SECURE,4.0,48.0,L40,1.0,L40,US,1.14,0.69
"""
LAMBDA = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
gpu_1x_h100_pcie,H100,1.0,26.0,200.0,3.29,us-west-2,"{'TotalGpuMemoryInMiB': 81920}",
gpu_8x_h100_sxm5,H100,8.0,208.0,1800.0,27.52,us-west-2,"{'TotalGpuMemoryInMiB': 81920}",
"""
OWN = """\
region,node_config,instance_type,market,price_usd_per_h,as_of,network_gbit_per_s
own/dc1,L40Sx4,rack-7,owned,0,2026-07-01,100
aws/us-east-2,L40Sx1,g6e.xlarge,on_demand,1.7,2026-06-01,
aws/us-east-2,L40Sx1,g6e.xlarge,on_demand,1.6,2026-07-01,
"""


def read(tmp_path: Path, text: str, name: str = "aws_vms.csv", provider: str | None = None) -> PriceFile:
    path = tmp_path / name
    path.write_text(text)
    return read_price_file(path, load_catalog(), provider, NOW, NOW)


def prices(found: PriceFile) -> dict[tuple[str, str, str], float]:
    offers = [row.price.offer for row in found.rows]
    return {(o.instance_type, o.node_config, o.market.value): o.price_usd_per_h for o in offers}


def test_zones_become_one_offer_and_a_blank_price_none(tmp_path: Path) -> None:
    found = read(tmp_path, AWS)
    assert (found.rows_seen, found.rejects) == (4, ())
    assert prices(found) == {
        ("g6e.xlarge", "L40Sx1", "on_demand"): 1.861,
        ("g6e.xlarge", "L40Sx1", "spot"): 0.7,
        ("p4d.24xlarge", "A100-40GB-SXMx8", "spot"): 12.5,
        ("p4de.24xlarge", "A100-80GB-SXMx8", "on_demand"): 27.44705,
    }
    assert all(row.price.is_list and row.price.offer.region == EAST for row in found.rows)


def test_the_same_name_is_another_card_at_another_provider(tmp_path: Path) -> None:
    runpod = read(tmp_path, RUNPOD, "runpod-vms.csv")
    assert {config for _, config, _ in prices(runpod)} == {"A100-80GB-PCIex1"}
    (unknown,) = runpod.rejects
    assert (unknown.row, unknown.column, unknown.value) == (2, "AcceleratorName", "L40")
    assert "another card than L40S" in unknown.reason
    assert runpod.unreadable == {("runpod/US", "1x_L40_SECURE")}
    lambda_ = prices(read(tmp_path, LAMBDA, "vms.csv", "lambda"))
    assert lambda_ == {
        ("gpu_1x_h100_pcie", "H100-PCIex1", "on_demand"): 3.29,
        ("gpu_8x_h100_sxm5", "H100-SXMx8", "on_demand"): 27.52,
    }


def test_the_provider_is_told_by_option_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "aws").mkdir()
    assert read(tmp_path / "aws", AWS, "vms.csv").rows[0].price.offer.provider == "aws"
    with pytest.raises(CoralError, match="--provider"):
        read(tmp_path, AWS, "laws_vms.csv")
    with pytest.raises(CoralError, match="--provider"):
        read(tmp_path, AWS, "aws_or_gcp.csv")
    with pytest.raises(UnknownNameError, match="azure"):
        read(tmp_path, AWS, "vms.csv", "azure")


HEAD = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
ROW = {
    "InstanceType": "g6e.xlarge",
    "AcceleratorName": "L40S",
    "AcceleratorCount": "1",
    "Price": "1.861",
    "SpotPrice": "0.9",
    "Region": "us-east-2",
}
FAULTS = [
    ("Price", "0", "is zero"),
    ("Price", "-1", "is negative"),
    ("Price", "NaN", "is not a value"),
    ("Price", "inf", "is not finite"),
    ("Price", "$1.86", "is not a plain number"),
    ("Price", "1861000", "is too high"),
    ("SpotPrice", "free", "is not a number"),
    ("AcceleratorCount", "0.5", "is not a whole number"),
    ("AcceleratorCount", "", "is blank or 0: how many GPUs?"),
    ("AcceleratorName", "", "is blank: a machine without GPUs"),
    ("AcceleratorName", "L40S-48", "unknown GPU"),
    ("AcceleratorName", "NVIDIA", "'NVIDIA' names a maker, not a GPU"),
    ("InstanceType", "", "is blank: a price of the GPU without a machine"),
    ("Region", "", "is blank"),
    ("Region", "aws/us-east-2", "has a slash"),
]


@pytest.mark.parametrize(("column", "value", "reason"), FAULTS)
def test_a_bad_row_is_set_aside_and_the_others_stay(tmp_path: Path, column: str, value: str, reason: str) -> None:
    bad = {**ROW, "InstanceType": "x9.large", column: value}
    found = read(tmp_path, HEAD + "\n".join(",".join(row.values()) for row in (ROW, bad)) + "\n")
    (fault,) = found.rejects
    assert fault.row == 2
    assert fault.reason == reason
    assert fault.remedy
    assert {row.row for row in found.rows} == {1}


def test_a_row_that_contradicts_another_is_set_aside(tmp_path: Path) -> None:
    rows = [ROW, ROW, {**ROW, "Price": "9"}, {**ROW, "Price": "", "SpotPrice": ""}]
    found = read(tmp_path, HEAD + "\n".join(",".join(row.values()) for row in rows) + "\n")
    assert [(f.row, f.column) for f in found.rejects] == [(3, "Price"), (4, "Price")]
    assert "contradicts row 1" in found.rejects[0].reason
    assert prices(found)["g6e.xlarge", "L40Sx1", "on_demand"] == 1.861


# As SkyPilot's catalog of GCP has it: machines without their GPUs, and GPUs without a machine. Prices made up.
GCP = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.75,0.25
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-b,0.75,0.25
a2-highgpu-2g,24.0,170.0,,,,us-central1,us-central1-a,1.5,
g2-standard-4,4.0,16.0,,,,us-central1,us-central1-a,0.15,0.05
g2-standard-8,8.0,32.0,,,,us-central1,us-central1-a,0.3,0.1
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.5,
a3-megagpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.75,
n1-highmem-8,8.0,52.0,,,,us-central1,us-central1-a,0.5,0.1
,,,A100,1.0,,us-central1,us-central1-a,3.0,1.0
,,,A100,1.0,,us-central1,us-central1-b,2.5,1.5
,,,L4,1.0,,us-central1,us-central1-a,0.5,
,,,L4,1.0,,us-central1,us-central1-a,0.6,
,,,H100,8.0,,us-central1,us-central1-a,80.0,
,,,H100-MEGA,8.0,,us-central1,us-central1-a,85.0,
,,,T4,1.0,,us-central1,us-central1-a,0.35,
,,,tpu-v5p-8,1,tpu-v5p-8,us-central1,us-central1-a,16.8,3.4
"""


def test_a_machine_and_its_gpus_that_are_priced_apart_are_one_offer(tmp_path: Path) -> None:
    found = read(tmp_path, GCP, "gcp_vms.csv")
    assert prices(found) == {
        ("a2-highgpu-1g", "A100-40GB-SXMx1", "on_demand"): 3.25,  # 0.75 + 2.5 in zone b
        ("a2-highgpu-1g", "A100-40GB-SXMx1", "spot"): 1.25,  # 0.25 + 1.0 in zone a
        ("g2-standard-4", "L4x1", "on_demand"): 0.65,
        ("g2-standard-8", "L4x1", "on_demand"): 0.8,
        ("a3-highgpu-8g", "H100-SXMx8", "on_demand"): 89.5,
        ("a3-megagpu-8g", "H100-SXMx8", "on_demand"): 94.75,
    }
    assert {f.row: (f.column, f.reason) for f in found.rejects} == {
        3: ("AcceleratorName", "is blank, and no row of this zone prices the GPUs of it, A100-40GB-SXMx2"),
        8: ("AcceleratorName", "is blank: a machine without GPUs"),
        12: ("Price", "contradicts row 11, which asks another price for the same GPUs and zone"),
        15: ("InstanceType", "is blank: a price of the GPU without a machine"),
        16: ("InstanceType", "is blank: a price of the GPU without a machine"),
    }
    told = frozenset[int]().union(*(row.rows for row in found.rows))
    assert sorted(told | {f.row for f in found.rejects}) == list(range(1, 17)), "every row is one or the other"
    assert not told & {f.row for f in found.rejects}
    assert ("gcp/us-central1", "a2-highgpu-2g") in found.unreadable, "what was known of it stays"


def test_every_row_behind_a_price_that_is_held_is_held(tmp_path: Path) -> None:
    """40 times what an L40S costs as a rule, in two zones; the third row is of another machine."""
    rows = [{**ROW, "Price": "80", "SpotPrice": "", "AvailabilityZone": zone} for zone in "ab"]
    rows.append({**ROW, "InstanceType": "g6e.2xlarge", "AvailabilityZone": "a"})
    head = HEAD.strip() + ",AvailabilityZone\n"
    found = read(tmp_path, head + "\n".join(",".join(row.values()) for row in rows) + "\n")
    judged = judge_prices(found, {}, load_catalog(), NOW)
    assert judged.held_rows == {1, 2}
    assert len(judged.held) == 1
    last = {EAST: PriceSnapshot(EAST, NOW + timedelta(hours=1), (), 1)}
    assert judge_prices(found, last, load_catalog(), NOW).rejected_rows == {1, 2, 3}


@pytest.mark.parametrize(
    ("provider", "name", "machine", "gpu"),
    [
        ("runpod", "H100", "1x_H100_SECURE", "H100-PCIe"),
        ("runpod", "B200", "8x_B200_SECURE", "B200-SXM"),
        ("runpod", "H200-SXM", "1x_H200-SXM_SECURE", "H200-SXM"),
        ("runpod", "RTXPRO6000", "1x_RTXPRO6000_SECURE", "RTX-PRO-6000-Server"),
        ("lambda", "A100", "gpu_8x_a100", "A100-40GB-SXM"),
        ("lambda", "A100", "gpu_1x_a100_sxm4", "A100-40GB-SXM"),
        ("lambda", "A100-80GB", "gpu_8x_a100_80gb_sxm4", "A100-80GB-SXM"),
        ("lambda", "B200", "gpu_1x_b200_sxm6", "B200-SXM"),
        ("aws", "RTXPRO6000", "g7e.2xlarge", "RTX-PRO-6000-Server"),
        ("lambda", "A100", "gpu_1x_a100", "40 GB on PCIe"),
        ("lambda", "A10", "gpu_1x_a10", "another card than A10G"),
        ("lambda", "GH200", "gpu_1x_gh200", "Arm"),
        ("runpod", "L40", "1x_L40_SECURE", "another card than L40S"),
        ("runpod", "H100-NVL", "1x_H100-NVL_SECURE", "94 GB"),
        ("aws", "T4g", "g5g.xlarge", "Arm"),
    ],
)
def test_what_providers_call_their_gpus(tmp_path: Path, provider: str, name: str, machine: str, gpu: str) -> None:
    """Either the card of the catalog, or why it is none of them."""
    row = {**ROW, "InstanceType": machine, "AcceleratorName": name}
    found = read(tmp_path, HEAD + ",".join(row.values()) + "\n", provider=provider)
    names = {config for _, config, _ in prices(found)}
    if found.rejects:
        (fault,) = found.rejects
        assert f"GPU {name!r} is known but not in the catalog" in fault.reason
        assert gpu in fault.reason
        assert "did you mean" not in fault.remedy
    assert names == (set() if found.rejects else {f"{gpu}x1"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        (HEAD.replace("Region", "Place") + "a,L4,1,1,1,x\n", "the column is missing"),
        ("InstanceType,AcceleratorName,AcceleratorCount,Region\n", "the column is missing, and so is SpotPrice"),
        (OWN.replace("price_usd_per_h", "price"), "unknown column"),
        ('"a\n', "the column is missing"),
    ],
)
def test_a_file_that_is_no_price_file_is_refused_whole(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert reason in {finding.reason for finding in caught.value.findings} or caught.value.findings[0].row == 0
    assert all(finding.row == 0 and finding.remedy for finding in caught.value.findings)


def test_own_prices_keep_their_date_and_the_newest_counts(tmp_path: Path) -> None:
    found = read(tmp_path, OWN + "aws/us-east-2,L40Sx1,g6e.xlarge,on_demand,1.5,2026-09-01,\n", "offers.csv")
    offers = {row.price.offer.instance_type: row.price for row in found.rows}
    assert offers["g6e.xlarge"].offer.price_usd_per_h == 1.6
    assert offers["g6e.xlarge"].offer.as_of == date(2026, 7, 1)
    assert offers["rack-7"].network_gbit_per_s == 100
    assert not any(price.is_list for price in offers.values())
    assert [(f.row, f.reason) for f in found.rejects] == [(4, "is in the future")]
    assert found.notes == ("1 row is of an earlier date than another of the same machine",)


# -- plausibility ------------------------------------------------------------------------------------------------------
def row(usd_per_h: float, market: Market = Market.ON_DEMAND, machine: str = "g6e.xlarge", number: int = 1) -> PriceRow:
    offer = Offer("", "aws", EAST, "L40Sx1", machine, market, usd_per_h, None, False, NOW.date(), "feed")
    return PriceRow(number, "Price", FeedPrice(offer, None, True, False))


def file_of(*rows: PriceRow, unreadable: frozenset[tuple[str, str]] = frozenset()) -> PriceFile:
    return PriceFile("f.csv", len(rows), rows, (), unreadable)


def known(*rows: PriceRow) -> dict[str, PriceSnapshot]:
    day = NOW - timedelta(days=1)
    dated = tuple(replace(r.price, offer=replace(r.price.offer, as_of=day.date())) for r in rows)
    return {EAST: PriceSnapshot(EAST, day, dated, 4)}


@pytest.mark.parametrize(
    ("market", "now", "is_held"),
    [
        (Market.ON_DEMAND, 3.72, False),  # twice 1.86
        (Market.ON_DEMAND, 3.73, True),
        (Market.ON_DEMAND, 0.93, False),
        (Market.ON_DEMAND, 0.92, True),
        (Market.SPOT, 7.44, False),  # four times
        (Market.SPOT, 7.45, True),
        (Market.OWNED, 100.0, False),
    ],
)
def test_a_price_far_from_the_last_is_held(market: Market, now: float, is_held: bool) -> None:
    judged = judge_prices(file_of(row(now, market)), known(row(1.86, market)), load_catalog(), NOW)
    assert bool(judged.held) is is_held
    (snapshot,) = judged.snapshots
    (price,) = snapshot.prices
    assert snapshot.sequence == 4
    assert price.offer.price_usd_per_h == (1.86 if is_held else now), "the last known price stays"
    assert price.is_dated is is_held
    confirmed = judge_prices(
        file_of(row(now, market)), known(row(1.86, market)), load_catalog(), NOW, is_confirmed=True
    )
    assert (confirmed.held, confirmed.snapshots[0].prices[0].offer.price_usd_per_h) == ((), now)


def test_a_new_machine_is_held_against_the_median_of_its_gpu() -> None:
    # The shipped catalog's median of L40S on demand is 3.757 USD/h per GPU; a fifth of that is 0.751.
    sound = judge_prices(file_of(row(0.76)), {}, load_catalog(), NOW)
    assert (sound.held, len(sound.snapshots)) == ((), 1)
    judged = judge_prices(file_of(row(0.75), row(1.9, machine="other", number=2)), {}, load_catalog(), NOW)
    (held,) = judged.held
    assert "median of L40S" in held.reason
    assert judged.held_rows == {1}
    assert [p.offer.instance_type for p in judged.snapshots[0].prices] == ["other"]


def test_what_was_set_aside_or_is_gone() -> None:
    machines = [row(1.86, machine=f"m{i}") for i in range(4)]
    last = known(*machines)
    unread = frozenset({(EAST, "m3")})
    judged = judge_prices(file_of(*machines[:2], unreadable=unread), last, load_catalog(), NOW)
    (snapshot,) = judged.snapshots
    kept = {p.offer.instance_type: p.offer.as_of for p in snapshot.prices}
    today, yesterday = NOW.date(), (NOW - timedelta(days=1)).date()
    assert kept == {"m0": today, "m1": today, "m3": yesterday}, "m2 is withdrawn, the unreadable m3 stays"
    broken = judge_prices(file_of(machines[0]), last, load_catalog(), NOW)
    assert broken.snapshots == ()
    assert "3 of the 4 prices" in broken.held[0].reason
    sure = judge_prices(file_of(machines[0]), last, load_catalog(), NOW, is_confirmed=True)
    assert len(sure.snapshots[0].prices) == 1


def test_older_prices_are_not_taken_back() -> None:
    judged = judge_prices(file_of(row(1.9)), known(row(1.86)), load_catalog(), NOW - timedelta(days=2))
    assert (judged.snapshots, judged.rejected_rows) == ((), {1})
    assert "are there already" in judged.rejects[0].reason


# -- real files --------------------------------------------------------------------------------------------------------
@needs_raw
@pytest.mark.parametrize(
    ("name", "rows", "rejected", "regions"),
    [
        ("aws_vms.csv", 442, 0, 5),
        ("aws_vms_v8_subset.csv", 41, 1, 4),  # a row without any price
        ("gcp_vms.csv", 288, 0, 26),
        ("lambda_vms.csv", 114, 0, 17),
        ("runpod_vms_v5.csv", 44, 4, 5),  # L40, which the catalog does not have
        ("runpod_vms_v8_a100.csv", 63, 0, 14),
    ],
)
def test_real_files(name: str, rows: int, rejected: int, regions: int) -> None:
    found = read_price_file(RAW / name, load_catalog(), None, NOW, NOW)
    assert (found.rows_seen, len({f.row for f in found.rejects})) == (rows, rejected)
    judged = judge_prices(found, {}, load_catalog(), NOW)
    assert (len(judged.snapshots), judged.held) == (regions, ())


@needs_raw
def test_the_real_slip_in_gcps_history_is_held_and_passes() -> None:
    """On 2023-05-09 the feed asked a fifth for a2-ultragpu-2g, and a day later the right price again."""
    from pyarrow import compute, parquet

    table = parquet.read_table(RAW / "gcp_price_history.parquet")
    at = table["snapshot_time"]
    span = [datetime(2023, 5, 1, tzinfo=UTC), datetime(2023, 5, 12, tzinfo=UTC)]
    inside = compute.and_(compute.greater_equal(at, span[0]), compute.less(at, span[1]))
    by_time: dict[datetime, list[PriceRow]] = {}
    for number, line in enumerate(table.filter(inside).to_pylist(), 1):
        for market, column in ((Market.ON_DEMAND, "price_usd_hr"), (Market.SPOT, "spot_usd_hr")):
            if line[column]:
                gpu = load_catalog().gpu_names.encode(line["gpu"], scope="skypilot")
                region, day = f"gcp/{line['region']}", line["snapshot_time"].date()
                names = (region, f"{gpu}x{line['gpu_count']}", line["instance_type"], market)
                offer = Offer("", "gcp", *names, line[column], None, False, day, "history")
                price = FeedPrice(offer, None, True, False)
                by_time.setdefault(line["snapshot_time"], []).append(PriceRow(number, column, price))
    last: dict[str, PriceSnapshot] = {}
    held: list[tuple[date, str, str]] = []
    for moment, rows in sorted(by_time.items()):
        read_ = file_of(*rows)
        judged = judge_prices(read_, last, load_catalog(), moment)
        machine = {r.row: (r.price.offer.instance_type, r.price.offer.region) for r in rows}
        held += [(moment.date(), *machine[finding.row]) for finding in judged.held]
        last |= {s.region: replace(s, sequence=s.sequence + 1) for s in judged.snapshots}
    assert len(by_time) > 2
    assert {(day, machine) for day, machine, _ in held} == {(date(2023, 5, 9), "a2-ultragpu-2g")}
    assert len({region for *_, region in held}) == 5
    assert len(held) == 10, "on demand and spot in each region; the right price is not held after it"
