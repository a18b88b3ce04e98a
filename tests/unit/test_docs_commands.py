"""Every command line that help and the documentation show is one that the parser takes: no option that was renamed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from catalogs.errors import CoralError
from flows.cli import app
from flows.reference import commands_below

ROOT = Path(__file__).parents[2]
COMMAND = typer.main.get_command(app)
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def helped() -> list[str]:
    found = []
    for _, command in commands_below(COMMAND, ("coral",)):
        found += [line.strip() for line in (command.epilog or "").splitlines()]
    return [line for line in found if line.startswith("coral ")]


def documented() -> list[str]:
    """Lines of fenced blocks."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"^```(?:console|bash|sh|)\n(.*?)^```", text, re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                bare = re.sub(r"^(\$ )?(ExecStart=)?(\S*/bin/)?(?=coral )", "", line.strip())
                found += [bare] if bare.startswith("coral ") else []
    return found


def mentioned() -> list[str]:
    """Commands with options in the running text, which may leave out what they need; of alternatives the first."""
    found = []
    for page in PAGES:
        running = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        found += re.findall(r"`(coral [^`\n]*--[^`\n]*)`", running)
    return [re.sub(r"(\\?\|[\w-]+)+", "", line) for line in found if "COMMAND" not in line]


def words(line: str) -> list[list[str]]:
    """The commands of a line, without their first word; brackets of optional parts and comments are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command[1:] for command in commands if command[:1] == ["coral"]]


def parse(arguments: list[str]) -> None:
    """As the command line does, up to but not into the command. Raises CoralError for what it would refuse."""
    command, name, left = COMMAND, "coral", arguments
    parent = None
    while True:
        context = command.make_context(name, list(left), parent=parent)
        if not hasattr(command, "resolve_command"):
            return
        name, command, left = command.resolve_command(context, [*context._protected_args, *context.args])
        parent = context


@pytest.mark.parametrize("line", dict.fromkeys(helped()))
def test_examples_of_help_are_taken(line: str) -> None:
    for arguments in words(re.sub(r"\s{3,}.*", "", line)):
        parse(arguments)


@pytest.mark.parametrize("line", dict.fromkeys(documented()))
def test_commands_of_the_documentation_are_taken(line: str) -> None:
    assert words(line)
    for arguments in words(line):
        parse(arguments)


@pytest.mark.parametrize("line", dict.fromkeys(mentioned()))
def test_options_that_the_documentation_mentions_are_known(line: str) -> None:
    for arguments in words(line):
        try:
            parse(arguments)
        except typer.TyperException as error:
            if not str(error).startswith("Missing"):
                raise


def test_what_is_no_command_is_noticed() -> None:
    for line in ("coral plan --workrs 2", "coral pln", "coral plans show one", "coral compare"):
        with pytest.raises((CoralError, typer.TyperException)):
            parse(words(line)[0])
