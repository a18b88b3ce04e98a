"""Tables and documents of an export as text."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from tasks.exports.types import Refusal

_REFUSED = (
    "target",
    "group",
    "template_id",
    "workload",
    "region",
    "market",
    "launch_class",
    "instances",
    "combination_id",
)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated text with a header line."""
    lines: list[str] = []

    class _Sink:
        def write(self, text: str) -> None:
            lines.append(text)

    writer = csv.writer(_Sink(), lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return "".join(lines)


class _Dumper(yaml.SafeDumper):
    """Scripts as they are written, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Sequence[Any]) -> str:
    """YAML documents, each after a line of dashes, keys in their own order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000, explicit_start=True)


def refusals_text(refused: Sequence[Refusal]) -> str:
    """NOT_LAUNCHABLE.csv: a row per group and target that does not take it."""
    rows = [
        (
            refusal.target,
            refusal.group.name,
            refusal.group.row.template_id,
            refusal.group.row.workload,
            refusal.group.row.region,
            refusal.group.row.market.value,
            refusal.group.row.launch_class.value,
            refusal.group.row.instances,
            refusal.group.row.combination_id,
            refusal.reason,
            refusal.remedy,
        )
        for refusal in refused
    ]
    return csv_text((*_REFUSED, "reason", "remedy"), rows)
