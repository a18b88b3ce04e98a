"""Checks of a scenario that need little of it: lengths, units, times, names given twice, quotas that bind nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from catalogs.errors import Finding, with_close_matches
from catalogs.scenario_schema import ModelSection, Scenario
from catalogs.scenario_yaml import Key, ScenarioDraft
from catalogs.types import Lengths, ModelSpec, Quota


def slo_unit_notes(draft: ScenarioDraft, key: Key, section: ModelSection) -> Iterator[tuple[str, str]]:
    """Notes on objectives so short that seconds may have been meant."""
    for name, low in (("ttft_ms", 20.0), ("tpot_ms", 1.0)):
        value = getattr(section.slo, name)
        if value < low:
            line = draft.line((*key, "slo", name))
            yield (
                "unit_suspect",
                f"{draft.file}, line {line}: {name} is {value:g} ms for {section.model}; were seconds meant?",
            )


# Per cent that are 0 < x below this may be shares: 0.2 for 20 %.
_SHARE_BELOW = {"cost_rise_pct": 1.0, "capacity_fall_pct": 1.0, "discount_pct": 1.0, "hysteresis_pct": 0.1}


def percent_notes(draft: ScenarioDraft, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Notes on percentages so small that a share may have been meant."""
    policy, guards = scenario.policy, scenario.policy.guards
    values: dict[Key, float | None] = {
        ("policy", "hysteresis_pct"): policy.hysteresis_pct,
        ("policy", "guards", "cost_rise_pct"): guards.cost_rise_pct,
        ("policy", "guards", "capacity_fall_pct"): guards.capacity_fall_pct,
    }
    values |= {("offers", "discount_pct", name): pct for name, pct in scenario.offers.discount_pct.items()}
    for key, value in values.items():
        name = next(part for part in reversed(key) if part in _SHARE_BELOW)
        if value is not None and 0 < value < _SHARE_BELOW[str(name)]:
            of = "" if name == key[-1] else f" of {key[-1]}"
            where = f"{draft.file}, line {draft.line(key)}: {name}{of}"
            yield "unit_suspect", f"{where} is {value:g} %; were {100 * value:g} % meant?"


def start_up_notes(draft: ScenarioDraft, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """A note where a new instance starts for longer than the plan lasts that it is for."""
    init, interval = scenario.policy.init_minutes, scenario.policy.interval_minutes
    if init > interval:
        line = draft.line(("policy", "init_minutes"))
        yield (
            "start_outlasts_plan",
            f"{draft.file}, line {line}: init_minutes {init:g} is longer than interval_minutes {interval:g}, so a new "
            f"instance costs {init / interval:.3g} intervals before it serves; are the two exchanged?",
        )


def unused_quota_notes(quotas: Iterable[Quota], regions: Sequence[str]) -> list[tuple[str, str]]:
    """A note on quotas of regions that the scenario does not rent in, where there are any."""
    unused = [quota.region for quota in quotas if quota.region not in regions]
    if not unused:
        return []
    text = f"quotas of regions that the scenario does not have count for nothing: {with_close_matches(unused, regions)}"
    return [("unused_quotas", text)]


def fit_findings(
    draft: ScenarioDraft, key: Key, section: ModelSection, spec: ModelSpec, lengths: Lengths
) -> Iterator[Finding]:
    """Faults of an entry that its model cannot take: a format for experts it has not, requests beyond its context."""
    if section.weight_dtype == "mxfp4" and not spec.is_moe:
        reason = "is a format of expert weights, and the model has no experts"
        remedy = f"write {spec.shipped_dtype}, the format its weights come in"
        yield draft.finding((*key, "weight_dtype"), "mxfp4", reason, remedy)
    longest = max(lengths.input_at_percentile, lengths.input_mean) + lengths.output_mean
    if longest > spec.max_position:
        reason = f"a request of {longest:.0f} tokens is longer than the model's context of {spec.max_position}"
        yield draft.finding((*key, "lengths"), None, reason, "give shorter lengths or another model")


def duplicate_findings(
    draft: ScenarioDraft, resolved: Sequence[tuple[int, ModelSection, ModelSpec, Lengths]]
) -> Iterator[Finding]:
    """Faults of entries whose model or alias an earlier entry has."""
    first: dict[str, int] = {}
    for index, section, spec, _ in resolved:
        for name in {spec.model.lower(), spec.alias.lower()}:
            if first.setdefault(name, index) != index:
                reason = f"duplicate of models[{first[name]}]"
                yield draft.finding(("models", index, "model"), section.model, reason, "keep one entry a model")
                break
