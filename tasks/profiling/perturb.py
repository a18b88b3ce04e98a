"""Factors changed on purpose: what a study of a plan's sensitivity varies, and rates as they would be were factors wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catalogs.ids import split_node_config
from catalogs.types import Efficiency, MoeFactors
from tasks.profiling.memory import ProfileSettings

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What profiles are computed from and a study changes."""

    efficiencies: Mapping[str, Efficiency]
    settings: ProfileSettings


def factor_names(gpus: Sequence[str]) -> tuple[str, ...]:
    """The factors of the model, the de-ratings and the memory share, and each GPU's speed as a whole."""
    return (*_FACTORS, *_SETTINGS, *(f"{_GPU}{gpu}" for gpu in gpus))


def perturbed(inputs: Inputs, factor: str, ratio: float) -> Inputs:
    """``inputs`` with one factor ``ratio`` times as good: that much faster, or that much more memory; all GPUs alike unless
    the factor is one GPU's speed. Raises KeyError for another name."""
    if factor in _SETTINGS:
        return replace(inputs, settings=_SETTINGS[factor](inputs.settings, ratio))
    if factor.startswith(_GPU):
        return replace(inputs, settings=_gpu_speed(inputs.settings, factor.removeprefix(_GPU), ratio))
    change = _FACTORS[factor]
    return replace(inputs, efficiencies={gpu: change(eff, ratio) for gpu, eff in inputs.efficiencies.items()})


_GPU = "speed of "


def _scaled(value: float | None, ratio: float) -> float | None:
    return None if value is None else value * ratio


def _experts(eff: Efficiency, ratio: float) -> Efficiency:
    def scaled(moe: MoeFactors | None) -> MoeFactors | None:
        return (
            None
            if moe is None
            else replace(moe, mfu=moe.mfu * ratio, mbu=moe.mbu * ratio, mfu_tuned=_scaled(moe.mfu_tuned, ratio))
        )

    return replace(eff, moe_bf16=scaled(eff.moe_bf16), moe_mxfp4=scaled(eff.moe_mxfp4))


def _all_reduce(eff: Efficiency, ratio: float) -> Efficiency:
    def scaled(pairs: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
        return {n: (alpha / ratio, beta * ratio) for n, (alpha, beta) in pairs.items()}

    return replace(eff, all_reduce=scaled(eff.all_reduce), all_reduce_large=scaled(eff.all_reduce_large))


def _fixed_times(eff: Efficiency, ratio: float) -> Efficiency:
    return replace(
        eff,
        tau_gemm_ms=eff.tau_gemm_ms / ratio,
        tau_attn_ms=_scaled(eff.tau_attn_ms, 1 / ratio),
        tau_attn_prefill_ms=_scaled(eff.tau_attn_prefill_ms, 1 / ratio),
        attn_prep_ms=eff.attn_prep_ms / ratio,
        tau_ew_ms=eff.tau_ew_ms / ratio,
    )


_FACTORS: dict[str, Callable[[Efficiency, float], Efficiency]] = {
    "dense compute": lambda eff, ratio: replace(eff, mfu_gemm=eff.mfu_gemm * ratio),
    "dense memory": lambda eff, ratio: replace(eff, mbu_gemm=eff.mbu_gemm * ratio),
    "prefill attention": lambda eff, ratio: replace(eff, mfu_attn=_scaled(eff.mfu_attn, ratio)),
    "decode attention": lambda eff, ratio: replace(eff, mbu_attn=_scaled(eff.mbu_attn, ratio)),
    "experts": _experts,
    "all-reduce": _all_reduce,
    "element-wise": lambda eff, ratio: replace(eff, ew_c=eff.ew_c / ratio, ew_inner_c=eff.ew_inner_c / ratio),
    "fixed times": _fixed_times,
}


def _gpu_speed(settings: ProfileSettings, gpu: str, ratio: float) -> ProfileSettings:
    own = [(name, phase, value) for name, phase, value in settings.calibration if name != gpu]
    of = {(name, phase): value for name, phase, value in settings.calibration}
    both = [("prefill", settings.prefill_derate), ("decode", settings.decode_derate)]
    own += [(gpu, phase, of.get((gpu, phase), stated) * ratio) for phase, stated in both]
    return replace(settings, calibration=tuple(own))


def _derating(phase: str) -> Callable[[ProfileSettings, float], ProfileSettings]:
    def change(settings: ProfileSettings, ratio: float) -> ProfileSettings:
        own = tuple((gpu, of, value * ratio if of == phase else value) for gpu, of, value in settings.calibration)
        if phase == "prefill":
            return replace(settings, calibration=own, prefill_derate=settings.prefill_derate * ratio)
        return replace(settings, calibration=own, decode_derate=settings.decode_derate * ratio)

    return change


_SETTINGS: dict[str, Callable[[ProfileSettings, float], ProfileSettings]] = {
    "prefill de-rating": _derating("prefill"),
    "decode de-rating": _derating("decode"),
    # Never beyond what there is.
    "usable memory": lambda settings, ratio: replace(
        settings, gpu_memory_utilization=min(0.99, settings.gpu_memory_utilization * ratio)
    ),
}


def drawn_speed(rel_error: float, z: float) -> float:
    """A true speed as a multiple of the believed one, from a standard normal ``z``: log-normal with that mean absolute
    error. Nodes of one GPU share their ``z``: an error of its factors is common to them."""
    return math.exp(z * rel_error * math.sqrt(math.pi / 2))


def template_rates(templates: pa.Table, speeds: Mapping[str, float]) -> NDArray[np.int64]:
    """Rates of template rows (TEMPLATE_SCHEMA) in milli-tokens/s were each GPU ``speeds`` times as fast: the slowest stage
    of the stored placement, rounded down."""
    stages = templates["stages"].combine_chunks()
    per_template = np.asarray(stages.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    members = stages.flatten().field("members")
    per_stage = np.asarray(members.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    flat = members.flatten()
    encoded = flat.field("node_config").dictionary_encode()
    ratio = np.array([speeds[split_node_config(name)[0]] for name in encoded.dictionary.to_pylist()])
    rate = flat.field("throughput_mtok_per_s").to_numpy(zero_copy_only=False)
    rate = rate * ratio[encoded.indices.to_numpy(zero_copy_only=False)]
    if not len(rate):
        return np.zeros(0, np.int64)
    summed = np.add.reduceat(rate, np.concatenate([[0], np.cumsum(per_stage)[:-1]]))
    least = np.minimum.reduceat(summed, np.concatenate([[0], np.cumsum(per_template)[:-1]]))
    return np.floor(least).astype(np.int64)
