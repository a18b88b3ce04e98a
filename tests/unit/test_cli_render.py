"""The plan as text: each figure where a reader looks for it, within 100 columns."""

from __future__ import annotations

from typing import Any

import pytest
from cli_plan_example import EXAMPLE, QWEN_DECODE, QWEN_PREFILL, example_plan
from hypothesis import given
from hypothesis import strategies as st

from flows.render import WIDTH, money, number, percent_up, to_text
from flows.render_plan import distance_to_best, plan_lines


def shown(**changes: Any) -> str:
    return to_text(plan_lines(example_plan(**changes)))


def workload(index: int, **changes: Any) -> dict[str, Any]:
    return {**EXAMPLE["workloads"][index], **changes}


def test_each_model_and_phase_shows_region_count_rate_price_and_stages() -> None:
    text = shown()
    assert "qwen3-32b prefill   40.00 USD/h" in text
    assert "aws/us-east-2   2 instances, 1 new   4,322 tok/s each   20.00 USD/h each   launch class B2" in text
    assert "      [0-31]  2x g6e.12xlarge (L40Sx4 tp4)\n      [32-63] 1x p5.4xlarge (H100-SXMx1 tp1)" in text
    assert "aws/us-east-2   1 instance   1,500 tok/s   12.50 USD/h   launch class C" in text


def test_stage_of_two_kinds_of_node_shows_inner_layout_and_shares() -> None:
    text = shown()
    assert "[0-63] 1x g6e.12xlarge (L40Sx4 tp2 dp2), 40% of the requests" in text
    assert "             1x p5.4xlarge (H100-SXMx1 tp1), 60% of the requests" in text


def test_totals_bound_gap_and_baselines() -> None:
    text = shown()
    assert "52.50 USD/h, 38,325 USD per month (730 h)" in text  # 52.5 * 730
    assert "lower bound   52.99 USD of 53.00 with start-up" in text  # 52.5 + 0.5
    assert "within 0.02 % of the best plan this library can express" in text  # 0.01 / 52.99 = 0.0189 %
    assert "homo-optimal  84.00 USD/h (1.60x this plan)" in text
    assert "paper's homo  none found\n  greedy homogeneous replicas miss Qwen3-32B" in text


def test_token_prices_are_input_for_prefill_and_output_for_decode() -> None:
    row = next(line for line in shown().splitlines() if line.startswith("  qwen3-32b "))
    assert row.split() == ["qwen3-32b", "1.7890", "2.7560"]


def test_unknown_token_price_is_a_dash_not_zero() -> None:
    text = shown(workloads=[workload(0, usd_per_million_tok=None), workload(1)])
    row = next(line for line in text.splitlines() if line.startswith("  qwen3-32b "))
    assert row.split() == ["qwen3-32b", "-", "2.7560"]


def test_warnings_and_offers_say_what_is_assumed() -> None:
    text = shown()
    assert "assumed_availability: no availability is known for 1 of 2" in text
    offer = next(line for line in text.splitlines() if "8 assumed" in line)
    assert offer.split()[-2:] == ["7.50", "37.50"]  # 5 nodes


def test_shortfall_says_what_binds_and_the_cheapest_extra_and_compares_no_cost() -> None:
    text = shown(
        status="shortfall",
        theta=0.8324,
        theta_upper=0.84,
        shortfalls=[
            {
                "workload": "qwen3-32b/decode",
                "workload_id": "2222222222222222",
                "missing_tok_per_s": 210.0,
                "binding": "H100-SXMx1 in aws/us-east-2: 6 of 6 nodes used",
                "cheapest_extra": "1 more H100-SXMx1 in aws/us-east-2",
            }
        ],
    )
    assert "DEMAND NOT MET" in text
    assert "83.2% of every model's; at most 84.0% is possible" in text
    assert "qwen3-32b/decode: 210 tok/s missing; binding: H100-SXMx1 in aws/us-east-2: 6 of 6 nodes used" in text
    assert "1 more H100-SXMx1 in aws/us-east-2" in " ".join(text.split())
    assert "x this plan" not in text


def test_a_plan_that_rents_nothing_has_no_gap_to_speak_of() -> None:
    text = shown(
        cost_usd_per_h=0.0,
        init_usd=0.0,
        lower_bound_usd_per_h=0.0,
        gap=0.0,
        instances=[],
        offers=[],
        workloads=[workload(0, planned_req_per_s=0.0, planned_tok_per_s=0.0, cost_usd_per_h=0.0)],
    )
    assert "nothing to rent" in text
    assert "x this plan" not in text


def test_title_has_version_state_and_utc_time_and_a_draft_has_no_version() -> None:
    title = shown(created_at="2026-08-01T14:00:00+02:00").splitlines()[0]
    assert title == "Plan example, version 3 (published), 2026-08-01 12:00 UTC, prices of 2026-07-30"
    assert shown(state="draft").startswith("Plan example, a draft, 2026-08-01 12:00 UTC")


def test_launch_classes_in_use_are_counted_and_explained() -> None:
    lines = [line.split()[:2] for line in shown().partition("Launch classes\n")[2].splitlines()]
    assert lines == [["class", "instances"], ["B2", "2"], ["C", "1"]]


def test_spot_is_named() -> None:
    assert "aws/us-east-2 spot   2 instances" in shown(instances=[{**QWEN_PREFILL, "market": "spot"}])


def test_instances_are_listed_in_one_order_whatever_the_plan_s() -> None:
    elsewhere = {**QWEN_PREFILL, "region": "aws/ap-northeast-2"}
    one = shown(instances=[elsewhere, QWEN_PREFILL, QWEN_DECODE])
    other = shown(instances=[QWEN_DECODE, QWEN_PREFILL, elsewhere])
    assert one == other
    assert one.index("ap-northeast-2") < one.index("us-east-2")


def test_lines_fit_in_100_columns() -> None:
    long_text = "word " * 80
    lines = plan_lines(example_plan(warnings=[{"code": "mixed_dates", "text": long_text}], reason=long_text))
    assert max(len(line.text) for line in lines) <= WIDTH
    assert sum(line.text.count("word") for line in lines) == 160


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (6210, "6,210"),
        (99.96, "100"),
        (42.71, "42.7"),
        (10.0, "10"),
        (0.1284, "0.128"),
        (123456.7, "123,457"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0.00"), (0.05, "0.0500"), (1234.5, "1,234.50"), (0.1, "0.10")])
def test_money(value: float, text: str) -> None:
    assert money(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (0.000001, "0.01"), (0.0005, "0.05"), (0.00051, "0.06"), (0.1, "10.00")]
)
def test_percent_is_rounded_up(value: float, text: str) -> None:
    assert percent_up(value) == text


@given(st.floats(0, 1))
def test_percent_never_understates(fraction: float) -> None:
    assert float(percent_up(fraction)) >= fraction * 100 - 1e-9


def test_distance_is_against_the_bound_not_the_cost() -> None:
    plan = example_plan(cost_usd_per_h=110.0, init_usd=0.0, lower_bound_usd_per_h=100.0)
    assert distance_to_best(plan) == pytest.approx(0.10)  # the gap, against the cost, is 0.0909
    assert distance_to_best(example_plan(lower_bound_usd_per_h=0.0)) is None
