"""Every key of a scenario x every fault: one line with file, line, key path, value and remedy, all at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenario_cases import NUMBERS, SOUND, M, Path_, assert_one, check, key, with_value, without

from catalogs import load_catalog, load_scenario
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, finding_lines

INTEGERS = {
    (*M, "min_regions"),
    (*M, "min_replicas"),
    ("offers", "date_tolerance_days"),
    ("library", "n_max"),
    ("availability", "default_nodes"),
}
ids = [key(path) for path in NUMBERS]


def test_the_sound_scenario_is_sound(tmp_path: Path) -> None:
    assert check(tmp_path, SOUND) == []


@pytest.mark.parametrize("path", NUMBERS, ids=ids)
class TestNumbers:
    def test_negative(self, tmp_path: Path, path: Path_) -> None:
        assert_one(check(tmp_path, with_value(path, -1)), path, "-1", "is negative", NUMBERS[path][1])

    def test_zero(self, tmp_path: Path, path: Path_) -> None:
        findings = check(tmp_path, with_value(path, 0))
        if NUMBERS[path][0]:
            # A tolerance of no days still finds the prices of that very day.
            assert findings == []
        else:
            assert_one(findings, path, "0", "is zero", NUMBERS[path][1])

    def test_nan(self, tmp_path: Path, path: Path_) -> None:
        reason = "is not a whole number" if path in INTEGERS else "is not a finite number"
        assert_one(check(tmp_path, with_value(path, float("nan"))), path, "nan", reason, "plain number")

    def test_with_a_unit(self, tmp_path: Path, path: Path_) -> None:
        kind = "whole number" if path in INTEGERS else "number"
        findings = check(tmp_path, with_value(path, "5 s"))
        assert_one(findings, path, "5 s", f"is not a {kind}", "without quotes or unit")

    def test_blank(self, tmp_path: Path, path: Path_) -> None:
        findings = check(tmp_path, with_value(path, None))
        nullable = {(*M, "demand_req_per_s"), (*M, "max_spot_share")} | {
            ("policy", name) for name in ("demand_percentile", "budget_usd_per_h", "spot_recovery_minutes")
        }
        if path in nullable:
            assert findings == []
        elif path[-2] == "lengths":
            (finding,) = findings
            assert "lengths take one of four forms" in finding.reason
        else:
            assert_one(findings, path, "null", "has no value")


CHOICES: dict[Path_, str] = {
    (*M, "weight_dtype"): "bf16",
    (*M, "kv_dtype"): "fp8",
    (*M, "serving"): "disaggregated",
    ("offers", "markets", 0): "on_demand",
    ("library", "mode"): "cycle",
    ("policy", "shortage"): "uniform",
}


@pytest.mark.parametrize("path", CHOICES, ids=key)
def test_unknown_choice_offers_the_nearest(tmp_path: Path, path: Path_) -> None:
    almost = CHOICES[path] + "d"
    assert_one(
        check(tmp_path, with_value(path, almost)),
        path,
        almost,
        "is not an allowed value",
        f"did you mean {CHOICES[path]}?",
    )


REQUIRED: list[Path_] = [
    ("schema",), ("id",), ("price_as_of",), ("offers",), ("models",), ("availability",), ("offers", "regions"),
    (*M, "model"), (*M, "lengths"), (*M, "slo"), (*M, "slo", "ttft_ms"), (*M, "slo", "tpot_ms"),
    ("policy", "headroom", "decode"), ("availability", "default_nodes"),
]  # fmt: skip


@pytest.mark.parametrize("path", REQUIRED, ids=key)
def test_missing_key(tmp_path: Path, path: Path_) -> None:
    findings = [f for f in check(tmp_path, without(path)) if f.column == key(path)]
    (finding,) = findings
    assert finding.reason == "the key is missing"
    assert finding.remedy.startswith(f"add {path[-1]}")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        (("policies",), "policy"),
        (("offers", "region"), "regions"),
        ((*M, "slo", "ttft"), "ttft_ms"),
        ((*M, "demand"), "demand_req_per_s"),
        (("library", "nmax"), "n_max"),
        (("policy", "init_minute"), "init_minutes"),
        (("availability", "default_node"), "default_nodes"),
        (("policy", "headroom", "decodes"), "decode"),
    ],
    ids=key,
)
def test_unknown_key_offers_the_nearest(tmp_path: Path, path: Path_, near: str) -> None:
    findings = [f for f in check(tmp_path, with_value(path, 1)) if f.reason == "unknown key"]
    assert_one(findings, path, "1", "unknown key", f"did you mean {near}?")


@pytest.mark.parametrize(
    ("path", "value", "kind", "near"),
    [
        (("offers", "regions", 0), "aws/us-west-3", "region", "aws/us-west-2"),
        (("offers", "exclude_gpus", 0), "T5", "GPU", "T4"),
        ((*M, "model"), "qwen3-9b", "model", "qwen3-8b"),
        ((*M, "lengths"), {"trace": "azure-conv-2024"}, "trace", "azure-conv-2023"),
    ],
    ids=["region", "gpu", "model", "trace"],
)
def test_unknown_name_offers_close_matches(tmp_path: Path, path: Path_, value: Any, kind: str, near: str) -> None:
    raw = with_value(path, value)
    if path[0] == "offers":
        del raw["models"][0]["regions"]
    (finding,) = check(tmp_path, raw)
    assert finding.reason == f"unknown {kind}"
    assert near in finding.remedy
    assert finding.column.startswith(key(path))
    assert finding.value == (value if isinstance(value, str) else value["trace"])


def test_model_region_outside_the_offers(tmp_path: Path) -> None:
    findings = check(tmp_path, with_value((*M, "regions", 0), "aws/us-east-2"))
    assert_one(findings, (*M, "regions", 0), "aws/us-east-2", "unknown region (not in offers.regions)", "aws/us-east-1")


class TestDuplicates:
    def test_model(self, tmp_path: Path) -> None:
        raw = copy.deepcopy(SOUND)
        raw["models"].append({**raw["models"][0], "model": "Qwen/Qwen3-8B"})
        assert_one(check(tmp_path, raw), ("models", 1, "model"), "Qwen/Qwen3-8B", "duplicate of models[0]", "keep one")

    def test_region(self, tmp_path: Path) -> None:
        raw = with_value(("offers", "regions"), ["aws/us-west-2", "aws/us-west-2"])
        assert_one(check(tmp_path, raw), ("offers", "regions", 1), "aws/us-west-2", "is there twice", "keep one")

    def test_key(self, tmp_path: Path) -> None:
        """YAML itself would silently keep the last of the two."""
        text = yaml.safe_dump(SOUND, sort_keys=False) + "id: other\n"
        (finding,) = check(tmp_path, text)
        assert (finding.column, finding.reason, finding.row) == ("id", "the key is there twice", len(text.splitlines()))


def test_yaml_syntax_names_the_line(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, "schema: 1\nid: mine\noffers: [aws/us-west-2\nmodels: 3\n")
    assert (finding.file, finding.row) == ("scenario.yaml", 4)
    assert finding.reason.startswith("YAML syntax at column")
    (finding,) = check(tmp_path, "- a\n- b\n")
    assert finding.reason == "is not a mapping of keys"
    (finding,) = check(tmp_path, "")
    assert finding.reason == "is not a mapping of keys"
    (finding,) = check(tmp_path, "a: &x [*x]\n")
    assert "anchor" in finding.reason


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    text = yaml.safe_dump(SOUND, sort_keys=False).replace("ttft_ms: 1000", "ttft_ms: -1")
    (finding,) = check(tmp_path, text)
    assert text.splitlines()[finding.row - 1].strip() == "ttft_ms: -1"


def test_all_faults_at_once_over_sections_and_files(tmp_path: Path) -> None:
    raw = with_value((*M, "slo", "ttft_ms"), -5)
    raw["models"].append({**SOUND["models"][0], "model": "nobody/knows"})
    raw["offers"]["regions"] = ["aws/us-west-2", "aws/nowhere"]
    raw["offers"]["file"] = "offers.csv"
    raw["policy"]["shortage"] = "fair"
    raw["colour"] = "red"
    raw["availability"] = {"file": "absent.csv", "default_nodes": 1}
    (tmp_path / "offers.csv").write_text(
        "region,node_config,instance_type,market,price_usd_per_h,as_of\naws/us-west-2,L40Sx1,a,on_demand,,2025-05-01\n"
    )
    where = {(f.file, f.column) for f in check(tmp_path, raw)}
    assert where == {
        ("scenario.yaml", "models[0].slo.ttft_ms"),
        ("scenario.yaml", "models[1].model"),
        ("scenario.yaml", "offers.regions[1]"),
        ("scenario.yaml", "policy.shortage"),
        ("scenario.yaml", "colour"),
        ("scenario.yaml", "availability.file"),
        ("offers.csv", "price_usd_per_h"),
    }
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "scenario.yaml")
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 7


def test_names_are_checked_beside_value_faults(tmp_path: Path) -> None:
    """A wrong number in a section or an entry does not hide a wrong name in it, nor make one where there is none."""
    raw = with_value(("offers", "date_tolerance_days"), -1)
    raw["offers"] |= {"regions": ["aws/us-west-2", "aws/us-eats-1"], "exclude_gpus": ["T5"], "node_configs": ["L40Zx1"]}
    raw["models"][0]["slo"]["ttft_ms"] = -5
    raw["models"][0] |= {"model": "qwen3-9b", "regions": ["aws/us-west-2"], "node_configs": ["L40Z"]}
    raw["models"].append({**SOUND["models"][0], "model": "phi-4", "kv_dtype": "fp9", "regions": ["aws/us-nowhere-7"]})
    raw["policy"]["max_spot_share"] = 7
    raw["offers"]["markets"] = ["spot"]
    assert {f.column for f in check(tmp_path, raw)} == {
        "offers.date_tolerance_days", "offers.regions[1]", "offers.exclude_gpus[0]", "offers.node_configs[0]",
        "models[0].slo.ttft_ms", "models[0].model", "models[0].node_configs[0]",
        "models[1].kv_dtype", "models[1].regions[0]", "policy.max_spot_share",
    }  # fmt: skip


def test_a_region_mistyped_once_is_one_fault(tmp_path: Path) -> None:
    """The model has it right, and thirty rows of what is there have it wrong as well."""
    raw = with_value(("offers", "regions"), ["aws/us-west-22", "aws/us-east-1"])
    raw["availability"]["file"] = "availability.csv"
    rows = [f"aws/us-west-22,L40Sx1,on_demand,2025-05-01T{hour:02}:00:00Z,4" for hour in range(24)]
    (tmp_path / "availability.csv").write_text("\n".join(["region,node_config,market,observed_at,nodes", *rows]))
    (finding,) = check(tmp_path, raw)
    assert (finding.column, finding.reason) == ("offers.regions[0]", "unknown region")
    assert "aws/us-west-2" in finding.remedy


def test_a_faulty_row_of_ones_own_offers_makes_no_unknown_region(tmp_path: Path) -> None:
    raw = with_value(("offers", "regions"), ["aws/us-west-2", "own/cellar"])
    raw["offers"] |= {"file": "offers.csv", "markets": ["on_demand", "owned"]}
    (tmp_path / "offers.csv").write_text(
        "region,node_config,instance_type,market,price_usd_per_h,as_of\nown/cellar,L40Sx1,rack,owned,-1,2025-05-01\n"
    )
    found = {(f.file, f.column, f.reason) for f in check(tmp_path, raw)}
    assert ("offers.csv", "price_usd_per_h", "is negative") in found
    assert not any("unknown region" in reason for *_, reason in found)


def test_the_same_fault_in_many_rows_is_one_line() -> None:
    rows = [
        Finding("a.csv", n, "region", "aws/nowhere", "unknown region", "did you mean aws/there?") for n in range(1, 31)
    ]
    other = Finding("a.csv", 9, "nodes", "-1", "is negative", "give 0 or more")
    first, second = finding_lines([*rows, other])
    assert first.startswith("a.csv, row 1, region: unknown region (got 'aws/nowhere')")
    assert first.endswith("[the same in 29 more rows: 2, 3, 4, 5, 6, ...]")
    assert second == other.line()
    assert finding_lines(rows[:2]) == [f"{rows[0].line()} [the same in 1 more row: 2]"]


def test_of_many_names_without_a_near_one_the_list_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"\.\.\. \(`coral models list` has them all\)"):
        load_catalog().model("x")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((*M, "serving"), "aggregated", "aggregated serving cannot be planned yet"),
        ((*M, "weight_dtype"), "mxfp4", "is a format of expert weights, and the model has no experts"),
        ((*M, "min_regions"), 2, "is more than the model's regions"),
        (("id",), "My Prod", "is not a plain id"),
        (("price_as_of",), "last week", "is not a date"),
        (("id",), "a" * 65, "is too long"),
        (("engine",), {"version": "new"}, "is not a version"),
        (("engine",), {"version": "9" * 5000 + ".1"}, "is not a version"),
        (("engine",), {"version": "٠.٩"}, "is not a version"),
        (("engine",), {"version": 0.25}, "is not a text"),
        (("schema",), 2, "is not an allowed value"),
        (("offers", "only_sold"), "yes please", "is neither true nor false"),
        (("models",), [], "is an empty list"),
        (("offers", "node_configs"), ["L40S"], "is not a node configuration"),
        (("policy", "headroom"), {"prefill": 1.5, "decode": 0.9}, "is out of range"),
        ((*M, "slo", "percentile"), 0.99, "is out of range"),
        (("offers", "markets"), ["spot"], "spot is offered but max_spot_share is 0"),
        ((*M, "node_configs"), ["L40Sx3"], "is not on offer"),
        ((*M, "node_configs"), ["L40Z"], "is no GPU and no node configuration"),
        ((*M, "exclude_node_configs"), ["L4x1", "H100x"], "is no GPU and no node configuration"),
        ((*M, "n_plus_one"), 1, "is neither true nor false"),
        (("policy", "n_plus_one"), "no", "is neither true nor false"),
    ],
    ids=lambda v: key(v) if isinstance(v, tuple) else None,
)
def test_other_faults(tmp_path: Path, path: Path_, value: Any, reason: str) -> None:
    (finding,) = check(tmp_path, with_value(path, value))
    assert finding.reason == reason
    assert finding.remedy
    assert finding.column.startswith(key(path)[:6])


def test_lengths_that_do_not_fit_the_context(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, with_value((*M, "lengths"), {"input": 40000, "output": 2000}))
    assert "a request of 42000 tokens is longer than the model's context of 40960" in finding.reason


def test_moments_below_the_mean_are_refused(tmp_path: Path) -> None:
    moments = {"input_mean": 100, "output_mean": 10, "input_sq_mean": 9999, "output_sq_mean": 120, "cross_mean": 1000}
    (finding,) = check(tmp_path, with_value((*M, "lengths"), {**moments, "input_at_percentile": 300}))
    assert "input_sq_mean cannot be below input_mean squared" in finding.reason
    low = {**moments, "input_sq_mean": 10_000, "input_at_percentile": 300}
    assert check(tmp_path, with_value((*M, "lengths"), low)) == []
    # The mean of products is at most sqrt(10000 x 120) = 1095.4.
    (finding,) = check(tmp_path, with_value((*M, "lengths"), {**low, "cross_mean": 1096}))
    assert "cross_mean cannot be above" in finding.reason
    (finding,) = check(tmp_path, with_value((*M, "lengths"), {"input": 3, "trace": "burstgpt"}))
    assert "one of four forms" in finding.reason


def test_a_region_where_nothing_is_left(tmp_path: Path) -> None:
    raw = with_value(("offers", "include_gpus"), ["A100-80GB-SXM"])
    raw["offers"]["regions"] = ["aws/us-west-2", "aws/us-east-2"]
    assert_one(
        check(tmp_path, raw),
        ("offers", "regions", 1),
        "aws/us-east-2",
        "no offer is left there after the filters",
        "widen",
    )
    raw["offers"]["only_sold"] = False
    assert check(tmp_path, raw) == []


def test_named_configurations_that_nobody_sells_have_derived_prices(tmp_path: Path) -> None:
    """AWS sells L4 x1, x4 and x8; nobody in aws/us-east-1 sells an A100-80GB alone, and no region of AWS an L4 x2."""
    raw = with_value(("offers", "node_configs"), ["L4x2", "L4x1", "A100-80GB-SXMx2"])
    del raw["offers"]["exclude_gpus"]
    reasons = {f.column: (f.reason, f.remedy) for f in check(tmp_path, raw)}
    assert reasons["offers.node_configs[0]"][0] == "is not sold in these regions"
    assert "only_sold: false" in reasons["offers.node_configs[0]"][1]
    raw["offers"]["only_sold"] = False
    assert check(tmp_path, raw) == []
    loaded = load_scenario(tmp_path / "scenario.yaml")
    assert set(loaded.node_configs) == {"L4x2", "L4x1", "A100-80GB-SXMx2"}
    derived = {(offer.region, offer.node_config) for offer in loaded.offers if offer.is_derived}
    assert {("aws/us-west-2", "L4x2"), ("aws/us-east-1", "A100-80GB-SXMx2")} <= derived


def test_a_count_without_a_derived_price_is_not_told_to_ask_for_one(tmp_path: Path) -> None:
    raw = with_value(("offers", "node_configs"), ["L4x1", "L4x3"])
    raw["offers"]["only_sold"] = False
    assert_one(
        check(tmp_path, raw),
        ("offers", "node_configs", 1),
        "L4x3",
        "is not sold in these regions",
        "prices are derived for x1, x2, x4, x8",
    )


def paths_of(value: Any, path: Path_ = ()) -> list[Path_]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [p for k, child in children for p in paths_of(child, (*path, k))]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(paths_of(SOUND)), JUNK)
def test_any_value_anywhere_is_a_finding_or_a_scenario_but_no_crash(tmp_path: Path, path: Path_, junk: Any) -> None:
    findings = check(tmp_path, with_value(path, junk))
    if findings:
        assert all("\n" not in f.line() and f.remedy for f in findings)
    else:
        load_scenario(tmp_path / "scenario.yaml")


def test_names_of_scenarios() -> None:
    with pytest.raises(UnknownNameError, match="did you mean core"):
        load_scenario("cores")
    with pytest.raises(CoralError, match="does not exist"):
        load_scenario("nowhere/scenario.yaml")
