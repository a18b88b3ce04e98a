"""Hooks of MkDocs: pages generated from the program, and a place in the navigation for every page."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from flows.reference import command_reference, table_reference

_GUIDES = "How to"


def on_files(files: Files, config: Any) -> Files:
    """Add the generated reference pages."""
    for path, text in (("reference/cli.md", command_reference()), ("reference/tables.md", table_reference())):
        files.append(File.generated(config, path, content=text))
    _list_the_rest(files, config)
    return files


def _list_the_rest(files: Files, config: Any) -> None:
    """A page that the navigation does not place is listed at the end of the guides rather than lost."""
    named = set(_paths(config.nav))
    rest = sorted(page.src_uri for page in files.documentation_pages() if page.src_uri not in named)
    for section in config.nav:
        if _GUIDES in section:
            section[_GUIDES] = [*section[_GUIDES], *rest]


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    items = nav.values() if isinstance(nav, dict) else nav
    return [path for item in items for path in _paths(item)]
