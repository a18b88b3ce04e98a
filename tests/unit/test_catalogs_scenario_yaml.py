"""What YAML can do to a scenario file: days, numbers of other kinds, tags, anchors, depth and size. Always one finding."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from scenario_cases import SOUND, check

from catalogs.errors import Finding

TEXT = yaml.safe_dump(SOUND, sort_keys=False)


def with_line(tmp_path: Path, before: str, after: str) -> list[Finding]:
    assert TEXT.count(before) == 1
    return check(tmp_path, TEXT.replace(before, after))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("2025-02-30", "is a day that is not in the calendar"),
        ("2025-13-01", "is a day that is not in the calendar"),
        ("0", "is not a date"),
        ("1746057600", "is not a date"),
        ("'1746057600'", "is not a date"),
        ("1.5", "is not a date"),
        ("true", "is not a date"),
        ("2025-5-1", "is not a date"),
        ("2025-05-01 00:00:00", "is not a date"),
        ("2025-W18-4", "is not a date"),
        ("1999-12-31", "is not in the years 2000 to 2100"),
        ("9999-12-31", "is not in the years 2000 to 2100"),
        ("[2025-05-01]", "is not a date"),
    ],
)
def test_days(tmp_path: Path, value: str, reason: str) -> None:
    (finding,) = with_line(tmp_path, "price_as_of: '2025-05-01'", f"price_as_of: {value}")
    assert (finding.row, finding.column, finding.reason) == (3, "price_as_of", reason)
    assert "2026-07-30" in finding.remedy


@pytest.mark.parametrize("value", ["2025-05-01", "'2025-05-01'"])
def test_a_day_with_or_without_quotes(tmp_path: Path, value: str) -> None:
    assert with_line(tmp_path, "price_as_of: '2025-05-01'", f"price_as_of: {value}") == []


@pytest.mark.parametrize("value", ["1_000", "0x3E8", "010", "16:40", "1e3x", "'1000'", "1,000", "١٠٠٠"])
def test_numbers_that_yaml_1_1_or_python_would_take_for_others(tmp_path: Path, value: str) -> None:
    (finding,) = with_line(tmp_path, "ttft_ms: 1000", f"ttft_ms: {value}")
    assert (finding.column, finding.reason) == ("models[0].slo.ttft_ms", "is not a number")
    assert finding.value == value.strip("'")


@pytest.mark.parametrize("value", ["1000", "1000.0", "1e3", "1.0e+3", "+1000", "1000."])
def test_numbers_as_they_are_usually_written(tmp_path: Path, value: str) -> None:
    assert with_line(tmp_path, "ttft_ms: 1000", f"ttft_ms: {value}") == []


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e999"])
def test_numbers_that_are_not_finite(tmp_path: Path, value: str) -> None:
    (finding,) = with_line(tmp_path, "ttft_ms: 1000", f"ttft_ms: {value}")
    assert finding.reason == "is not a finite number"


def test_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    (finding,) = with_line(tmp_path, "ttft_ms: 1000", "ttft_ms: " + "9" * 5000)
    assert len(finding.line()) < 400


@pytest.mark.parametrize(
    "value", ["!!int x", "!!int ''", "!!bool x", "!!timestamp x", "!!float x", "!!python/name:os.system", "!mine 1"]
)
def test_tags_are_refused_with_their_line(tmp_path: Path, value: str) -> None:
    (finding,) = with_line(tmp_path, "ttft_ms: 1000", f"ttft_ms: {value}")
    assert "a tag" in finding.reason
    assert "ttft_ms" in TEXT.splitlines()[finding.row - 1]


ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
BOMBS = {
    "aliases": ("a0: &a0 [x]\n" + ALIASES, "an alias counted as often"),
    "merges": ("a0: &a0 {x: 1}\n" + MERGES, "an alias counted as often"),
    "flow depth": ("a: " + "[" * 100_000, "nested too deeply"),
    "closed flow depth": ("a: " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "mapping depth": ("a: " + "{b: " * 50_000, "nested too deeply"),
    "block depth": ("- " * 50_000 + "x", "nested too deeply"),
    "self": ("a: &x [*x]\n", "refers to itself"),
    "many values": ("a: [" + "1, " * 30_000 + "1]", "more than 20000 values"),
    "size": ("#" * (2**20 + 1), "is larger than 1 MiB"),
    "many keys": ("".join(f"key{n}: 1\n" for n in range(9_000)), ""),
    "twice": ("a: 1\n" * 9_000, ""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_soon_with_a_finding(tmp_path: Path, name: str) -> None:
    text, reason = BOMBS[name]
    start = time.process_time()
    findings = check(tmp_path, text)
    assert time.process_time() - start < 20
    assert findings
    assert reason in findings[0].reason
    assert all(len(finding.line()) < 600 for finding in findings)


def test_anchors_that_save_typing_are_taken(tmp_path: Path) -> None:
    """Of a hundred models with the lengths and SLO of the first."""
    raw = dict(SOUND)
    raw["models"] = [{**SOUND["models"][0], "model": f"nobody/knows-{n}"} for n in range(100)]
    text = yaml.dump(raw, sort_keys=False)
    assert "*id001" in text
    assert {finding.reason for finding in check(tmp_path, text)} == {"unknown model"}
