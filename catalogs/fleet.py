"""What runs today, as a user writes it down: machines with the model, phase and layout they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogs.errors import Finding, InputError, close_matches_remedy
from catalogs.offers import choose_by_date, with_discounts
from catalogs.scenario import LoadedScenario
from catalogs.supply import node_configs_of
from catalogs.tables import Table, read_table
from catalogs.types import Market, NodeConfig, Offer, Phase, Workload


@dataclass(frozen=True, slots=True)
class FleetRow:
    """``count`` machines of ``offer`` serving ``workload``; an instance takes ``machines`` of them.

    On one machine ``tp`` x ``pp`` x ``replicas`` of its GPUs are used; over several, ``pp`` counts the stages of all.
    """

    row: int
    offer: Offer
    node: NodeConfig
    workload: Workload
    count: int
    tp: int
    pp: int
    replicas: int
    machines: int

    @property
    def instances(self) -> int:
        """Whole instances."""
        return self.count // self.machines

    @property
    def usd_per_h(self) -> float:
        """Rent of all machines."""
        return self.count * self.offer.price_usd_per_h


def read_fleet(path: Path, loaded: LoadedScenario) -> tuple[FleetRow, ...]:
    """The rows of a fleet file, priced as the scenario prices (its own offers and discounts, else the catalog's list price
    nearest to its date). Raises InputError with every fault in the file."""
    table = read_table(path, "fleet", encode_gpu=loaded.catalog.gpu_names.encode, label=path.name)
    findings = list(table.findings)
    offers = _offers(loaded)
    rows = []
    for number, values in zip(table.row_numbers, table.rows, strict=True):
        row, faults = _Row(table, number, values, loaded, offers).read()
        findings += faults
        if row is not None:
            rows.append(row)
    if findings:
        raise InputError(findings)
    return tuple(rows)


def _offers(loaded: LoadedScenario) -> dict[tuple[str, str], Offer]:
    """By (region, instance type): what the scenario pays, else the catalog's price; on demand before other markets."""
    near, far = choose_by_date(
        with_discounts(loaded.catalog.offers, loaded.scenario.offers.discount_pct), loaded.price_as_of
    )
    found: dict[tuple[str, str], Offer] = {}
    for offer in (*_on_demand_first(loaded.offers), *_on_demand_first(near), *_on_demand_first(far)):
        found.setdefault((offer.region, offer.instance_type), offer)
    return found


def _on_demand_first(offers: Iterable[Offer]) -> list[Offer]:
    return sorted(offers, key=lambda offer: offer.market is not Market.ON_DEMAND)


class _Row:
    """One row, read to the end whatever is wrong in it."""

    def __init__(
        self,
        table: Table,
        number: int,
        values: Mapping[str, Any],
        loaded: LoadedScenario,
        offers: Mapping[tuple[str, str], Offer],
    ) -> None:
        self.file, self.number, self.values, self.loaded, self.offers = table.file, number, values, loaded, offers
        self.faults: list[Finding] = []

    def fault(self, column: str, reason: str, remedy: str) -> None:
        self.faults.append(Finding(self.file, self.number, column, str(self.values[column]), reason, remedy))

    def read(self) -> tuple[FleetRow | None, list[Finding]]:
        offer, workload = self.offer(), self.workload()
        tp, pp, replicas = self.values["tp"], self.values["pp"] or 1, self.values["replicas"] or 1
        if offer is None:
            return None, self.faults
        node = self.node(offer)
        machines = self.machines(node, tp, pp, replicas)
        if machines and self.values["count"] % machines:
            remedy = f"give a multiple of {machines}: an instance takes {machines} machines"
            self.fault("count", "does not make whole instances", remedy)
        if self.faults or workload is None:
            return None, self.faults
        return FleetRow(self.number, offer, node, workload, self.values["count"], tp, pp, replicas, machines), []

    def offer(self) -> Offer | None:
        regions = {region for region, _ in self.offers}
        wanted = self.values["region"].lower()
        found = sorted(region for region in regions if wanted in (region.lower(), region.lower().split("/")[-1]))
        if not found:
            names = regions | {region.split("/")[-1] for region in regions}
            self.fault("region", "unknown region", close_matches_remedy(self.values["region"], names))
            return None
        if len(found) > 1:
            self.fault("region", "is a region of several providers", f"write {' or '.join(found)}")
            return None
        sold = {name: offer for (region, name), offer in self.offers.items() if region == found[0]}
        offer = sold.get(self.values["instance_type"])
        if offer is None:
            known = {name for _, name in self.offers}
            what = "is not sold in this region" if self.values["instance_type"] in known else "unknown instance type"
            self.fault("instance_type", what, close_matches_remedy(self.values["instance_type"], sold))
        return offer

    def workload(self) -> Workload | None:
        name = self.values["model"].lower()
        for workload in self.loaded.workloads:
            is_model = name in (workload.model.model.lower(), workload.model.alias.lower())
            if is_model and workload.phase is Phase(self.values["phase"]):
                return workload
        known = [n for d in self.loaded.model_demands for n in (d.alias, d.model)]
        self.fault("model", "is not a model of the scenario", close_matches_remedy(self.values["model"], known))
        return None

    def node(self, offer: Offer) -> NodeConfig:
        known = self.loaded.node_configs.get(offer.node_config)
        return known or node_configs_of([offer], self.loaded.catalog, {})[offer.node_config]

    def machines(self, node: NodeConfig, tp: int, pp: int, replicas: int) -> int:
        """Machines of one instance; 0 where the layout does not fit on whole machines."""
        gpus = node.gpu_count
        if tp * pp * replicas <= gpus:
            return 1
        if replicas == 1 and gpus % tp == 0 and (tp * pp) % gpus == 0:
            return tp * pp // gpus
        if tp * pp <= gpus:
            self.fault("replicas", f"tp x pp x replicas is more than the {gpus} GPUs of a machine", "give fewer")
        else:
            remedy = f"over several machines of {gpus} GPUs, tp must divide {gpus} and tp x pp be a multiple of it, "
            self.fault("pp", "the layout does not fit on whole machines", remedy + "with one replica")
        return 0
