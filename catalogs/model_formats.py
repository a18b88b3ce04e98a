"""The format that a model's weights are published in, from ``quantization_config`` and ``torch_dtype``.

Known: bf16 and fp16 (two bytes), fp8 (per tensor, or in blocks), mxfp4 experts, and int4 in groups (AWQ, GPTQ, and both
fp8 and int4 as compressed-tensors writes them). Everything else is refused by field name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogs.model_fields import Fields, shown

_LARGEST_BLOCK = 1_000_000
_KNOWN = "known: fp8, fbgemm_fp8, mxfp4, awq, gptq, compressed-tensors (8-bit float or 4-bit integer weights)"


def shipped_dtype(fields: Fields) -> tuple[str, int]:
    """(weight format, block). Block: rows of an fp8 block, weights per int4 group; 0 = one scale for whole rows."""
    quantisation = fields.group("quantization_config", "compression_config")
    if not quantisation:
        return _plain(fields), 0
    method = quantisation.get("quant_method")
    if not isinstance(method, str):
        raise fields.error("quantization_config.quant_method", f"is {shown(method)}, wanted a text", _KNOWN)
    if method == "mxfp4":
        # Blocks of 32 do not constrain the layout: engines pad an expert's shard to whole blocks.
        return "mxfp4", 0
    if method in {"fp8", "fbgemm_fp8"}:
        return "fp8", _fp8_block(fields, quantisation)
    if method in {"awq", "gptq"}:
        return _four_bit(fields, quantisation)
    if method == "compressed-tensors":
        return _compressed(fields, quantisation)
    raise fields.error("quantization_config.quant_method", f"is {shown(method)}", _KNOWN)


def _plain(fields: Fields) -> str:
    dtype = fields.text("torch_dtype", "dtype", default="")
    if not dtype:
        raise fields.error("torch_dtype", "is missing")
    if dtype not in {"bfloat16", "float16"}:
        raise fields.error("torch_dtype", f"is {shown(dtype)}, known: bfloat16, float16")
    # Both take two bytes a weight and run on the same units.
    return "bf16"


def _fp8_block(fields: Fields, quantisation: Mapping[str, Any]) -> int:
    block = quantisation.get("weight_block_size")
    if block is None:
        return 0
    if not (isinstance(block, list) and len(block) == 2 and all(_is_size(n) for n in block)):
        raise fields.error("quantization_config.weight_block_size", f"is {shown(block)}, wanted two whole numbers")
    return int(block[0])


def _is_size(value: object) -> bool:
    """Whether ``value`` is a number of weights that share a scale."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST_BLOCK


def _four_bit(fields: Fields, quantisation: Mapping[str, Any]) -> tuple[str, int]:
    bits = quantisation.get("bits", quantisation.get("w_bit"))
    if bits != 4:
        raise fields.error("quantization_config.bits", f"is {shown(bits)}: only 4-bit integers have factors")
    return "int4", _group(fields, "group_size", quantisation.get("group_size", quantisation.get("q_group_size", 128)))


def _group(fields: Fields, name: str, value: object) -> int:
    """Weights that share a scale; -1 or null (whole rows) is 0."""
    if value is None or value == -1:
        return 0
    if not _is_size(value):
        wanted = f"wanted a whole number from 1 to {_LARGEST_BLOCK}, or -1"
        raise fields.error(f"quantization_config.{name}", f"is {shown(value)}, {wanted}")
    assert isinstance(value, int)
    return value


def _compressed(fields: Fields, quantisation: Mapping[str, Any]) -> tuple[str, int]:
    where = "config_groups"
    groups = quantisation.get(where)
    if not isinstance(groups, Mapping) or not groups:
        raise fields.error(f"quantization_config.{where}", "is missing")
    found = set()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise fields.error(f"quantization_config.{where}.{name}.weights", "is missing")
        bits, kind = weights.get("num_bits"), weights.get("type")
        if (bits, kind) == (8, "float"):
            found.add(("fp8", _fp8_block(fields, {"weight_block_size": weights.get("block_structure")})))
        elif (bits, kind) == (4, "int"):
            found.add(("int4", _group(fields, f"{where}.{name}.weights.group_size", weights.get("group_size"))))
        else:
            raise fields.error(
                f"quantization_config.{where}.{name}.weights", f"are {shown(bits)}-bit {shown(kind)}", _KNOWN
            )
    if len(found) > 1:
        raise fields.error(f"quantization_config.{where}", f"mixes formats: {sorted(found)}")
    return found.pop()
