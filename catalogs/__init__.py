"""What is true of the world: data files, their schemas, alias tables and typed readers. Imports nothing of ours.

``catalogs.load_catalog()`` gives the shipped catalogs, ``catalogs.load_scenario(name_or_path)`` a scenario with
everything resolved. Both are loaded on first use, so that importing a type stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from catalogs.catalog import Catalog, load_catalog
    from catalogs.scenario import LoadedScenario, load_scenario, validate_path

__all__ = ["Catalog", "LoadedScenario", "load_catalog", "load_scenario", "validate_path"]

_HOMES = {
    "Catalog": "catalogs.catalog",
    "load_catalog": "catalogs.catalog",
    "LoadedScenario": "catalogs.scenario",
    "load_scenario": "catalogs.scenario",
    "validate_path": "catalogs.scenario",
}


def __getattr__(name: str) -> Any:
    """Import the module a public name lives in, on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
