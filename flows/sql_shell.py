"""``coral sql --shell``: statements typed one after another, on one open connection."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from catalogs.errors import CoralError
from catalogs.wording import counted
from flows.cli_common import put, say, say_error
from flows.cli_result import Format, write_result
from flows.settings import lake_root_of

_PROMPT, _MORE = "coral> ", "   ...> "
_HELP = """\
One SELECT at a time, ended by a semicolon or an empty line; nothing can be changed.
  .tables          tables and views
  .describe NAME   the columns of one, with unit and meaning
  .format FORMAT   table, csv or json
  .help            this
  .quit            leave (Ctrl-D as well)"""
_TABLES = (
    """SELECT table_name, kind, description FROM data_dictionary WHERE column_name = '' ORDER BY kind, table_name"""
)
_COLUMNS = """SELECT column_name, type, unit, is_key, description FROM data_dictionary
WHERE table_name = {name} AND column_name <> ''"""


def run_shell(lake: Path | None, output_format: Format, snapshot: int | None) -> None:
    """Read statements from stdin until its end; answers go to stdout, faults to stderr and do not end the shell."""
    from warehouse.sql import SqlSession

    with SqlSession(lake_root_of(lake), snapshot=snapshot) as session:
        shell = _Shell(session, output_format)
        if sys.stdin.isatty():
            say("read-only SQL over the lake; .help says more, .quit leaves")
        for text in _statements():
            if text.startswith("."):
                if shell.command(text):
                    return
            else:
                shell.ask(text)


def _statements() -> Iterator[str]:
    """Statements and dot commands as they are typed."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - makes input() edit lines and remember them
    lines: list[str] = []
    is_person = sys.stdin.isatty()
    while True:
        try:
            line = input((_MORE if lines else _PROMPT) if is_person else "")
        except EOFError:
            if any(line.strip() for line in lines):
                yield "\n".join(lines)
            return
        if not lines and line.lstrip().startswith("."):
            yield line.strip()
            continue
        if line.strip():
            lines.append(line)
        if lines and (not line.strip() or line.rstrip().endswith(";")):
            yield "\n".join(lines)
            lines = []


class _Shell:
    def __init__(self, session: object, output_format: Format) -> None:
        from warehouse.sql import SqlSession

        assert isinstance(session, SqlSession)
        self._session, self._format = session, output_format

    def ask(self, text: str) -> None:
        """Print the answer, or what is wrong in a line."""
        from warehouse.sql import truncated_at

        try:
            rows = self._session.query(text)
            put(write_result(rows, self._format, None))
        except CoralError as error:
            say_error(error)
            return
        limit = truncated_at(rows)
        if limit is not None:
            say(f"only the first {counted(limit, 'row is', 'rows are')} shown")

    def command(self, text: str) -> bool:
        """Obey a dot command; whether it ends the shell."""
        from warehouse.catalog_store import sql_text

        name, _, given = text.partition(" ")
        given = given.strip().rstrip(";")
        if name in {".quit", ".exit"}:
            return True
        if name == ".tables":
            self.ask(_TABLES)
        elif name == ".describe" and given:
            self.ask(_COLUMNS.format(name=sql_text(given)))
        elif name == ".format" and given in {Format.TABLE, Format.CSV, Format.JSON}:
            self._format = Format(given)
        else:
            put(_HELP)
        return False
