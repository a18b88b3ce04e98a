"""``coral profiles add``: measured node rates and vLLM benchmarks into a scenario."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import JsonOption, described, put, put_json, say

if TYPE_CHECKING:
    from flows.own_profiles import Attached, DerateRow, RateRow


def register(profiles: typer.Typer) -> None:
    """Add the command to the group."""
    profiles.command(
        "add",
        **described(
            "Use your own measurements.",
            "coral init my",
            "coral profiles add my/rates.csv --scenario my/scenario.yaml",
        ),
    )(add)


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rates: .csv, .parquet. vLLM benchmark: .json, .jsonl.")],
    scenario: Annotated[
        Path, typer.Option("--scenario", "-s", metavar="PATH", help="Your scenario; it is told of the measurements.")
    ],
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU of a benchmark. [default: its metadata]")] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Tensor-parallel degree of a benchmark. [default: its metadata]")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The scenario's model, where the benchmark calls it otherwise.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check measurements, show them beside the model, and attach them to a scenario.

    Rates replace modelled ones row by row and count as `measured`. A benchmark of `vllm bench serve` sets the de-rating of
    its GPU and model. Nothing is written when anything is wrong.
    """
    from catalogs.scenario import load_scenario
    from flows import own_profiles

    path = own_profiles.own_scenario(scenario)
    loaded = load_scenario(path)
    if file.suffix.lower() in {".json", ".jsonl"}:
        from catalogs.vllm_bench import read_bench

        runs = read_bench(file)
        derates = own_profiles.benchmarked(runs, loaded, gpu, tp, model)
        attached = own_profiles.attach_derates(derates, runs, path, loaded)
        put_json([asdict(row) for row in derates]) if as_json else put("\n".join(_derate_lines(derates)))
    else:
        rates = own_profiles.compared_rates(file, loaded)
        attached = own_profiles.attach_rates(file, path, loaded)
        put_json([asdict(row) for row in rates]) if as_json else put("\n".join(_rate_lines(rates)))
    say(_attached_text(attached, path))


def _rate_lines(rows: list[RateRow]) -> list[str]:
    from flows.render import table

    cells = []
    for row in rows:
        rate, modelled = row.rate, row.modelled_tok_per_s
        cells.append(
            (
                rate.node_config,
                row.workload,
                f"{rate.layers} {rate.position} of {rate.stages}",
                f"{rate.cycle_ms:g}" if rate.cycle_ms else "any",
                f"{rate.throughput_tok_per_s:,.0f}",
                f"{modelled:,.0f}" if modelled else "none",
                f"{rate.throughput_tok_per_s / modelled:.2f}" if modelled else "",
            )
        )
    header = ("node", "workload", "layers", "cycle ms", "measured tok/s", "modelled", "ratio")
    lines = table(header, cells, right=(3, 4, 5, 6))
    odd = [row.rate for row in rows if row.modelled_tok_per_s and not 1 / 3 < _ratio(row) < 3]
    lines += [
        f"check the unit of row {rate.row}: more than 3 x from the model; rates are of the whole node" for rate in odd
    ]
    return lines


def _ratio(row: RateRow) -> float:
    return row.rate.throughput_tok_per_s / (row.modelled_tok_per_s or float("nan"))


def _derate_lines(rows: list[DerateRow]) -> list[str]:
    from flows.render import table

    cells = [
        (
            row.file,
            f"{row.gpu} tp{row.tp}",
            row.workload,
            f"{row.derate.batch:,.1f}",
            f"{row.derate.times_ms[0]:.3g}",
            f"{row.derate.times_ms[1]:.3g}",
            f"{row.derate.derate:.3f}",
        )
        for row in rows
    ]
    header = ("file", "on", "workload", "batch", "roofline ms", "measured ms", "de-rating")
    return table(header, cells, right=(3, 4, 5, 6))


def _attached_text(attached: Attached, scenario: Path) -> str:
    named = f"; {scenario} names it now" if attached.is_named_now else ""
    return f"{counted(attached.rows, 'row')} written to {attached.path}{named}"
