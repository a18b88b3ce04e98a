"""``coral models``: the catalog's, a model's sizes, and models of one's own from their Hugging Face config."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_common import JsonOption, command_group, described, put, put_json, say

if TYPE_CHECKING:
    from catalogs.types import ModelSpec
    from tasks.profiling.sizes import ModelSizes

_KvOption = Annotated[str, typer.Option("--kv-dtype", metavar="bf16|fp8", help="Format of the KV cache.")]
_WeightOption = Annotated[
    str | None,
    typer.Option("--weight-dtype", metavar="FORMAT", help="bf16, fp8, int4, mxfp4. [default: as published]"),
]


def register(app: typer.Typer) -> None:
    """Add the group and its commands to ``app``."""
    models = command_group(
        "models",
        "Models: what they weigh, and your own.",
        "coral models list",
        "coral models show qwen3-32b",
        short="Sizes of models; add your own.",
    )
    models.command("list", **described("The models of the catalog.", "coral models list", "coral models list --json"))(
        list_models
    )
    models.command(
        "add",
        **described(
            "Take a model from its config.json.",
            "coral init my",
            "coral models add my/models/my-8b-chat.json --id my-org/my-8b --to my/scenario.yaml",
        ),
    )(add)
    models.command("show", **described("A known model's sizes.", "coral models show qwen3-32b --weight-dtype int4"))(
        show
    )
    app.add_typer(models)


def list_models(as_json: JsonOption = False) -> None:
    """List the catalog's models by alias: sizes, published format, longest context, legal tensor-parallel degrees."""
    from catalogs import load_catalog
    from flows.render import table
    from tasks.profiling.sizes import model_sizes

    sizes = [model_sizes(spec) for spec in load_catalog().models.values()]
    if as_json:
        put_json([asdict(size) for size in sizes])
        return
    rows = [
        (
            size.alias,
            size.model,
            f"{size.params_total / 1e9:,.1f}",
            f"{size.params_active / 1e9:,.1f}",
            str(sum(kind.layers for kind in size.layers)),
            size.weight_dtype,
            f"{size.weight_bytes / 2**30:,.1f}",
            f"{size.max_position:,}",
            ",".join(str(degree.tp) for degree in size.degrees if not degree.refusal),
        )
        for size in sizes
    ]
    header = ("alias", "model", "B params", "active", "layers", "weights", "GiB", "context", "tp")
    put("\n".join(table(header, rows, right=(2, 3, 4, 6, 7))))


def add(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The config.json published with the weights.")],
    model_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ORG/NAME", help="The model's name. [default: from the file's name or folder]"),
    ] = None,
    alias: Annotated[str | None, typer.Option("--alias", help="A short name. [default: from the model's name]")] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR|SCENARIO", help="The scenario, or its folder, to write beside.")
    ] = Path(),
    weight_dtype: _WeightOption = None,
    kv_dtype: _KvOption = "bf16",
    as_json: JsonOption = False,
) -> None:
    """Read a model's config, print its sizes, and write it to models/ALIAS.json beside a scenario.

    Prints the entry to put under the scenario's `models`. Refuses an architecture it has no formulas for, naming the field.
    """
    from flows.own_models import keep_model, read_own_model
    from tasks.profiling.sizes import model_sizes

    spec = read_own_model(config, model_id, alias)
    sizes = model_sizes(spec, weight_dtype or "", kv_dtype)
    kept = keep_model(config, spec, to)
    if as_json:
        put_json({**asdict(sizes), "config": kept.reference})
    else:
        put("\n".join(sizes_lines(sizes, spec)))
    say(f"{kept.path}: {'written' if kept.is_new else 'there already, unchanged'}")
    say(kept.entry(spec, sizes))


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name or alias, or a config.json.")],
    weight_dtype: _WeightOption = None,
    kv_dtype: _KvOption = "bf16",
    as_json: JsonOption = False,
) -> None:
    """Print a model's parameters, bytes per layer, KV bytes and legal tensor-parallel degrees."""
    from catalogs import load_catalog
    from flows.own_models import read_own_model
    from tasks.profiling.sizes import model_sizes

    path = Path(model)
    spec = read_own_model(path, None, None) if path.suffix == ".json" else load_catalog().model(model)
    sizes = model_sizes(spec, weight_dtype or "", kv_dtype)
    if as_json:
        put_json(asdict(sizes))
    else:
        put("\n".join(sizes_lines(sizes, spec)))


def sizes_lines(sizes: ModelSizes, spec: ModelSpec) -> list[str]:
    """The sizes as text: one fact a line, then layers and tensor-parallel degrees as tables."""
    from flows.render import table

    gib = 2**30
    lines = [
        f"{sizes.model} ({sizes.alias}), {spec.model_type}, weights {sizes.weight_dtype}, KV {sizes.kv_dtype}",
        f"  parameters         {sizes.params_total / 1e9:.2f} B, active per token {sizes.params_active / 1e9:.2f} B",
        f"  weights            {sizes.weight_bytes / gib:.2f} GiB: embedding {sizes.embedding_bytes / gib:.2f}, "
        + ("head tied to it" if spec.has_tied_embeddings else f"head {sizes.lm_head_bytes / gib:.2f}"),
        f"  KV                 {sizes.kv_bytes_per_token:,.0f} bytes per token; "
        f"{sizes.kv_bytes_at_longest / gib:.3f} GiB per sequence of {sizes.max_position:,} tokens",
    ]
    rows = [
        (
            str(kind.layers),
            "experts" if kind.is_moe else "dense",
            f"{kind.window:,}" if kind.window else "full",
            f"{kind.weight_bytes / 2**20:,.1f}",
            f"{kind.kv_bytes_per_token:,.0f}",
        )
        for kind in sizes.layers
    ]
    lines += table(("layers", "kind", "window", "MiB each", "KV bytes/token"), rows, right=(0, 3, 4))
    if len(sizes.layers) > 1:
        lines.append(
            "  layers differ: first and last stages are exact; a middle stage is charged for its heaviest run: of a quarter "
            f"of the layers {sizes.worst_run_weights:.1%} more weights, {sizes.worst_run_kv:.1%} more KV than the lightest"
        )
    legal = [str(degree.tp) for degree in sizes.degrees if not degree.refusal]
    lines.append(f"  tensor parallel    {', '.join(legal)}")
    lines += [f"  not {degree.tp:<15}{degree.refusal}" for degree in sizes.degrees if degree.refusal]
    return lines
