"""``coral sql``: read-only SQL over the lake, as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.errors import CoralError
from catalogs.wording import counted
from flows.cli_common import JsonOption, LakeOption, described, put, say
from flows.cli_result import Format, write_result
from flows.settings import lake_root_of

if TYPE_CHECKING:
    import pyarrow as pa


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "sql",
        **described(
            "Read-only SQL over the lake.",
            'coral sql "SELECT workload_id, count(*) FROM templates GROUP BY ALL"',
            'coral sql "SELECT * FROM plan_instances" --format csv --out instances.csv',
            'coral sql "SELECT snapshot_id, snapshot_time, commit_message FROM lake.snapshots()"',
            'coral sql "SELECT count(*) FROM plans" --snapshot 2',
            "coral sql --shell",
        ),
    )(sql)


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT statement; - reads it from stdin.")
    ] = None,
    lake: LakeOption = None,
    output_format: Annotated[Format, typer.Option("--format", "-f", help="How to print the rows.")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to FILE, not stdout.")] = None,
    snapshot: Annotated[
        int | None,
        typer.Option(
            "--snapshot",
            min=0,
            metavar="N",
            help="The lake as it was at a snapshot; `FROM lake.snapshots()` lists them. [default: as it is]",
            show_default=False,
        ),
    ] = None,
    shell: Annotated[bool, typer.Option("--shell", help="Ask one question after another; .help says how.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask the lake anything: tables libraries, templates, template_nodes, plans, plan_instances and more.

    Nothing but SELECT runs, and no file outside the lake can be read.
    """
    if as_json:
        output_format = Format.JSON
    if shell == (query is not None):
        raise CoralError(
            "give one statement, or --shell" if shell else "there is no statement to run",
            remedy='write coral sql "SELECT ...", or coral sql --shell',
        )
    if query is None:
        from flows.sql_shell import run_shell

        if output_format is Format.PARQUET or out is not None:
            raise CoralError("--shell answers on stdout, as a table, CSV or JSON", remedy="leave out --out and parquet")
        run_shell(lake, output_format, snapshot)
        return
    if output_format is Format.PARQUET and out is None:
        raise CoralError("Parquet is not for a terminal", remedy="name a file with --out rows.parquet")
    text = sys.stdin.read() if query == "-" else query
    rows = _run(lake_root_of(lake), text, snapshot, is_whole=out is not None or output_format is not Format.TABLE)
    if out is None:
        put(write_result(rows, output_format, None))
    else:
        write_result(rows, output_format, out)
        say(f"{counted(rows.num_rows, 'row')} written to {out}")


def _run(root: Path, query: str, snapshot: int | None, *, is_whole: bool) -> pa.Table:
    """The rows; data for programs is never cut, a table for the eye is at the default limit, and says so."""
    from warehouse.sql import SqlLimits, truncated_at
    from warehouse.sql import query as run_query

    rows = run_query(root, query, SqlLimits(max_rows=None) if is_whole else SqlLimits(), snapshot=snapshot)
    limit = truncated_at(rows)
    if limit is not None:
        say(f"only the first {counted(limit, 'row is', 'rows are')} shown; --format csv or --out has all")
    return rows
