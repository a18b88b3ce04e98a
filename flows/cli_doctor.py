"""``coral doctor``: what is not in order, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_common import JsonOption, LakeOption, described, put_json, put_lines
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from flows.doctor import Check
    from flows.render import Line

_STYLES = {"warning": "yellow", "stale": "yellow", "failed": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "doctor", **described("Check what Coral rests on.", "coral doctor", "coral doctor --scenario core --json")
    )(doctor)


def doctor(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            "-s",
            metavar="NAME|PATH",
            help="A scenario of your own, which says how old its feeds may be; may be given again.",
        ),
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the installation, the disk, the lake, feeds, runs, servers and leftover processes; nothing is changed.

    Exits with 0 when all of it works, 6 when the lake does not, 2 when anything else does not, 5 when input is stale.
    """
    from flows.doctor import examine, exit_code

    checks = examine(lake_root_of(lake), scenario or ())
    code = exit_code(checks)
    if as_json:
        put_json({"exit_code": code, "checks": [asdict(check) for check in checks]})
    else:
        put_lines(_lines(checks))
    if code:
        raise typer.Exit(code)


def _lines(checks: list[Check]) -> list[Line]:
    from flows.render import Line, wrapped

    lines: list[Line] = []
    area = ""
    for check in checks:
        if check.area != area:
            area = check.area
            lines.append(Line(area, "bold"))
        style = _STYLES.get(check.status.value, "")
        lines.append(Line(f"  {check.status.value:<8}{check.name}: {check.found}", style))
        if check.remedy:
            lines += wrapped(f"-> {check.remedy}", indent=10)
    return lines
