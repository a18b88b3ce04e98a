"""What the system may say to a command, told as expected outcomes: arguments that are none, paths that cannot be used."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from catalogs.errors import CoralError, clipped

# Of the system's own making or the user's, whatever the code: a folder that is read-only, a disk that is full. A file
# that is not there is not among them: every path of the user's is looked for first, so that would be a bug.
_OF_THE_SYSTEM = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG,
        errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENFILE,
    }
)  # fmt: skip
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LARGEST = 10**18 - 1
_EMPTY = re.compile(r"--[a-z-]+=")


class CommandLine(TyperGroup):
    """All commands; what is wrong with an argument or option is an expected outcome, told in one line."""

    def make_context(self, *args: Any, **given: Any) -> Any:
        """As the library's, for options of the command line itself."""
        with _usage_told():
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        """As the library's: finds the command, reads its arguments and runs it."""
        with _usage_told():
            return super().invoke(ctx)


class Command(TyperCommand):
    """A command that refuses whole numbers which no column of a table could hold."""

    def make_context(self, *args: Any, **given: Any) -> Any:
        """As the library's: reads the command's arguments."""
        context = super().make_context(*args, **given)
        for value in context.params.values():
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, int) and abs(number) > _LARGEST:
                    text = clipped(str(number), 40)
                    raise CoralError(f"{text} is too large a number", remedy="give one of at most 18 digits")
        return context


@contextmanager
def _usage_told() -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        if context is not None and message == context.get_help():
            raise  # no fault: a group by itself shows its help
        where = context.command_path if context is not None else "coral"
        argument = _argument_meant(context, getattr(error, "option_name", ""))
        if argument:
            remedy = f"it is no option but an argument: `{where} {argument}`"
            raise CoralError(clipped(message.partition(" (Possible")[0], 300).rstrip("."), remedy=remedy) from error
        raise _usage_fault(message, f"see `{where} --help`") from error


def _argument_meant(context: Any, option: str) -> str:
    """The argument of the command that is called as an option was that it does not have; '' where there is none."""
    name = option.lstrip("-").lower()
    arguments = [p for p in context.command.params if p.param_type_name == "argument"] if context is not None else []
    shown = [str(p.metavar or p.name.upper()).strip("[]") for p in arguments]
    return next((text for p, text in zip(arguments, shown, strict=True) if name and name in (p.name, text.lower())), "")


def _usage_fault(message: str, remedy: str) -> CoralError:
    """The library's words as ours: close matches are what to do, in place of ``remedy``."""
    for mark, end in ((" Did you mean ", "?"), (" (Possible options: ", ")")):
        message, _, close = message.partition(mark)
        remedy = f"did you mean {close.removesuffix(end)}?" if close else remedy
    return CoralError(clipped(message.replace("Value error, ", ""), 300).rstrip("."), remedy=remedy)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise CoralError for an empty argument: it would be taken for the present folder. A shell makes it of an unset
    variable. Likewise for bytes that are no text, which no table, document or message could hold."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if argument == "" or _EMPTY.fullmatch(argument):
            option = argument.rstrip("=") or before
            where = f"the value of {option}" if option.startswith("-") else "an argument"
            raise CoralError(f"{where} is empty", remedy="name it, or leave it out; is a variable of the shell unset?")
        if not argument.isprintable() and any(0xD800 <= ord(c) <= 0xDFFF for c in argument):  # bytes that are no UTF-8
            raise CoralError(f"{clipped(argument)} is not UTF-8 text", remedy="rename the file; names are kept as text")


def system_fault(error: OSError) -> CoralError | None:
    """The outcome where the system refuses a path: one that names the path and the cause. None: it is a bug."""
    if error.errno not in _OF_THE_SYSTEM:
        return None
    if error.filename is None:
        return (
            CoralError(f"writing failed: {error.strerror}", remedy="free some room") if error.errno in _FULL else None
        )
    remedy = "name another path, or make this one usable"
    return CoralError(f"{clipped(str(error.filename))}: {error.strerror}", remedy=remedy)
