"""``coral profiles check`` and ``coral profiles fit``: the performance model against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.texts import write_text
from flows.cli_common import JsonOption, described, put, put_json, say

if TYPE_CHECKING:
    from flows.profile_check import Fit
    from tasks.profiling.check import ErrorLine

_OPS = ("gemm", "attn", "moe", "ar", "ew", "lm")


def register(profiles: typer.Typer) -> None:
    """Add the commands to the group."""
    profiles.command(
        "check",
        **described(
            "How far off rates are.",
            "pip install -e '.[silicon]'",
            "coral profiles check",
            "coral profiles check --gpu L40S --json",
        ),
    )(check)
    profiles.command(
        "fit",
        **described(
            "Factors of a new GPU.",
            "pip install -e '.[silicon]'",
            "coral profiles fit --gpu RTX-PRO-6000-Server --data silicon --out efficiency.csv",
        ),
    )(fit)


def check(
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="Only this GPU; may be given again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the performance model with every measured set: kernel tables by layer, Helix's layer times, published
    points, and with the extra `silicon` also models that no factor was fitted to and whole serving runs.

    Errors in percent of the measured time: MAPE, bias (positive: the model is too slow) and 90th percentile; rows that
    factors were fitted to apart from those held out. What is not on this machine (the extra, or the raw data of
    CORAL_SHARED_DATA) is left out and named.
    """
    from flows.profile_check import check_all

    found = check_all(gpu or ())
    if as_json:
        put_json({"errors": [asdict(line) for line in found.lines], "notes": list(found.notes)})
    else:
        put("\n".join(error_table(found.lines)))
    for note in found.notes:
        say(f"note: {note}")


def fit(
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU that was measured.")],
    data: Annotated[
        str, typer.Option("--data", metavar="FILE|silicon", help="Layer times (.csv, .parquet), or the kernel tables.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the row as a CSV file, for a scenario's folder.")
    ] = None,
    sm_count: Annotated[
        int | None,
        typer.Option("--sm-count", min=1, help="The GPU's SMs. [default: the catalog's]", show_default=False),
    ] = None,
    l2_mib: Annotated[
        float | None, typer.Option("--l2-mib", help="The GPU's L2 cache. [default: the catalog's]", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a GPU's efficiency factors to measured layers, say how far off they are on models left out, and give the row
    of the efficiency table.

    Name the written file in a scenario as `efficiency: {file: efficiency.csv}`; it counts in place of the shipped row.
    """
    from flows import profile_check

    found = profile_check.fit(gpu, data, sm_count=sm_count, l2_mib=l2_mib)
    if as_json:
        row = {name: str(value) if name == "as_of" else value for name, value in found.row.items()}
        put_json(
            {"row": row, "fitted": found.fitted, "held_out": found.held_out, "errors": [asdict(x) for x in found.lines]}
        )
    else:
        put("\n".join(_fit_lines(found)))
    if out is not None:
        write_text(out, found.csv())
        say(f"{out}: written; name it in a scenario as `efficiency: {{file: {out.name}}}`")


def error_table(lines: Sequence[ErrorLine]) -> list[str]:
    """Text of the table: held-out rows first, since they are what counts; operations' MAPE at the right."""
    from flows.profile_check import main_lines, op_mapes
    from tasks.profiling.check import HELD_OUT

    text: list[str] = []
    for split, title in ((HELD_OUT, "Held out: no factor was fitted to these"), ("fitted", "Fitted to")):
        mine = [line for line in main_lines(lines) if line.split == split]
        if not mine:
            continue
        width = max(len("source"), *(len(line.source) for line in mine))
        gpu = max(16, *(len(line.gpu) for line in mine))
        head = f"  {'source':{width}}  {'GPU':{gpu}} {'phase':8} {'what':12}  rows  MAPE   bias    p90"
        text += ([""] if text else []) + [title, head + "   " + " ".join(f"{op:>5}" for op in _OPS)]
        for line in sorted(mine, key=lambda x: (x.op, x.source, x.gpu, x.phase != "prefill")):
            ops = op_mapes(lines, line)
            shown = " ".join(f"{ops[op]:5.1f}" if op in ops else "     " for op in _OPS)
            text.append(
                f"  {line.source:{width}}  {line.gpu:{gpu}} {line.phase:8} {line.op:12} {line.rows:5} {line.mape:5.1f} "
                f"{line.bias:+6.1f} {line.p90:6.1f}   {shown}".rstrip()
            )
    return text


def _fit_lines(found: Fit) -> list[str]:
    eff = found.efficiency
    rows: list[tuple[str, float | None]] = [
        ("p", eff.p),
        ("mfu_gemm", eff.mfu_gemm),
        ("mbu_gemm", eff.mbu_gemm),
        ("tau_gemm_ms", eff.tau_gemm_ms),
    ]
    rows += [("gemm_fill", eff.gemm_fill), ("mfu_attn", eff.mfu_attn), ("mbu_attn", eff.mbu_attn)]
    rows += [("tau_attn_ms", eff.tau_attn_ms), ("tau_attn_prefill_ms", eff.tau_attn_prefill_ms)]
    text = [f"Factors of {eff.gpu} ({eff.source})"]
    text += [f"  {name:22} {'not measured' if value is None else f'{value:.4g}'}" for name, value in rows]
    for name, moe in (("moe_bf16", eff.moe_bf16), ("moe_mxfp4", eff.moe_mxfp4)):
        known = {} if moe is None else {k: v for k, v in asdict(moe).items() if v not in (None, "")}
        shown = " ".join(f"{k} {v if isinstance(v, str) else f'{v:.4g}'}" for k, v in known.items())
        text.append(f"  {name:22} {shown or 'not measured'}")
    for n, (alpha_ms, beta) in eff.all_reduce.items():
        text.append(f"  {f'all_reduce over {n}':22} {alpha_ms:.4g} ms + bytes / {beta:.4g} GB/s")
    text += ["", *error_table(found.lines), ""]
    for phase, error in found.held_out.items():
        text.append(f"{phase}: {100 * error:.1f} % per layer on {found.held_out_how}")
    if not found.held_out:
        text.append("one model only: no error on unseen models; the row states twice that of the fitted rows")
    return [*text, "", found.csv().rstrip()]
