"""The documentation as a site: builds without a dead link, loads nothing from elsewhere, leaves nothing undocumented."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.cli import app
from flows.reference import command_reference, commands_below, table_reference
from warehouse.tables import TABLES
from warehouse.views import VIEWS

ROOT = Path(__file__).parents[2]
COMMANDS = list(commands_below(typer.main.get_command(app), ("coral",)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it; a dead link or anchor fails it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        assert config.strict
        build(config)
    return folder


class Loads(HTMLParser):
    """What a browser fetches to show a page: scripts, styles, pictures, frames."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source", "embed"} and given.get("src"):
            self.found.append(given["src"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch"}:
            self.found.append(given["href"])


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    loads = {(page.name, address) for page in pages for address in Loads(page.read_text()).found}
    assert any(address.endswith(".css") for _, address in loads)
    assert {(name, address) for name, address in loads if re.match(r"(\w+:)?//", address)} == set()


def test_every_page_can_be_reached(site: Path) -> None:
    index = (site / "index.html").read_text()
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert [page for page in sorted(pages - {"index.html"}) if f'href="{page}"' not in index] == []


def test_the_reference_has_every_command(site: Path) -> None:
    text = command_reference()
    for path, command in COMMANDS[1:]:
        assert f"## {' '.join(path[1:])}\n" in text
        assert f"Usage: {' '.join(path)} " in text
        assert command.get_short_help_str() or command.help
    assert (site / "reference/cli.html").is_file()


@pytest.mark.parametrize(
    "command", [pytest.param(c, id=" ".join(p)) for p, c in COMMANDS if not hasattr(c, "commands")]
)
def test_every_command_and_option_says_what_it_does_with_an_example(command: Any) -> None:
    assert command.help
    assert "coral" in (command.epilog or "")
    silent = [p.name for p in command.params if not getattr(p, "help", None) and p.name != "help"]
    assert silent == []


def test_every_table_and_column_is_documented() -> None:
    """As the data dictionary of a lake has it, which is what both the reference and `coral sql` show."""
    text = table_reference()
    for described in (*TABLES.values(), *VIEWS):
        assert f"### {described.name}\n{described.description}." in text
    for table in TABLES.values():
        for column in table.columns:
            assert len(column.description) > 2, f"{table.name}.{column.name}"
    assert not re.search(r"\|\s*\|\s*$", text, re.M)  # a column of a view without a meaning


def test_the_readme_or_a_page_names_every_command() -> None:
    """A command that only the generated reference has is hard to come upon."""
    text = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    groups = {path[1] for path, _ in COMMANDS if len(path) > 1}
    assert [name for name in sorted(groups) if not re.search(rf"`(coral )?{name}\b|coral {name}\b", text)] == []
