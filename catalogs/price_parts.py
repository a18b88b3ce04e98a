"""Machines that SkyPilot's catalog prices in two rows: the machine without its GPUs, and the GPUs alone (GCP's all are).

Google bills both, and asks one price for a GPU in every machine that carries it. So a machine of :mod:`catalogs.catalog`
whose row names no GPU costs what it and the row of its GPUs in the same zone ask together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogs.catalog import Catalog, InstanceType
from catalogs.errors import CoralError

# Machines whose GPU SkyPilot gives a name of its own, though it is the same card as in others.
_NAMED_FOR = {"a3-megagpu-8g": "h100-mega"}
PRICES = ("Price", "SpotPrice")

Row = Mapping[str, Any]
Numbered = tuple[int, Row]
# Region, zone, GPU, how many, and the machine they are named for ('' = any).
_Key = tuple[str, str, str, int, str]


@dataclass
class Parts:
    """Rows of a file that are but a part of a machine, as they come."""

    catalog: Catalog
    provider: str
    scope: str
    _machines: list[Numbered] = field(default_factory=list)
    _gpus: dict[_Key, Numbered] = field(default_factory=dict)

    def take(self, number: int, values: Row) -> int:
        """Keep the row if it is a part of a machine: 0 = it is none; another row's number = it asks another price for the same
        GPUs than that row; else its own."""
        if values["InstanceType"] and not values["AcceleratorName"]:
            if self._machine(values) is None:
                return 0
            self._machines.append((number, values))
            return number
        if values["InstanceType"] or not values["AcceleratorName"] or not values["AcceleratorCount"]:
            return 0
        key = self._gpu_key(values)
        if key is None:
            return 0
        known, row = self._gpus.setdefault(key, (number, values))
        return number if known == number or all(row.get(name) == values.get(name) for name in PRICES) else known

    def joined(self) -> Iterator[tuple[tuple[int, ...], Row]]:
        """The whole machines: the rows of the file and one row as if it had priced the machine at once."""
        for number, values in self._machines:
            found = self._gpus.get(self._key_of(values))
            if found is not None:
                gpus, priced = found
                prices = {name: _sum(values.get(name), priced.get(name)) for name in PRICES}
                named = {name: priced[name] for name in ("AcceleratorName", "AcceleratorCount")}
                yield (number, gpus), {**values, **named, **prices}

    def left(self, used: frozenset[int]) -> Iterator[tuple[int, str, str]]:
        """(row, column, reason) of the parts that are in no machine of which the rows are ``used``."""
        for number, values in self._machines:
            if number not in used:
                machine = self._machine(values)
                assert machine is not None  # others are not taken
                what = f"{machine.gpu}x{machine.gpu_count}"
                yield number, "AcceleratorName", f"is blank, and no row of this zone prices the GPUs of it, {what}"
        for number, _ in self._gpus.values():
            if number not in used:
                yield number, "InstanceType", "is blank: a price of the GPU without a machine"

    def _machine(self, values: Row) -> InstanceType | None:
        return self.catalog.instance_types.get((self.provider, values["InstanceType"]))

    def _key_of(self, values: Row) -> _Key:
        machine = self._machine(values)
        assert machine is not None  # others are not taken
        name = _NAMED_FOR.get(machine.instance_type, "")
        return values["Region"], values.get("AvailabilityZone") or "", machine.gpu, machine.gpu_count, name

    def _gpu_key(self, values: Row) -> _Key | None:
        name = values["AcceleratorName"]
        try:
            gpu = self.catalog.gpu_names.encode(name, scope=self.scope)
        except CoralError:
            return None
        own = name.lower() if name.lower() in _NAMED_FOR.values() else ""
        return values["Region"], values.get("AvailabilityZone") or "", gpu, values["AcceleratorCount"], own


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else round(one + other, 6)
