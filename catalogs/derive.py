"""Regenerates the shipped catalogs from the raw figures, so that every number can be traced and made again.

``python -m catalogs.derive`` rewrites ``data/`` from the raw data folder (``../shared/data`` beside the repository, or
the environment variable CORAL_SHARED_DATA); ``--check`` only compares. A test does the same. Small tables that are
facts in themselves (GPU aliases, regions, scenarios, schemas) are kept by hand; efficiency factors are fitted, by
``python -m flows.efficiency``.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catalogs.catalog import gpu_alias_rows
from catalogs.derive_lengths import length_rows
from catalogs.derive_machines import instance_type_rows, node_config_rows
from catalogs.derive_offers import offer_rows
from catalogs.gpus import GpuNames
from catalogs.models import default_alias
from catalogs.tables import DATA_DIR, schema_of

Row = dict[str, Any]

# The raw collection's newest dated file is of this day: facts without a date of their own held then.
COLLECTED_ON = "2026-07-30"

_CONFIG_FIELDS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
    "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern", "layer_types",
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step",
    "mlp_only_layers", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "torch_dtype", "quantization_config", "text_config",
)  # fmt: skip
_QUANTISATION_FIELDS = ("quant_method", "weight_block_size")


def raw_data_dir() -> Path:
    """The raw data folder: CORAL_SHARED_DATA, else ``../shared/data`` beside the repository."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    return Path(os.environ.get("CORAL_SHARED_DATA", default))


def derive_all(raw: Path) -> dict[str, str]:
    """Every derived file: path below ``data/`` -> its text."""
    gpus = gpu_rows(read_raw(raw / "gpus.csv"))
    names = GpuNames.build([gpu["gpu"] for gpu in gpus], gpu_alias_rows())
    machines = instance_type_rows(
        read_raw(raw / "nodes.csv"), read_raw(raw / "prices" / "aws_us-east-1_ondemand_changes.csv"), names
    )
    _add_vcpus(machines, raw)
    offers = offer_rows(raw / "prices", names, {(m["provider"], m["instance_type"]): m for m in machines})
    tables = {
        "gpus": gpus,
        "instance_types": machines,
        "node_configs": node_config_rows(gpus, machines),
        "models": model_rows(read_raw(raw / "models.csv")),
        "offers": offers,
        "lengths": length_rows(raw / "traces"),
    }
    files = {f"{table}.csv": to_csv(table, rows) for table, rows in tables.items()}
    for path in sorted((raw / "models").glob("*.json")):
        files[f"models/{path.name}"] = _config_text(json.loads(path.read_text()))
    return files


