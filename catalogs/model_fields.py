"""Typed access to the fields of a model's config; every failure names the model and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogs.errors import CoralError, clipped

# No model in sight is larger in any dimension; what is beyond is a slip, and would only eat memory.
_LARGEST = 100_000_000
MOST_LAYERS = 1_000


def shown(value: object) -> str:
    """A value of a config for a message, cut where it is long."""
    return clipped(repr(value), 40)


class Fields:
    """The fields of one config (``text_config`` merged over the rest). A null counts as absent."""

    def __init__(self, config: Mapping[str, Any], model_id: str) -> None:
        self.config, self.model_id = config, model_id

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = _LARGEST) -> int:
        """The first of ``names`` that is present, as a whole number from ``low`` to ``high``."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise self.error(name, f"is {shown(value)}, wanted a whole number from {low} to {high}")
            return value
        if default is None:
            raise self.error(names[0], "is missing")
        return default

    def integers(self, name: str, below: int) -> frozenset[int] | None:
        """A list of layer numbers 0 .. ``below`` - 1, or None where absent."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(
            isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < below for i in value
        ):
            raise self.error(name, f"is {shown(value)}, wanted a list of layer numbers from 0 to {below - 1}")
        return frozenset(value)

    def text(self, *names: str, default: str) -> str:
        """The first of ``names`` that is present, as a text."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.error(name, f"is {shown(value)}, wanted a text")
            return value
        return default

    def flag(self, name: str, default: bool) -> bool:
        """A true/false field."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {shown(value)}, wanted true or false")
        return value

    def group(self, name: str, *other_names: str) -> Mapping[str, Any]:
        """The first of the names that is present and not empty, as a group of fields; empty where none is."""
        for key in (name, *other_names):
            value = self.config.get(key)
            if value is None or value == {}:
                continue
            if not isinstance(value, Mapping):
                raise self.error(key, f"is {shown(value)}, wanted a group of fields")
            return value
        return {}

    def error(self, field: str, problem: str, remedy: str = "") -> CoralError:
        """A one-line fault of this config."""
        return CoralError(
            f"model {self.model_id!r}: field {field!r} of its config {problem}",
            remedy=remedy or "use the config.json published with the model's weights",
        )
