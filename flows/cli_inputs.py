"""``coral init`` and ``coral validate``: a starting point for own inputs, and every fault in them at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from catalogs.errors import clipped, finding_lines
from catalogs.wording import counted
from flows.cli_common import ExitCode, JsonOption, described, put, put_json, say


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command(
        "init",
        **described("Write a scenario to start from.", "coral init my", "coral plan --scenario my/scenario.yaml"),
    )(init)
    app.command(
        "validate",
        **described(
            "Check inputs; print every fault.", "coral validate core", "coral init my", "coral validate my --json"
        ),
    )(validate)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; made if missing.")],
) -> None:
    """Write a commented scenario and its CSVs to DIR, to be edited into your own.

    A folder that already holds one of these files is refused and left as it is.
    """
    from catalogs.init import write_starter

    written = write_starter(directory)
    for path in written:
        put(str(path))
    say(f"next: edit {directory}/scenario.yaml, then `coral validate {directory}`")


def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A scenario or catalog file, or a folder of them.")],
    as_json: JsonOption = False,
) -> None:
    """Check the inputs under PATH and print every fault: file, row, column, value, reason, remedy.

    Of more than 20 the first are printed; --json has all.
    Exits with 2 when there is any.
    """
    from catalogs import validate_path

    findings = validate_path(path)
    if as_json:
        put_json([asdict(finding) for finding in findings])
    else:
        for line in finding_lines(findings):
            put(line)
    if findings:
        say(f"{clipped(str(path))}: {counted(len(findings), 'fault')}")
        raise typer.Exit(ExitCode.BAD_INPUT)
    say(f"{path}: in order" + _counts_text(path))


def _counts_text(path: Path) -> str:
    """What a sound scenario holds; nothing for a single file of it."""
    if path.suffix in {".csv", ".json"}:
        return ""
    from catalogs import load_scenario

    loaded = load_scenario(path)
    counts = (
        (len(loaded.model_demands), "models"),
        (len(loaded.regions), "regions"),
        (len(loaded.node_configs), "node configurations"),
        (len(loaded.offers), "offers"),
    )
    held = ", ".join(f"{count} {what}" for count, what in counts)
    warnings = "".join(f"\nwarning: {code}: {text}" for code, text in loaded.warnings)
    return f": {held}{warnings}"
