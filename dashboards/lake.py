"""The lake as the dashboards see it: read only, by the same SQL that `coral sql` answers."""

from __future__ import annotations

import os
from typing import Any

from warehouse.sql import CoralError as StatementError
from warehouse.sql import SqlLimits, SqlSession, truncated_at

__all__ = ["LAKE_VARIABLE", "LakeReader", "Row", "StatementError"]

Row = dict[str, Any]

LAKE_VARIABLE = "CORAL_DASHBOARD_LAKE"
# A page waits for its figures: what takes longer is narrowed, not waited for.
_LIMITS = SqlLimits(max_rows=400_000, timeout_s=30.0)


class LakeReader:
    """An open lake. Each question sees what is committed at that moment, also while a flow writes."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = root if root is not None else os.environ[LAKE_VARIABLE]
        self._session = SqlSession(self.root, _LIMITS)

    def rows(self, sql: str) -> list[Row]:
        """The answer, one dict per row."""
        return self._session.query(sql).to_pylist()

    def answer(self, sql: str, most: int = 500) -> tuple[list[Row], list[str], int | None]:
        """(rows, columns, where they were cut or None) of what a reader typed; at most ``most`` rows."""
        table = self._session.query(sql)
        cut_at = most if table.num_rows > most else truncated_at(table)
        return table.slice(0, most).to_pylist(), table.column_names, cut_at

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
