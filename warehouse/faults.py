"""What can befall a lake's folder, told as expected outcomes: a full disk, no permission. No DuckDB: workers import this."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalogs.errors import LakeError, clipped

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn the system's errors about the lake in ``root`` into LakeError; others pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(root) from error
        if error.errno in _REFUSED:
            raise LakeError(
                f"{clipped(str(error.filename or root))} cannot be written or read: {error.strerror}",
                remedy="check the folder's name and permissions, or name another with --lake",
            ) from error
        raise


def disk_full(root: Path) -> LakeError:
    """The outcome when there is no room left."""
    return LakeError(
        f"the disk is full: nothing was changed in the lake in {root}",
        remedy="free some space and run the same command again; finished work is kept",
    )
