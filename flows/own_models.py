"""Models of one's own: read from a config.json, kept beside a scenario."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, InputError
from catalogs.scenario import MOST_CONFIG_MIB, read_model_config
from catalogs.texts import UnreadableError, parse_json, read_text, write_text

if TYPE_CHECKING:
    from catalogs.types import ModelSpec
    from tasks.profiling.sizes import ModelSizes

_NAME = re.compile(r"[^\s/]+(/[^\s/]+)*")
_FILE_NAME = re.compile(r"\w[\w.+-]*")
_FOLDER = "models"


@dataclass(frozen=True, slots=True)
class KeptModel:
    """Where a config was written; ``reference`` is its path relative to the scenario. ``is_new`` False: it was there."""

    path: Path
    reference: str
    is_new: bool

    def entry(self, spec: ModelSpec, sizes: ModelSizes) -> str:
        """What to put under ``models`` of the scenario; lengths, SLO and demand are the user's to say."""
        return "\n".join(
            (
                "put this under `models:` of the scenario, with your own lengths, SLO and demand:",
                f"  - model: {spec.model}",
                f"    alias: {spec.alias}",
                f"    config: {self.reference}",
                f"    weight_dtype: {sizes.weight_dtype}",
                "    lengths: {input: 621, output: 126}",
                "    slo: {ttft_ms: 1500, tpot_ms: 80, percentile: 99}",
                "    demand_req_per_s: 1",
            )
        )


def default_model_id(config: Path) -> str:
    """``Qwen__Qwen3-8B.json`` -> ``Qwen/Qwen3-8B``; a plain ``config.json`` is named after its folder."""
    stem = config.stem
    if stem == "config":
        stem = config.resolve().parent.name
    return stem.replace("__", "/")


def read_own_model(config: Path, model_id: str | None, alias: str | None) -> ModelSpec:
    """The model of a config on disk. Raises InputError with the one fault that prevents it."""
    spec, findings = read_model_config(config, model_id or default_model_id(config), alias or "", config.name)
    if spec is None:
        raise InputError(findings)
    return spec


def keep_model(config: Path, spec: ModelSpec, to: Path) -> KeptModel:
    """Copy the config to ``models/<alias>.json`` beside the scenario ``to`` (or into the folder ``to``).

    Raises CoralError where another config has that name, or ``to`` is no folder or scenario.
    """
    root = to if to.is_dir() else to.parent
    if not (to.is_dir() or (to.is_file() and to.suffix in {".yaml", ".yml"})):
        raise CoralError(f"{to} is neither a folder nor a scenario file", remedy="name a scenario, or make the folder")
    if not _NAME.fullmatch(spec.model):
        raise CoralError(f"{spec.model!r} is no name of a model", remedy="give --id as ORG/NAME, without blanks")
    if not _FILE_NAME.fullmatch(spec.alias):
        raise CoralError(f"alias {spec.alias!r} is no file name", remedy="give --alias with letters, digits and dashes")
    path = root / _FOLDER / f"{spec.alias}.json"
    reference = f"{_FOLDER}/{path.name}"
    document = _document(config)
    if os.path.lexists(path):
        if _document(path) == document:
            return KeptModel(path, reference, is_new=False)
        raise CoralError(f"{path} holds another config", remedy="give another --alias, or remove that file")
    write_text(path, json.dumps(document, indent=1) + "\n")
    return KeptModel(path, reference, is_new=True)


def _document(path: Path) -> Any:
    """What a config holds; None where it cannot be read."""
    try:
        return parse_json(read_text(path, most_mib=MOST_CONFIG_MIB, kind="config.json"), "")
    except UnreadableError:
        return None
