"""Checks of a scenario's models that need no more than their entries: lengths, units, names given twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from catalogs.errors import Finding
from catalogs.scenario_schema import ModelSection
from catalogs.scenario_yaml import Key, ScenarioDraft
from catalogs.types import Lengths, ModelSpec


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
