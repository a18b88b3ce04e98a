"""The reference pages of the documentation, from what the program itself says: its commands and the tables of a lake."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer

_WIDTH = 82  # fits the page's column of code


def command_reference() -> str:
    """Every command with its help, as Markdown."""
    from flows.cli import app

    root = typer.main.get_command(app)
    parts = ["# Commands", "Generated from the command definitions; `coral COMMAND --help` prints the same.", ""]
    for path, command in commands_below(root, ("coral",)):
        parts += [
            f"## {' '.join(path[1:])}" if len(path) > 1 else "## coral",
            "```text",
            _help(path, command),
            "```",
            "",
        ]
    return "\n".join(parts)


def commands_below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The command and all below it, by name; as Typer makes them."""
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands_below(below, (*path, name))


def _help(path: tuple[str, ...], command: Any) -> str:
    context = command.make_context(" ".join(path), [], resilient_parsing=True, max_content_width=_WIDTH)
    context.terminal_width = _WIDTH
    return command.get_help(context).replace("\b", "").rstrip()


def table_reference() -> str:
    """The data dictionary of a lake as Markdown: views first, which are what people query."""
    from warehouse.connect import Lake
    from warehouse.sql import query

    with tempfile.TemporaryDirectory() as folder:
        Lake.open(folder).close()
        rows = query(
            folder,
            "SELECT table_name, column_name, kind, type, unit, is_key, description FROM data_dictionary",
        ).to_pylist()
    parts = [
        "# Tables and views",
        "Generated from the schema; `coral sql \"FROM data_dictionary\"` prints the same. Query the views: they show what is "
        "current. Key columns are bold.",
        "",
    ]  # fmt: skip
    for kind, title in (("view", "Views"), ("table", "Tables")):
        parts += [f"## {title}", ""]
        mine = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["table_name"])
        for name, columns in groupby(mine, key=lambda row: str(row["table_name"])):
            parts += _table(name, list(columns))
    return "\n".join(parts)


def _table(name: str, rows: list[dict[str, object]]) -> list[str]:
    (about,) = (row for row in rows if not row["column_name"])
    lines = [f"### {name}", f"{about['description']}.", "", "| column | type | unit | meaning |", "|---|---|---|---|"]
    for row in rows:
        if row["column_name"]:
            column = f"**{row['column_name']}**" if row["is_key"] else str(row["column_name"])
            cells = (column, str(row["type"]), str(row["unit"]), str(row["description"]))
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]
