"""The numba decorator of all compiled loops: releases the GIL, and caches machine code where a folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled at its first call, without the GIL.

    Machine code is kept in NUMBA_CACHE_DIR, else beside the module, else in the user's cache folder. Where none can be
    written (a read-only installation without a home) it is compiled once per process instead of failing. The cache
    notices changes of the function's own file only, so kernels must not call kernels of another file.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba's "cannot cache function: no locator available"
        return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled into its callers: for the innermost helpers, whose array arguments cost more than their work."""
    return numba.njit(inline="always")(function)
