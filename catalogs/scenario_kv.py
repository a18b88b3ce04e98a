"""The section of a scenario's policy that says between which regions KV may cross, at what price and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from catalogs.cells import plain_number
from catalogs.errors import CoralError, clipped
from catalogs.scenario_parts import Name, Section, Within

UsdPerGb = Annotated[float, Within(0, 1_000)]
GbitPerS = Annotated[float, Within(0.001, 1_000_000, or_zero=True)]


class KvPairSection(Section):
    """Two regions between which KV may cross on terms of their own: ``between`` them either way, or ``from`` one ``to``
    another. What is left out is as for all pairs."""

    between: Annotated[list[Name], Field(min_length=2, max_length=2)] | None = None
    source: Annotated[Name | None, Field(alias="from")] = None
    target: Annotated[Name | None, Field(alias="to")] = None
    usd_per_gb: UsdPerGb | None = None
    gbit_per_s: GbitPerS | None = None

    @model_validator(mode="after")
    def _one_form(self) -> KvPairSection:
        ends = {self.source, self.target} - {None}
        if (self.between is None) == (not ends) or len(ends) == 1 or len(set(self.between or "ab")) == 1:
            raise ValueError("a pair is of two regions: between: [A, B], or from: A and to: B")
        return self

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """The pairs of regions (from, to) that it is of."""
        if self.between is not None:
            a, b = self.between
            return (a, b), (b, a)
        assert self.source is not None
        assert self.target is not None
        return ((self.source, self.target),)


class CrossRegionKvSection(Section):
    """A model may prefill in one region and decode in another: the KV that moves costs ``usd_per_gb`` (10^9 bytes leaving a
    region) and takes at most ``gbit_per_s`` from one region to another, of all models together (null = no cap). Without
    ``usd_per_gb`` of all pairs only those in ``pairs`` are used."""

    usd_per_gb: UsdPerGb | None = None
    gbit_per_s: GbitPerS | None = None
    pairs: list[KvPairSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_a_price(self) -> CrossRegionKvSection:
        if self.usd_per_gb is None and (not self.pairs or any(pair.usd_per_gb is None for pair in self.pairs)):
            raise ValueError(
                "usd_per_gb is missing: no catalog has what a GB that leaves a region costs, your provider's price list has"
            )
        return self

    def terms(self, regions: Sequence[str]) -> dict[tuple[str, str], tuple[float, float | None]]:
        """By (from, to) of ``regions``, where KV may cross: USD/GB and Gbit/s (None = no cap). Of two entries the last counts."""
        found: dict[tuple[str, str], tuple[float, float | None]] = {}
        if self.usd_per_gb is not None:
            found = {(a, b): (self.usd_per_gb, self.gbit_per_s) for a in regions for b in regions if a != b}
        for pair in self.pairs:
            usd = self.usd_per_gb if pair.usd_per_gb is None else pair.usd_per_gb
            gbit = self.gbit_per_s if pair.gbit_per_s is None else pair.gbit_per_s
            for way in pair.ways:
                if usd is not None and set(way) <= set(regions):
                    found[way] = usd, gbit
        return found


def kv_terms_of(text: str) -> CrossRegionKvSection:
    """The terms for all pairs of regions that ``--cross-region-kv`` states: ``0.02`` or ``0.02,10``, in USD/GB and Gbit/s.
    Raises CoralError for another form."""
    price, *most = (plain_number(part.strip()) for part in text.split(","))
    try:
        if price is None or len(most) > 1 or None in most:
            raise ValueError
        return CrossRegionKvSection(usd_per_gb=price, gbit_per_s=most[0] if most else None)
    except (ValueError, ValidationError):
        raise CoralError(
            f"--cross-region-kv {clipped(text)!r} is no price",
            remedy="write what a GB that leaves a region costs in USD, from your provider's price list (no catalog has it), "
            "and how many Gbit/s may cross at most: 0.02,10",
        ) from None
