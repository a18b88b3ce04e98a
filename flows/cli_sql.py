"""``coral sql``: read-only SQL over the lake, as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.errors import CoralError
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
        ),
    )(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT statement; - reads it from stdin.")],
    lake: LakeOption = None,
    output_format: Annotated[Format, typer.Option("--format", "-f", help="How to print the rows.")] = Format.TABLE,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to FILE, not stdout.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the lake anything: tables libraries, templates, template_nodes, plans, plan_instances and more.

    Nothing but SELECT runs, and no file outside the lake can be read.
    """
    if as_json:
        output_format = Format.JSON
    if output_format is Format.PARQUET and out is None:
        raise CoralError("Parquet is not for a terminal", remedy="name a file with --out rows.parquet")
    text = sys.stdin.read() if query == "-" else query
    rows = _run(lake_root_of(lake), text)
    if out is None:
        put(write_result(rows, output_format, None))
    else:
        write_result(rows, output_format, out)
        say(f"{rows.num_rows:,} rows written to {out}")


def _run(root: Path, query: str) -> pa.Table:
    raise NotImplementedError(root, query)
