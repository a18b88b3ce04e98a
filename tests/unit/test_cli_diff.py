"""Differences between plans, counted by hand."""

from __future__ import annotations

import json

from cli_plan_example import QWEN_DECODE, QWEN_PREFILL, example_plan

from flows.cli_diff import diff_lines
from flows.render import to_text
from tasks.allocation.plan_diff import diff_plans


def test_a_plan_does_not_differ_from_itself() -> None:
    diff = diff_plans(example_plan(), example_plan())
    assert diff.is_empty
    assert [(row.add, row.keep, row.remove) for row in diff.rows] == [(0, 1, 0), (0, 2, 0)]
    assert "no difference" in to_text(diff_lines(diff))


def test_add_keep_and_remove_per_region_workload_and_combination() -> None:
    after = example_plan(
        plan_version=4,
        cost_usd_per_h=72.5,
        instances=[{**QWEN_PREFILL, "instances": 3}, {**QWEN_DECODE, "region": "aws/ap-northeast-2"}],
    )
    diff = diff_plans(example_plan(), after)
    found = {(row.region, row.workload): (row.add, row.keep, row.remove) for row in diff.rows}
    assert found == {
        ("aws/ap-northeast-2", "qwen3-32b/decode"): (1, 0, 0),
        ("aws/us-east-2", "qwen3-32b/decode"): (0, 0, 1),
        ("aws/us-east-2", "qwen3-32b/prefill"): (1, 2, 0),
    }
    assert diff.cost_delta_usd_per_h == 20.0
    assert not diff.is_empty
    assert "cost 52.50 -> 72.50 USD/h (+20.00 USD/h)" in to_text(diff_lines(diff))
    assert json.loads(json.dumps(diff.document()))["rows"][0]["add"] == 1


def test_two_entries_of_one_combination_are_one_row() -> None:
    split = [{**QWEN_PREFILL, "instances": 1}, {**QWEN_PREFILL, "instances": 1, "template_id": "c" * 16}, QWEN_DECODE]
    assert diff_plans(example_plan(), example_plan(instances=split)).is_empty


def test_the_same_nodes_laid_out_anew_is_a_difference() -> None:
    stages = [{**QWEN_PREFILL["stages"][0], "layers": [0, 30]}, {**QWEN_PREFILL["stages"][1], "layers": [31, 63]}]
    diff = diff_plans(example_plan(), example_plan(instances=[{**QWEN_PREFILL, "stages": stages}, QWEN_DECODE]))
    assert [row.workload for row in diff.rows if row.is_laid_out_anew] == ["qwen3-32b/prefill"]
    assert not diff.is_empty


def test_a_price_change_alone_is_a_difference() -> None:
    assert not diff_plans(example_plan(), example_plan(cost_usd_per_h=52.0)).is_empty
    assert diff_plans(example_plan(), example_plan(cost_usd_per_h=52.5 + 1e-9)).is_empty
