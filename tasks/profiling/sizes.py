"""A model's sizes for a person: parameters, bytes per layer and for the KV, which tensor-parallel degrees are legal and why
others are not, and how much a middle stage is overcharged where layers differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catalogs.types import ModelSpec
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

DEGREES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Layers that cost the same. ``window`` in tokens, 0 = full attention; bytes are of one whole layer."""

    layers: int
    is_moe: bool
    window: int
    weight_bytes: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Degree:
    """A tensor-parallel degree; ``refusal`` is empty where it is legal."""

    tp: int
    refusal: str


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of one model in one weight and KV format. Bytes are of the whole model unless said otherwise.

    ``params_active`` counts what a token touches, embedding included. ``kv_bytes_at_longest`` is of one sequence of
    ``max_position`` tokens. ``worst_run_weights`` and ``worst_run_kv``: where layers differ a middle stage may begin
    anywhere and is charged for its heaviest run; by how much that exceeds the lightest of a quarter of the layers.
    """

    model: str
    alias: str
    weight_dtype: str
    kv_dtype: str
    params_total: float
    params_active: float
    weight_bytes: float
    embedding_bytes: float
    lm_head_bytes: float
    layers: tuple[LayerSizes, ...]
    kv_bytes_per_token: float
    kv_bytes_at_longest: float
    max_position: int
    degrees: tuple[Degree, ...]
    worst_run_weights: float
    worst_run_kv: float


def model_sizes(
    spec: ModelSpec, weight_dtype: str = "", kv_dtype: str = "bf16", degrees: tuple[int, ...] = DEGREES
) -> ModelSizes:
    """The sizes of ``spec``; ``weight_dtype`` defaults to the format its weights are published in.

    Raises CoralError for a format that is unknown or does not fit the model.
    """
    shape = ModelShape(spec, weight_dtype or spec.shipped_dtype, kv_dtype)
    token = shape.kv_bytes_per_token_layer()
    weights = np.array([shape.layer_weight_bytes(kind, 1) for kind in shape.kinds])
    return ModelSizes(
        model=spec.model,
        alias=spec.alias,
        weight_dtype=shape.weight_dtype,
        kv_dtype=kv_dtype,
        params_total=shape.params_total,
        params_active=shape.params_active,
        weight_bytes=shape.weight_bytes,
        embedding_bytes=shape.embedding_bytes(1),
        lm_head_bytes=0.0 if spec.has_tied_embeddings else shape.lm_head_bytes(1),
        layers=tuple(
            LayerSizes(shape.kind_of_layer.count(kind), kind.is_moe, kind.window, float(weight), token)
            for kind, weight in zip(shape.kinds, weights, strict=True)
        ),
        kv_bytes_per_token=token * spec.layers,
        kv_bytes_at_longest=shape.kv_bytes_all_layers(spec.max_position),
        max_position=spec.max_position,
        degrees=tuple(Degree(tp, shape.tp_refusal(tp)) for tp in degrees),
        worst_run_weights=worst_run_excess(shape, weights),
        worst_run_kv=worst_run_excess(shape, shape.kv_bytes_per_sequence(spec.max_position)),
    )


def worst_run_excess(shape: ModelShape, cost: NDArray[np.float64]) -> float:
    """By how much, relatively, the costliest run of a middle stage of a quarter of the layers exceeds its cheapest: the
    most that such a stage is overcharged; ``cost`` is per layer of each kind [kinds]. First and last stages are exact."""
    total = shape.spec.layers
    runs = shape.runs(max(1, min(total // 4, total - 2)), Position.MID) @ cost
    return float(runs.max() / runs.min()) - 1
