"""Counts in words."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """``1 row``, ``2 rows``, ``12,000 rows``; ``many`` where more than one is not ``one`` and an s (``rows say``)."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
