"""What can befall a lake's folder, told as expected outcomes: a full disk, no permission. No DuckDB: workers import this."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalogs.errors import LakeError, clipped

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NO_RENAME = frozenset({errno.ENOSYS, errno.EOPNOTSUPP})
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


def refuse_url(root: str | os.PathLike[str]) -> None:
    """Raise LakeError where the name of a lake's folder is a URL (``s3://bucket/lake``), which would make a folder ``s3:``."""
    if _URL.match(os.fspath(root)):
        raise LakeError(
            f"{clipped(os.fspath(root))} is a URL, and a lake is a folder: its files are put in place by renaming them, which "
            "object stores cannot",
            remedy="name a folder, which may be a mounted file system that renames atomically (NFS, CephFS, Lustre, JuiceFS); "
            "`coral copy` puts its tables into a bucket",
        )


def is_full(error: OSError) -> bool:
    """Whether the system refuses because there is no room."""
    return error.errno in _FULL


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn the system's errors about the lake in ``root`` into LakeError; others pass unchanged."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise disk_full(root) from error
        if error.errno in _NO_RENAME:
            raise LakeError(
                f"the file system of {clipped(str(root))} cannot do what a lake needs: {error.strerror}",
                remedy="use one that renames files atomically; mounts of object stores mostly do not",
            ) from error
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
