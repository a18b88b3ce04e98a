"""The shipped figures: made from the raw data and nothing else, and right where an independent figure is at hand."""

from __future__ import annotations

import csv
import os
from datetime import date
from pathlib import Path

import pytest

from catalogs import load_catalog
from catalogs.derive import derive_all, group_provenance
from catalogs.derive_offers import check_dates
from catalogs.tables import DATA_DIR, read_table, schema_names, schema_of
from catalogs.types import Market, Provenance

RAW = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_raw = pytest.mark.skipif(not (RAW / "gpus.csv").exists(), reason="raw data folder ../shared/data is absent")
FEEDS = {"own_offers", "availability", "quotas", "demand", "measured_rates", "calibration", "layer_times", "fleet"}
FEEDS |= {"fleet_state", "skypilot_vms"}


def raw_rows(path: str) -> list[dict[str, str]]:
    with (RAW / path).open(newline="") as handle:
        return list(csv.DictReader(handle))


@needs_raw
def test_committed_files_are_what_deriving_gives() -> None:
    different = [
        name for name, text in derive_all(RAW).items() if (DATA_DIR / name).read_text(encoding="utf-8") != text
    ]
    assert different == []


@pytest.mark.parametrize("table", [t for t in schema_names() if t not in FEEDS - {"quotas"}])
def test_every_shipped_table_is_sound_and_says_where_it_comes_from(table: str) -> None:
    read = read_table(DATA_DIR / f"{table}.csv", table)
    assert read.findings == ()
    if table not in FEEDS:
        assert read.rows
        assert all(row["source"] and row["as_of"] >= date(2025, 1, 1) for row in read.rows)


@pytest.mark.parametrize("table", schema_names())
def test_schemas_are_complete(table: str) -> None:
    for column in schema_of(table).columns:
        assert column.required in {"yes", "no", "nullable"}
        assert column.description
        assert not column.allowed or column.choices or column.low > -float("inf") or column.high < float("inf")
        if column.type in {"number", "integer"} and not column.unit:
            assert column.name.endswith(("_skew", "_p", "p", "_c", "mfu", "mbu", "limit")) or column.name.startswith(
                ("mfu_", "mbu_", "rel_error")
            ), f"{table}.{column.name} has no unit"


def test_memory_is_what_the_driver_reports() -> None:
    gpus = load_catalog().gpus
    assert gpus["L40S"].memory_gib == pytest.approx(46068 / 1024, abs=1e-5)
    assert gpus["L40S"].memory_gib < 45
    assert not gpus["L40S"].memory_is_nominal
    assert gpus["MI300X"].memory_is_nominal
    assert gpus["T4"].bf16_dense_tflops is None
    assert not gpus["T4"].has_native_bf16


def test_efficiency_carries_the_ground_under_each_group() -> None:
    eff = load_catalog().efficiencies
    assert set(eff) == {
        "H100-SXM", "H200-SXM", "A100-80GB-SXM", "A100-40GB-SXM", "L40S", "L4", "A10G", "T4", "V100-16GB-SXM2",
    }  # fmt: skip
    assert set(eff["L4"].provenance) == {"gemm", "attn", "moe_bf16", "moe_mxfp4", "ar2", "ar4", "ar8"}
    assert eff["L4"].provenance["gemm"] is Provenance.FITTED
    assert eff["L4"].provenance["ar2"] is Provenance.FITTED
    assert {eff["L4"].provenance[g] for g in ("moe_bf16", "moe_mxfp4", "ar4", "ar8")} == {Provenance.BORROWED}
    assert eff["A100-80GB-SXM"].provenance["moe_bf16"] is Provenance.FITTED
    assert eff["A100-80GB-SXM"].provenance["moe_mxfp4"] is Provenance.BORROWED
    assert set(eff["A10G"].provenance.values()) == {Provenance.DERIVED}
    assert set(eff["H100-SXM"].provenance.values()) == {Provenance.FITTED}
    # No factors, no group: a T4 has no experts and no all-reduce over 8.
    assert eff["T4"].moe_bf16 is None
    assert eff["T4"].moe_mxfp4 is None
    assert set(eff["T4"].all_reduce) == {2, 4}
    assert set(eff["T4"].provenance) == {"gemm", "attn", "ar2", "ar4"}
    assert eff["V100-16GB-SXM2"].all_reduce == {}
    # PCIe: eight L40S add up 1 GB/s, two H100 on NVLink 250.
    assert eff["L40S"].all_reduce[8][1] == pytest.approx(1.2, abs=0.2)
    assert eff["H100-SXM"].all_reduce[2][1] == pytest.approx(255, rel=0.1)
    assert eff["A10G"].all_reduce[8] == eff["L4"].all_reduce[8] == eff["L40S"].all_reduce[8]
    assert group_provenance("fit: X", "moe_bf16") == "fitted"


