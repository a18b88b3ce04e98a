"""The shipped catalogs as typed rows. ``load_catalog()`` is cached: the rows are frozen and the files do not change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from catalogs.errors import Finding, UnknownNameError
from catalogs.gpus import GpuNames
from catalogs.models import default_alias, model_from_config
from catalogs.offers import Place
from catalogs.tables import DATA_DIR, read_table, schema_of
from catalogs.types import (
    Efficiency,
    Gpu,
    GpuDie,
    Lengths,
    Market,
    ModelSpec,
    MoeFactors,
    NodeConfig,
    Offer,
    Provenance,
    Quota,
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine type at a provider. ``quota_family``/``quota_unit`` name the provider's limit it counts against."""

    provider: str
    instance_type: str
    gpu: str
    gpu_count: int
    vcpus: int | None
    link: str
    link_gb_per_s: float | None
    network_gbit_per_s: float | None
    is_cheapest_for_count: bool | None
    quota_family: str | None
    quota_unit: str | None
    sold_since: date | None
    note: str | None
    source: str
    as_of: date


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A named distribution of request lengths with percentiles of the prompt."""

    name: str
    moments: Lengths
    input_percentiles: tuple[tuple[float, float], ...]
    source: str
    as_of: date

    def at(self, percentile: float) -> Lengths:
        """The moments with the prompt length at the next tabulated percentile at or above ``percentile``."""
        prompt = next(tokens for q, tokens in self.input_percentiles if q >= percentile)
        m = self.moments
        return Lengths(
            m.input_mean, m.output_mean, m.input_sq_mean, m.output_sq_mean, m.cross_mean, prompt, f"trace {self.name}"
        )


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is true of the world: keyed by canonical id."""

    gpus: Mapping[str, Gpu]
    gpu_names: GpuNames
    instance_types: Mapping[tuple[str, str], InstanceType]
    node_configs: Mapping[str, NodeConfig]
    efficiencies: Mapping[str, Efficiency]
    models: Mapping[str, ModelSpec]
    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...]
    lengths: Mapping[str, LengthDistribution]
    places: Mapping[str, Place]

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions with at least one offer."""
        return tuple(sorted({offer.region for offer in self.offers}))

    def model(self, name: str) -> ModelSpec:
        """A model by Hugging Face id, by alias, or by the alias it has unless a scenario gives it another; ignoring case,
        the first of several. Raises UnknownNameError with close matches."""
        asked = name.lower()
        for names in (
            {spec.model: spec.model for spec in self.models.values()},
            {spec.model: spec.alias for spec in self.models.values()},
            {spec.model: default_alias(spec.model) for spec in self.models.values()},
        ):
            for model, known in names.items():
                if known.lower() == asked:
                    return self.models[model]
        # Both names of a model would take two of the few places: ids are offered to who writes ids.
        offered = [spec.model if "/" in name else spec.alias for spec in self.models.values()]
        raise UnknownNameError("model", name, offered)


@cache
def read_gpu_names() -> GpuNames:
    """Canonical GPU ids, aliases, and each sold instance type's GPU."""
    machines = {row["instance_type"]: row["gpu"] for row in _rows("instance_types")}
    return GpuNames.build([row["gpu"] for row in _rows("gpus")], gpu_alias_rows(), machines)


def gpu_alias_rows() -> list[tuple[str, str, str | None, str]]:
    """The alias table as (scope, alias, gpu, note)."""
    return [(row["scope"], row["alias"], row["gpu"], row["note"] or "") for row in _rows("gpu_aliases")]


@cache
def load_catalog() -> Catalog:
    """All shipped catalogs. Raises InputError with every fault where a file is not in order."""
    tuned: dict[str, tuple[tuple[int, int], ...]] = {}
    for row in _rows("expert_tiles"):
        tuned[row["gpu"]] = (*tuned.get(row["gpu"], ()), (row["experts"], row["width"]))
    return Catalog(
        gpus={row["gpu"]: Gpu(**row, tuned_experts=tuned.get(row["gpu"], ())) for row in _rows("gpus")},
        gpu_names=read_gpu_names(),
        instance_types={
            (row["provider"], row["instance_type"]): InstanceType(**row) for row in _rows("instance_types")
        },
        node_configs={row["node_config"]: NodeConfig(**row) for row in _rows("node_configs")},
        efficiencies={row["gpu"]: efficiency_from_row(row) for row in _rows("efficiency")},
        models={row["model"]: _model(row) for row in _rows("models")},
        offers=tuple(offer_from_row(row) for row in _rows("offers")),
        quotas=tuple(quota_from_row(row) for row in _rows("quotas")),
        lengths={row["name"]: _length_distribution(row) for row in _rows("lengths")},
        places={row["region"]: Place(row["latitude_deg"], row["longitude_deg"]) for row in _rows("regions")},
    )


@cache
def load_dies() -> dict[str, GpuDie]:
    """Dies of the GPUs whose makers publish them."""
    return {row["gpu"]: GpuDie(row["sm_count"], row["l2_mib"]) for row in _rows("gpu_dies")}


