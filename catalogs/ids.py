"""Canonical ids: node configurations, combinations, and short hashes of canonical JSON (CONTRACTS, section Ids)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_NODE_CONFIG = re.compile(r"^(?P<gpu>.+)x(?P<count>[1-9][0-9]*)$")


# GPUs of one machine: racks that act as one have 72 now.
_MOST_GPUS = 128
NODE_CONFIG_REMEDY = f"write the GPU id, an x and the count (1 to {_MOST_GPUS}), such as L40Sx2"


def canonical_json(value: Any) -> str:
    """``value`` as JSON with sorted keys, no spaces, and no NaN (raises ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def short_hash(value: Any) -> str:
    """First 16 hex digits of sha256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def node_config_id(gpu: str, gpu_count: int) -> str:
    """``L40S``, 2 -> ``L40Sx2``. The GPU id must already be canonical."""
    return f"{gpu}x{gpu_count}"


def split_node_config(node_config: str) -> tuple[str, int]:
    """``A100-80GB-SXMx4`` -> (``A100-80GB-SXM``, 4). Raises ValueError for another form."""
    match = _NODE_CONFIG.match(node_config)
    if match is None or len(match["count"]) > len(str(_MOST_GPUS)) or int(match["count"]) > _MOST_GPUS:
        raise ValueError(f"{node_config!r} is not a node configuration such as L40Sx2 of at most {_MOST_GPUS} GPUs")
    return match["gpu"], int(match["count"])


def combination_id(nodes: Mapping[str, int]) -> str:
    """``{"L40Sx1": 3, "H100-SXMx2": 3}`` -> ``H100-SXMx2*3+L40Sx1*3`` (sorted by configuration; zero counts dropped)."""
    return "+".join(f"{config}*{count}" for config, count in sorted(nodes.items()) if count)


def parse_combination_id(text: str) -> dict[str, int]:
    """The inverse of :func:`combination_id`."""
    pairs = (part.rsplit("*", 1) for part in text.split("+"))
    return {config: int(count) for config, count in pairs}