def test_tuned_tiles_are_carried_with_their_gpu() -> None:
    gpus = load_catalog().gpus
    # Mixtral-8x7B's experts are 14,336 wide: an A100 has tuned tiles for 2, 4 and 8 of them, an H200 for one as well.
    assert {(8, 14336 // tp) in gpus["A100-80GB-SXM"].tuned_experts for tp in (2, 4, 8)} == {True}
    assert (8, 14336) not in gpus["A100-80GB-SXM"].tuned_experts
    assert (8, 14336) in gpus["H200-SXM"].tuned_experts
    assert gpus["L40S"].tuned_experts == ((8, 3584),)
    assert gpus["L4"].tuned_experts == ()
    eff = load_catalog().efficiencies
    assert {eff[gpu].moe_bf16.tiles for gpu in ("H100-SXM", "H200-SXM", "L40S", "L4")} == {"vllm-0.24"}  # type: ignore[union-attr]
    assert eff["A100-80GB-SXM"].moe_bf16.tiles == "vllm-0.14"  # type: ignore[union-attr]
    assert eff["L4"].moe_bf16.mfu_tuned is None  # type: ignore[union-attr]


def test_errors_are_those_of_models_held_out() -> None:
    eff = load_catalog().efficiencies
    assert eff["L40S"].rel_error == {"prefill": 0.042, "decode": 0.071}
    assert eff["H100-SXM"].rel_error == {"prefill": 0.044, "decode": 0.044}
    assert eff["A100-40GB-SXM"].rel_error == {"prefill": 0.019, "decode": 0.187}
    # Nothing was fitted to an A10G: its five published points are 20 % and 35 % off, more than the 90th percentiles of
    # A40 and L40S (13.5 and 21.4 %).
    assert eff["A10G"].rel_error == {"prefill": 0.199, "decode": 0.347}


def test_lengths_agree_with_the_published_statistics() -> None:
    lengths = load_catalog().lengths
    code, conv = lengths["azure-code-2023"], lengths["azure-conv-2023"]
    assert code.moments.input_mean == pytest.approx(2047.85, abs=0.01)
    assert code.moments.output_mean == pytest.approx(27.88, abs=0.01)
    assert conv.moments.input_mean == pytest.approx(1154.7, abs=0.01)
    assert conv.moments.output_mean == pytest.approx(211.13, abs=0.01)
    assert code.at(99).input_at_percentile == 7436
    assert conv.at(99).input_at_percentile == 4142
    assert conv.at(50).input_at_percentile == 1020
    # Between two tabulated percentiles the higher one counts, above the last the longest prompt.
    assert conv.at(97).input_at_percentile == 4142
    assert conv.at(99.9).input_at_percentile == 14050
    burst = lengths["burstgpt"].at(99)
    assert (burst.input_mean, burst.output_mean, burst.input_at_percentile) == (621, 126, 621)
    assert burst.decode_context_mean == pytest.approx(621 + 126 / 2)
    # A prompt token sees E[i^2]/E[i], nearly twice the mean prompt in the conversation trace.
    assert conv.moments.prefill_context == pytest.approx(2562750 / 1154.7, rel=1e-4)


def test_network_is_the_smallest_of_the_cheapest_machines() -> None:
    configs = load_catalog().node_configs
    # AWS g6.xlarge 2.5, GCP g2-standard-4 10; AWS g6.12xlarge 40, GCP g2-standard-48 50.
    assert configs["L4x1"].network_gbit_per_s == 2.5
    assert configs["L4x4"].network_gbit_per_s == 40
    # p5.4xlarge 100, a3-highgpu-1g 25; p5.48xlarge 3200, a3-highgpu-8g 1000 (a3-megagpu has no list price).
    assert configs["H100-SXMx1"].network_gbit_per_s == 25
    assert configs["H100-SXMx8"].network_gbit_per_s == 1000
    # p5en is flagged cheapest (3200), GCP's a3-ultragpu 3600.
    assert configs["H200-SXMx8"].network_gbit_per_s == 3200


def test_counts_that_nobody_sells_are_derived() -> None:
    configs = load_catalog().node_configs
    assert {name for name, c in configs.items() if c.gpu in ("L40S", "A10G", "L4", "H100-SXM") and c.is_derived} == {
        "L40Sx2",
        "A10Gx2",
    }
    # Per GPU 2.5 at x1 and 25 at x4: 10 at x2.
    assert configs["L40Sx2"].network_gbit_per_s == pytest.approx(20)
    assert configs["RTX4090x2"].network_gbit_per_s is None
    assert configs["L40Sx1"].link == "none"
    assert configs["L40Sx8"].link == "pcie"
    assert configs["H100-SXMx2"].link == "nvlink"
    assert configs["H100-PCIex2"].link == "nvlink"
    assert configs["H100-PCIex4"].link == "pcie"
    assert configs["L40Sx4"].memory_gib == pytest.approx(4 * 46068 / 1024, abs=1e-4)


def offers(region: str, instance_type: str, market: Market = Market.ON_DEMAND) -> dict[date, float]:
    return {
        o.as_of: o.price_usd_per_h
        for o in load_catalog().offers
        if (o.region, o.instance_type, o.market) == (region, instance_type, market)
    }


def test_prices_keep_their_dates() -> None:
    assert offers("aws/us-east-2", "g6e.xlarge") == {date(2025, 5, 1): 1.861}
    assert offers("aws/us-east-2", "p5.48xlarge") == {date(2025, 5, 1): 98.32, date(2025, 8, 25): 55.04}
    assert offers("aws/us-east-2", "p5.4xlarge") == {date(2025, 8, 25): 6.88}
    assert offers("aws/us-east-1", "p5en.48xlarge") == {
        date(2025, 5, 1): 84.8,
        date(2025, 8, 25): 63.296,
        date(2026, 7, 1): 63.296,
    }
    assert set(offers("gcp/us-central1", "a3-highgpu-8g")) == {date(2025, 5, 1), date(2026, 7, 30)}


def test_blank_prices_make_no_offer() -> None:
    """p5e.48xlarge has only a spot price in the feed; it must not be an offer at 0."""
    assert offers("aws/us-east-2", "p5e.48xlarge") == {}
    assert offers("aws/us-east-2", "p5e.48xlarge", Market.SPOT)
    assert min(offer.price_usd_per_h for offer in load_catalog().offers) > 0


def test_names_that_mean_different_cards_stay_apart() -> None:
    by_type = {offer.instance_type: offer.node_config for offer in load_catalog().offers}
    assert by_type["p4d.24xlarge"] == "A100-40GB-SXMx8"
    assert by_type["p4de.24xlarge"] == "A100-80GB-SXMx8"
    assert by_type["a2-highgpu-2g"] == "A100-40GB-SXMx2"
    assert by_type["a2-ultragpu-2g"] == "A100-80GB-SXMx2"
    assert by_type["p3dn.24xlarge"] == "V100-32GB-SXM2x8"


@needs_raw
def test_spot_is_the_lowest_zone_and_on_demand_one_row() -> None:
    zones = [
        r for r in raw_rows("prices/aws_vms.csv") if (r["Region"], r["InstanceType"]) == ("us-east-2", "g6e.xlarge")
    ]
    assert len(zones) > 1
    lowest = min(float(zone["SpotPrice"]) for zone in zones)
    assert offers("aws/us-east-2", "g6e.xlarge", Market.SPOT) == {date(2025, 5, 1): pytest.approx(lowest)}
    assert len({o.offer_id for o in load_catalog().offers}) == len(load_catalog().offers)


@needs_raw
def test_the_date_of_the_aws_file_is_proven_not_assumed() -> None:
    changes = raw_rows("prices/aws_us-east-1_ondemand_changes.csv")
    p5en = {c["generated_at"][:10]: float(c["price_usd_hr"]) for c in changes if c["instance_type"] == "p5en.48xlarge"}
    assert p5en == {"2025-03-31": 84.8, "2025-06-23": 63.296}
    after_the_cut = [{"InstanceType": "p5en.48xlarge", "Region": "us-east-1", "Price": "63.296"}]
    with pytest.raises(ValueError, match="was not the us-east-1 price on 2025-05-01"):
        check_dates(changes, after_the_cut, [])


def test_reading_all_catalogs_is_quick() -> None:
    """The bound is loose (a busy machine); 70 to 90 ms were measured on two shared cores."""
    import time

    from catalogs import catalog

    for cached in (catalog.load_catalog, catalog.read_gpu_names, catalog._rows):
        cached.cache_clear()
    start = time.process_time()
    catalog.load_catalog()
    assert time.process_time() - start < 0.5
