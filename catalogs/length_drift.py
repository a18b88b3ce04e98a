"""Whether requests have become longer or shorter than those a library was solved for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from catalogs.scenario_schema import MOMENTS
from catalogs.types import Lengths, Phase, Workload

MOST_DRIFT = 0.1
# What rates and demands in tokens depend on, all lengths in tokens.
_LENGTHS = {
    "mean prompt": lambda lengths: lengths.input_mean,
    "mean answer": lambda lengths: lengths.output_mean,
    "mean context of a decode step": lambda lengths: lengths.decode_context_mean,
    "attention length of a prompt": lambda lengths: lengths.prefill_context,
}


def length_drift(planned: Lengths, seen: Lengths) -> list[str]:
    """The lengths that differ by more than 10 % from those planned with, in words; empty = none."""
    found = []
    for name, of in _LENGTHS.items():
        before, now = of(planned), of(seen)
        if abs(now - before) > MOST_DRIFT * before:
            found.append(f"{name} {before:,.0f} -> {now:,.0f} tokens ({now / before - 1:+.0%})")
    return found


def rebuild_proposal(seen: Lengths) -> str:
    """What to write in the scenario so that the library is solved for the lengths seen."""
    moments = ", ".join(f"{name}: {getattr(seen, name):.6g}" for name in MOMENTS)
    return f"set lengths: {{{moments}}} and run `coral build`"


def drift_notes(workloads: Iterable[Workload], seen: Mapping[str, Lengths]) -> list[tuple[str, str]]:
    """A ``length_drift`` note per model whose requests a feed tells of and whose lengths have drifted."""
    notes = []
    for workload in workloads:
        lengths = seen.get(workload.model.model)
        if lengths is None or workload.phase is Phase.DECODE:  # a model's phases have the same lengths
            continue
        if drift := length_drift(workload.lengths, lengths):
            text = f"requests of {workload.model.alias} have changed: {'; '.join(drift)}; {rebuild_proposal(lengths)}"
            notes.append(("length_drift", text))
    return notes
