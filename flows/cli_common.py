"""What the commands share: options, exit codes, where data and messages go, and how expected errors are shown.

Data goes to stdout, everything else to stderr. Nothing heavy is imported here: ``coral --help`` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.errors import CoralError, Finding, InputError, clipped, finding_lines, printable
from flows.cli_faults import Command
from flows.cli_streams import stdout_errors

if TYPE_CHECKING:
    from flows.render import Line

DEFAULT_SCENARIO = "core"


class ExitCode(IntEnum):
    """CONTRACTS, section Commands. A bug leaves by its traceback, which is Python's own 1."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    DIFFERENCE = 3
    SHORTFALL = 4
    HELD = 5
    LAKE = 6
    INTERRUPTED = 130


class Mode(StrEnum):
    """How a template's rate is defined."""

    CYCLE = "cycle"
    PAPER = "paper"


class Solver(StrEnum):
    """Which placement solver fills the library."""

    EXACT = "exact"
    ILP = "ilp"


ScenarioOption = Annotated[
    str,
    typer.Option("--scenario", "-s", metavar="NAME|PATH", help="A shipped scenario, or the path of a scenario file."),
]
LakeOption = Annotated[
    Path | None,
    typer.Option("--lake", metavar="DIR", help="Where results are kept. [default: $CORAL_LAKE, else ./.coral]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ModeOption = Annotated[
    Mode | None,
    typer.Option("--mode", help="Common pipeline cycle, or the paper's rates. [default: the scenario's]"),
]
SolverOption = Annotated[Solver, typer.Option("--solver", help="Placement solver: exact search, or the paper's ILP.")]
DaskOption = Annotated[
    str | None,
    typer.Option("--dask-address", metavar="ADDRESS", help="A running Dask scheduler. [default: workers of our own]"),
]
SafetyOption = Annotated[
    str | None,
    typer.Option(
        "--safety",
        metavar="pNN",
        help="Plan with rates that hold in NN % of cases, given their errors: p90. [default: none]",
    ),
]
KvOption = Annotated[
    str | None,
    typer.Option(
        "--cross-region-kv",
        metavar="USD[,GBIT]",
        help="Prefill in one region, decode in another: KV at USD per GB and so many Gbit/s. [default: as the policy says]",
    ),
]
MeasuredOption = Annotated[
    bool, typer.Option("--measured-only", help="Leave out rates that are not measured or fitted to measurements.")
]
LaunchableOption = Annotated[
    bool,
    typer.Option("--launchable-only", help="Leave out templates that stock engines cannot launch; says what it costs."),
]
ApproveOption = Annotated[
    bool, typer.Option("--approve", help="Publish even a plan that a guard rail would hold.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Build the library however large it is.", show_default=False)]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Local workers. [default: one per core]", show_default=False)
]


def percentile_of(text: str | None) -> float | None:
    """``p90`` -> 90.0. Raises CoralError for another form."""
    if text is None:
        return None
    from catalogs.cells import plain_number

    number = text.removeprefix("p")
    value = plain_number(number)
    if number == text or value is None or not 50 <= value <= 99.99:
        raise CoralError(
            f"--safety {clipped(text)!r} is not a percentile", remedy="write p90, or another from p50 to p99.99"
        )
    return value


def say(message: str) -> None:
    """A message for a person, on stderr."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201


def put(text: str) -> None:
    """Data, on stdout."""
    with stdout_errors():
        print(text, flush=True)  # noqa: T201 - whoever reads a pipe waits for it, be the command one that stays


def put_lines(lines: Iterable[Line]) -> None:
    """Lines of data; styled when stdout is a terminal, plain text otherwise."""
    if not sys.stdout.isatty():
        for line in lines:
            put(line.text)
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line.text, style=line.style or None, markup=False)


def put_json(value: Any) -> None:
    """A document as indented JSON; NaN has no place in it and raises ValueError."""
    import json

    put(json.dumps(value, indent=2, allow_nan=False))


def say_findings(findings: Sequence[Finding]) -> None:
    """One line per finding, on stderr; of very many the first."""
    for line in finding_lines(findings):
        say(f"error: {line}")


def say_error(error: CoralError) -> None:
    """An expected outcome: one line, or one per finding; no traceback."""
    if isinstance(error, InputError):
        say_findings(error.findings)
    else:
        say("error: " + printable(" ".join(str(error).split())))


def described(summary: str, *examples: str) -> dict[str, Any]:
    """Keyword arguments of ``app.command``: the line in the list of commands, and examples below the help.

    The lines of an example run as they stand, one after the other, in a clone that has a plan (`make plan`).
    """
    epilog = "\b\nExample:\n" + "\n".join(f"  {command}" for command in examples)
    return {"cls": Command, "short_help": summary, "epilog": epilog}


def command_group(name: str, what: str, *examples: str, short: str = "") -> typer.Typer:
    """A group of commands: ``what`` it is for, ``short`` in the list of commands, and examples below its help."""
    return typer.Typer(
        name=name,
        help=what,
        short_help=short or what,
        epilog=described("", *examples)["epilog"],
        no_args_is_help=True,
        rich_markup_mode=None,
    )
