"""What the system may say to a command, told as expected outcomes: arguments that are nothing, paths that cannot be used."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

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
_EMPTY = re.compile(r"--[a-z-]+=")


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise CoralError for an empty argument: it would be taken for the present folder. A shell makes it of an unset
    variable."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if argument == "" or _EMPTY.fullmatch(argument):
            option = argument.rstrip("=") or before
            where = f"the value of {option}" if option.startswith("-") else "an argument"
            raise CoralError(f"{where} is empty", remedy="name it, or leave it out; is a variable of the shell unset?")


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