@cache
def _rows(table: str) -> Iterable[dict[str, Any]]:
    return read_table(DATA_DIR / f"{table}.csv", table).require_clean().rows


def _model(row: Row) -> ModelSpec:
    config = json.loads((DATA_DIR / row["config_file"]).read_text(encoding="utf-8"))
    names = {"alias": row["alias"], "source": row["source"], "config_file": row["config_file"]}
    return model_from_config(config, row["model"], as_of=row["as_of"], **names)


def offer_from_row(row: Row) -> Offer:
    """An offer from a row of the ``offers`` table."""
    return Offer(**{**row, "market": Market(row["market"])})


def quota_from_row(row: Row) -> Quota:
    """A quota from a row of the ``quotas`` table."""
    return Quota(row["provider"], row["region"], row["family"], row["unit"], row["limit"])


_GROUPED = ("moe_", "all_reduce_", "provenance_", "rel_error_")
# Blank in the file = the type's default, which leaves the refinement out.
_REFINING = frozenset({"gemm_fill", "attn_prep_ms", "attn_passes", "ew_inner_c", "attn_l2_gain"})


def efficiency_from_row(row: Row) -> Efficiency:
    """Factors of one GPU from a row of the ``efficiency`` table; a group without values becomes None."""

    def moe(kind: str) -> MoeFactors | None:
        values = [row[f"moe_{kind}_{name}"] for name in ("mfu", "mbu", "tau_ms", "skew", "p")]
        refined = {
            name: row[f"moe_{kind}_{name}"]
            for name in ("tile_rows", "fill", "l2_gain", "mfu_tuned", "tiles")
            if row.get(f"moe_{kind}_{name}") is not None
        }
        return None if any(value is None for value in values) else MoeFactors(*values, **refined)

    def reduce(size: str) -> dict[int, tuple[float, float]]:
        pairs = {
            n: (row[f"all_reduce_{n}_{size}alpha_ms"], row[f"all_reduce_{n}_{size}beta_gb_per_s"]) for n in (2, 4, 8)
        }
        return {n: pair for n, pair in pairs.items() if None not in pair}

    groups = ("gemm", "attn", "moe_bf16", "moe_mxfp4", "ar2", "ar4", "ar8")
    plain = [column.name for column in schema_of("efficiency").columns if not column.name.startswith(_GROUPED)]
    return Efficiency(
        **{name: row[name] for name in plain if row[name] is not None or name not in _REFINING},
        moe_bf16=moe("bf16"),
        moe_mxfp4=moe("mxfp4"),
        all_reduce=reduce(""),
        all_reduce_large=reduce("large_"),
        provenance={g: Provenance(row[f"provenance_{g}"]) for g in groups if row[f"provenance_{g}"]},
        rel_error={phase: row[f"rel_error_{phase}"] for phase in ("prefill", "decode")},
    )


def read_efficiencies(path: Path, label: str, names: GpuNames) -> tuple[dict[str, Efficiency], tuple[Finding, ...]]:
    """Factors from a file of one's own in the format of the ``efficiency`` table, by GPU, and its faults."""
    table = read_table(path, "efficiency", encode_gpu=names.encode, label=label)
    return {row["gpu"]: efficiency_from_row(row) for row in table.rows}, table.findings


def efficiency_to_row(eff: Efficiency, *, rel_error_source: str) -> dict[str, Any]:
    """The row of the ``efficiency`` table that :func:`efficiency_from_row` reads back as ``eff``; blanks are None."""
    row: dict[str, Any] = {column.name: getattr(eff, column.name, None) for column in schema_of("efficiency").columns}
    for kind, factors in (("bf16", eff.moe_bf16), ("mxfp4", eff.moe_mxfp4)):
        names = [field.name for field in fields(MoeFactors) if f"moe_{kind}_{field.name}" in row]
        values = {name: None if factors is None else getattr(factors, name) for name in names}
        row |= {f"moe_{kind}_{name}": None if value == "" else value for name, value in values.items()}
    for size, pairs in (("", eff.all_reduce), ("large_", eff.all_reduce_large)):
        for n in (2, 4, 8):
            alpha_ms, beta = pairs.get(n, (None, None))
            row |= {f"all_reduce_{n}_{size}alpha_ms": alpha_ms, f"all_reduce_{n}_{size}beta_gb_per_s": beta}
    row |= {f"provenance_{group}": ground.value for group, ground in eff.provenance.items()}
    row |= {f"rel_error_{phase}": error for phase, error in eff.rel_error.items()}
    return row | {"rel_error_source": rel_error_source}


def _length_distribution(row: Row) -> LengthDistribution:
    percentiles = tuple((q, row[f"input_p{q:g}"]) for q in (50.0, 90.0, 95.0, 99.0))
    names = ("input_mean", "output_mean", "input_sq_mean", "output_sq_mean", "cross_mean")
    moments = Lengths(
        **{name: row[name] for name in names}, input_at_percentile=row["input_max"], source=f"trace {row['name']}"
    )
    return LengthDistribution(
        row["name"], moments, (*percentiles, (100.0, row["input_max"])), row["source"], row["as_of"]
    )
