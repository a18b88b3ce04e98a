"""The numba decorator of all compiled loops: releases the GIL, and caches machine code where a folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled at its first call, without the GIL.

    Machine code is kept in NUMBA_CACHE_DIR, else beside the module, else in the user's cache folder. Where none can be
    written (a read-only installation without a home) it is compiled once per process instead of failing.
    """
    try:
        return _with_stamps_of_callees(numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # numba's "cannot cache function: no locator available"
        return numba.njit(nogil=True)(function)


def _with_stamps_of_callees(compiled: Any) -> Any:
    """``compiled``, whose machine code counts as old also where a file has changed of which it calls a kernel: numba itself
    looks at the file of the function alone, though the code of what it calls is in it."""
    if not isinstance(compiled, Dispatcher):
        return compiled  # compiling is switched off
    function: Any = compiled.py_func
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    stamps = [_cache_file(one)._source_stamp for one in called if isinstance(one, Dispatcher) and _cache_file(one)]
    file = _cache_file(compiled)
    file._source_stamp = (file._source_stamp, *stamps)
    return compiled


def _cache_file(compiled: Any) -> Any:
    """What keeps machine code; None where nothing does."""
    return getattr(compiled._cache, "_cache_file", None)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled into its callers: for the innermost helpers, whose array arguments cost more than their work."""
    return numba.njit(inline="always")(function)
