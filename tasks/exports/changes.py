"""From what one plan launched to what another does: instances to add, to keep, and to drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.exports.tables import csv_text
from tasks.exports.types import Group, Launch


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to instance ``instance`` of ``group``: add, keep or drain."""

    action: str
    instance: str
    group: Group


def changes_between(before: Launch, after: Launch) -> tuple[Change, ...]:
    """Instances by name: a group keeps its name while all that is launched stays the same, so what both plans name is kept.

    Ordered as it is to be done: keep, add, then drain, so that what replaces an instance runs before it goes.
    """
    old, new = _named(before), _named(after)
    rows = [Change("keep", name, new[name]) for name in new if name in old]
    rows += [Change("add", name, new[name]) for name in new if name not in old]
    rows += [Change("drain", name, old[name]) for name in old if name not in new]
    return tuple(rows)


def _named(launch: Launch) -> dict[str, Group]:
    return {name: group for group in launch.groups for name in group.instance_names}


def changes_text(changes: Sequence[Change]) -> str:
    """CHANGES.csv."""
    header = ("action", "instance", "region", "market", "workload", "combination_id", "is_launchable", "cost_usd_per_h")
    rows = [
        (
            change.action,
            change.instance,
            change.group.row.region,
            change.group.row.market.value,
            change.group.row.workload,
            change.group.row.combination_id,
            "yes" if change.group.is_launchable else "no",
            f"{change.group.row.cost_usd_per_h:.6g}",
        )
        for change in changes
    ]
    return csv_text(header, rows)
