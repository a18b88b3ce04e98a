"""Rates that hold in a stated share of cases: by hand, by drawing errors, and against the measured table of errors."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catalogs.errors import CoralError
from flows.cli_common import percentile_of
from tasks.allocation.safety import error_multiple, safe_rates, time_ratio, with_safe_rates

RAW = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def test_by_hand() -> None:
    # The normal quantiles 0, 1.2816, 1.6449 over sqrt(2 / pi) = 0.7979.
    assert error_multiple(50) == 0
    assert error_multiple(90) == pytest.approx(1.6062, abs=1e-4)
    assert error_multiple(95) == pytest.approx(2.0615, abs=1e-4)
    rates = safe_rates(np.array([1000, 999_999]), np.array([0.05, 0.25]), 90)
    assert rates.tolist() == [int(1000 / 1.08031), int(999_999 / 1.401547)]
    assert safe_rates(np.array([777]), np.array([0.3]), 50).tolist() == [777]
    assert time_ratio(0.05, 90) == pytest.approx(1.08031, abs=1e-5)
    with pytest.raises(ValueError, match="not in"):
        error_multiple(100)


def test_nine_of_ten_drawn_rates_are_at_least_the_safe_one() -> None:
    rng = np.random.default_rng(7)
    errors = rng.normal(size=200_000)
    errors *= 0.08 / np.abs(errors).mean()  # MAPE of 8 %
    true_rate = 100_000 / (1 + errors)
    safe = safe_rates(np.array([100_000]), np.array([0.08]), 90)[0]
    assert np.mean(true_rate >= safe) == pytest.approx(0.9, abs=0.003)


@pytest.mark.skipif(not (RAW / "perf" / "errors.csv").exists(), reason="raw data folder ../shared/data is absent")
def test_the_measured_errors_have_about_the_normal_spread() -> None:
    """p90 of the absolute error is p95 of the error one way: 2.06 MAPE if normal. The table's median is within a tenth."""
    with (RAW / "perf" / "errors.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["split"] == "heldout-model"]
    ratios = [float(row["p90"]) / float(row["MAPE"]) for row in rows]
    assert len(ratios) > 20
    assert np.median(ratios) == pytest.approx(error_multiple(95), rel=0.1)


def test_only_the_rate_column_changes() -> None:
    table = pa.table(
        {
            "template_id": ["a", "b"],
            "throughput_mtok_per_s": pa.array([5000, 4000], pa.int64()),
            "rel_error": [0.1, 0.0],
        }
    )
    lowered = with_safe_rates(table, 90.0)
    assert lowered.schema == table.schema
    assert lowered["throughput_mtok_per_s"].to_pylist() == [int(5000 / 1.160617), 4000]
    assert lowered.drop_columns("throughput_mtok_per_s").equals(table.drop_columns("throughput_mtok_per_s"))
    assert with_safe_rates(table, None) is table


@pytest.mark.parametrize("text", ["90", "p", "p49", "p100", "pninety", "", "pnan"])
def test_other_spellings_of_a_percentile_are_refused(text: str) -> None:
    with pytest.raises(CoralError, match="is not a percentile"):
        percentile_of(text)


def test_percentiles() -> None:
    assert (percentile_of("p90"), percentile_of("p99.5"), percentile_of(None)) == (90.0, 99.5, None)