def to_csv(table: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV text with the schema's columns in the schema's order; an unknown key raises ValueError."""
    names = [column.name for column in schema_of(table).columns]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return format(round(value, 6), ".10g")
    return str(value)


def read_raw(path: Path) -> list[dict[str, str]]:
    """A CSV file of the raw collection: its rows as text."""
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def _number(text: str) -> float | None:
    return float(text) if text else None


def gpu_rows(raw: list[dict[str, str]]) -> list[Row]:
    """GPU types. Memory is the driver's figure where there is one: the marketing one overstates (L40S 44.99, not 48)."""
    rows = []
    for line in raw:
        driver_mib = _number(line["memory_mib_driver"])
        rows.append(
            {
                "gpu": line["gpu"],
                "vendor": line["vendor"],
                "memory_gib": float(line["memory_gb"]) if driver_mib is None else driver_mib / 1024,
                "memory_is_nominal": driver_mib is None,
                "memory_bandwidth_gb_per_s": float(line["memory_bw_gbs"]),
                "bf16_dense_tflops": _number(line["bf16_dense_tflops"]),
                "fp16_dense_tflops": _number(line["fp16_dense_tflops"]),
                "fp8_dense_tflops": _number(line["fp8_dense_tflops"]),
                "has_native_bf16": line["native_bf16"] == "1",
                "has_native_fp8": line["native_fp8"] == "1",
                "link": line["gpu_link"],
                "link_gb_per_s": _number(line["gpu_link_gbs_bidir"]),
                "pcie_gb_per_s": float(line["pcie_gbs_bidir"]),
                "source": line["source"],
                "as_of": COLLECTED_ON,
            }
        )
    return rows


def _add_vcpus(machines: list[Row], raw: Path) -> None:
    """vCPUs stand in the price files only; quotas in vCPU need them."""
    vcpus: dict[tuple[str, str], int] = {}
    for provider, name in (("aws", "aws_vms.csv"), ("aws", "aws_vms_v8_subset.csv"), ("gcp", "gcp_vms.csv")):
        for line in read_raw(raw / "prices" / name):
            vcpus[provider, line["InstanceType"]] = int(float(line["vCPUs"]))
    for machine in machines:
        machine["vcpus"] = vcpus.get((machine["provider"], machine["instance_type"]))


# Our column <- theirs. Times are ms, rates GB/s, in both.
_EFFICIENCY = {
    "peak_bf16_tflops": "peak_bf16_tflops",
    "memory_bandwidth_gb_per_s": "hbm_gbs",
    "p": "p",
    "mfu_gemm": "mfu_gemm",
    "mbu_gemm": "mbu_gemm",
    "tau_gemm_ms": "tau_gemm",
    "mfu_attn": "mfu_attn",
    "mbu_attn": "mbu_attn",
    "tau_attn_ms": "tau_attn",
    "tau_attn_prefill_ms": "tau_attn_p",
    **{f"moe_bf16_{ours}": theirs for ours, theirs in (
        ("mfu", "mfu_moe_bf"), ("mbu", "mbu_moe_bf"), ("tau_ms", "tau_moe_bf"), ("skew", "moe_skew_bf"), ("p", "p_moe_bf"))},
    **{f"moe_mxfp4_{ours}": theirs for ours, theirs in (
        ("mfu", "mfu_moe_mx"), ("mbu", "mbu_moe_mx"), ("tau_ms", "tau_moe_mx"), ("skew", "moe_skew_mx"), ("p", "p_moe_mx"))},
    **{f"all_reduce_{n}_alpha_ms": f"ar_alpha{n}" for n in (2, 4, 8)},
    **{f"all_reduce_{n}_beta_gb_per_s": f"ar_beta{n}" for n in (2, 4, 8)},
    "ew_c": "ew_c",
    "tau_ew_ms": "tau_ew",
}  # fmt: skip
# A column whose value tells whether the group has factors at all.
_GROUPS = {
    "gemm": "mfu_gemm", "attn": "mfu_attn", "moe_bf16": "moe_bf16_mfu", "moe_mxfp4": "moe_mxfp4_mfu",
    "ar2": "all_reduce_2_beta_gb_per_s", "ar4": "all_reduce_4_beta_gb_per_s", "ar8": "all_reduce_8_beta_gb_per_s",
}  # fmt: skip
_DERIVED_FROM = {"a10g": ("a40", "l40s")}


def efficiency_rows(raw: list[dict[str, str]], errors: list[dict[str, str]], names: GpuNames) -> list[Row]:
    """The raw collection's own factors of the GPUs in the catalog, with the ground under each group and the errors on
    held-out models; the shipped table takes some rows from here (``flows/efficiency.py``)."""
    rows = []
    for line in raw:
        if line["gpu"] in {alias for scope, alias in names.not_carried if scope == "efficiency"}:
            continue
        row: Row = {"gpu": names.encode(line["gpu"], scope="efficiency")}
        row |= {ours: _number(line[theirs]) for ours, theirs in _EFFICIENCY.items()}
        for group, column in _GROUPS.items():
            row[f"provenance_{group}"] = None if row[column] is None else group_provenance(line["provenance"], group)
        row |= held_out_errors(line["gpu"], errors)
        rows.append(row | {"source": line["provenance"], "as_of": COLLECTED_ON})
    return rows


def group_provenance(text: str, group: str) -> str:
    """The ground under one group of factors, from the file's free text: ``fit: A; moe borrowed from B, AR4/AR8 borrowed
    from B`` means moe_*, ar4 and ar8 are borrowed, the rest fitted; ``derived: ...`` means all are derived."""
    if text.startswith("derived"):
        return "derived"
    marks = {
        "moe_bf16": ("moe borrowed",),
        "moe_mxfp4": ("moe borrowed", "*_mx borrowed"),
        "ar4": ("AR4/AR8 borrowed",),
    }
    marks["ar8"] = marks["ar4"]
    return "borrowed" if any(mark in text for mark in marks.get(group, ())) else "fitted"


def held_out_errors(gpu: str, errors: list[dict[str, str]]) -> Row:
    """Mean error (MAPE) per phase on held-out models; for a derived GPU the largest p90 among those it is derived from,
    since nothing was measured on it."""

    def figures(of: str, phase: str, column: str) -> list[float]:
        lines = [e for e in errors if e["gpu"] == of and e["phase"] == phase and e["split"] == "heldout-model"]
        return [float(line[column]) / 100 for line in lines]

    donors = _DERIVED_FROM.get(gpu)
    row: Row = {}
    for phase in ("prefill", "decode"):
        values = (
            figures(gpu, phase, "MAPE") if donors is None else [v for d in donors for v in figures(d, phase, "p90")]
        )
        row[f"rel_error_{phase}"] = max(values)
    row["rel_error_source"] = (
        "MAPE per layer, held-out models"
        if donors is None
        else f"nothing measured: largest held-out p90 of {' and '.join(donors)}"
    )
    return row


def model_rows(raw: list[dict[str, str]]) -> list[Row]:
    """The index of shipped models."""
    return [
        {
            "model": line["hf_id"],
            "alias": default_alias(line["hf_id"]),
            "config_file": "models/" + line["hf_id"].replace("/", "__") + ".json",
            "params_total_published_b": _number(line["params_total_published_b"]),
            "params_active_published_b": _number(line["params_active_published_b"]),
            "source": line["source"],
            "as_of": COLLECTED_ON,
        }
        for line in raw
    ]


def _config_text(config: dict[str, Any]) -> str:
    """The fields of a config.json that the planner reads, in a fixed order."""
    kept = {name: config[name] for name in _CONFIG_FIELDS if name in config}
    if "text_config" in kept:
        kept["text_config"] = {name: value for name, value in kept["text_config"].items() if name in _CONFIG_FIELDS}
    if "quantization_config" in kept:
        quantisation = kept["quantization_config"]
        kept["quantization_config"] = {
            name: quantisation[name] for name in _QUANTISATION_FIELDS if name in quantisation
        }
    return json.dumps(kept, indent=1) + "\n"


def main() -> int:
    """Write the files, or compare with ``--check`` (exit 3 on a difference)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    different = []
    for name, text in derive_all(raw_data_dir()).items():
        path = DATA_DIR / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            different.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    sys.stdout.write("".join(f"{name}: {'differs' if options.check else 'written'}\n" for name in different))
    return 3 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
