"""Headroom by simulation, kept in the lake: how far the instances that are chosen can be used before they miss their SLOs.

A request keeps its SLO when both phases do, so each may miss half of what the SLO percentile leaves; prompts longer than the
percentile's, for which templates are not made, are not judged. The stream is Poisson
at the instances' rate with the scenario's lengths, as the promise is made: that share of requests in time under Poisson
arrivals at the *planned* rate. The planned rate is a busy minute's at the stated mean and so covers what the mean does not
say; how requests crowd within it is left to headroom. Fluctuation from one minute to the next counts in both; fixing every
minute's count instead raises the use found for ``core`` by 0 to 2 points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from catalogs.ids import short_hash
from catalogs.types import Phase, Workload
from flows.runner import code_hash
from flows.simulate_inputs import hardware_of
from flows.simulate_streams import scenario_pairs

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from tasks.allocation.types import AllocationResult, Instance
    from tasks.simulation.build import InstanceBuilder
    from tasks.simulation.headroom import RequestsAt
    from tasks.simulation.types import SimInstance
    from warehouse.connect import Lake

KIND = "headroom"
# Requests of a stream: with 0.5 % allowed to miss some 50 do, so the share found is good to about a point.
STREAM_REQUESTS = 12_000
LOWEST, STEP = 0.02, 0.01


class SimulatedHeadroom:
    """Measures the safe use of chosen instances, workload by workload. Equal instances under equal streams are simulated
    once: results lie in the lake under ``headroom/`` (where it may be written) by the hash of all that decides them.

    ``streams``: (stream, its name in the key) of models whose requests are not Poisson with the scenario's lengths.
    ``simulates`` False: what the lake knows, nothing of other workloads.
    """

    def __init__(
        self,
        loaded: LoadedScenario,
        lake: Lake,
        streams: Mapping[str, tuple[RequestsAt, str]] | None = None,
        *,
        simulates: bool = True,
    ) -> None:
        self._simulates = simulates
        self._loaded, self._lake = loaded, lake
        self._workloads = {workload.workload_id: workload for workload in loaded.workloads}
        self._builders: dict[str, InstanceBuilder] = {}
        self._known: dict[str, Mapping[str, Any]] = {}  # also where the lake is only read
        self._templates: dict[str, Mapping[str, Any]] = {}
        self._streams: dict[str, tuple[RequestsAt, str]] = dict(streams or {})

    def __call__(self, result: AllocationResult) -> dict[str, float]:
        """The largest safe use by workload id, of workloads that have instances."""
        instances = self._by_workload(result)
        decoders: dict[str, list[SimInstance]] = {}
        for name, mine in instances.items():
            if self._workloads[name].phase is Phase.DECODE:
                decoders[self._workloads[name].model.model] = mine

        def safe_use(name: str) -> float | None:
            workload = self._workloads[name]
            receivers = decoders.get(workload.model.model, []) if workload.phase is Phase.PREFILL else []
            return self._safe_use(workload, instances[name], receivers)

        with ThreadPoolExecutor(2) as pool:
            found = dict(zip(instances, pool.map(safe_use, instances), strict=True))
        return {name: share for name, share in found.items() if share is not None}

    def instances(self, result: AllocationResult) -> list[SimInstance]:
        """What is simulated: every copy of every instance."""
        return [instance for mine in self._by_workload(result).values() for instance in mine]

    def _by_workload(self, result: AllocationResult) -> dict[str, list[SimInstance]]:
        self._read_templates([row.template_id for row in result.instances])
        rows: dict[str, list[Instance]] = {}
        for row in result.instances:
            if self._workloads[row.workload_id].phase is not Phase.AGGREGATED:
                rows.setdefault(row.workload_id, []).append(row)
        return {name: self._instances(name, mine) for name, mine in rows.items()}

    def _read_templates(self, ids: Sequence[str]) -> None:
        from tasks.allocation.safety import with_safe_rates
        from warehouse import read

        new = sorted(set(ids) - set(self._templates))
        if new:
            table = with_safe_rates(
                read.templates_by_id(self._lake, new), self._loaded.scenario.policy.safety_percentile
            )
            self._templates |= {row["template_id"]: row for row in table.to_pylist()}

    def _instances(self, workload_id: str, rows: Sequence[Instance]) -> list[SimInstance]:
        from tasks.allocation.safety import time_ratio
        from tasks.simulation.build import InstanceBuilder
        from tasks.simulation.headroom import copies_of, slower

        if workload_id not in self._builders:
            workload = self._workloads[workload_id]
            hardware = hardware_of(self._loaded, sorted(self._loaded.node_configs), workload.model.model)
            self._builders[workload_id] = InstanceBuilder(workload, hardware)
        found: list[SimInstance] = []
        for row in rows:
            template, percentile = self._templates[row.template_id], self._loaded.scenario.policy.safety_percentile
            one = self._builders[workload_id].from_row(template, row.template_id, row.region)
            if percentile is not None:  # its rate is lowered: its passes take as much longer
                one = slower(one, time_ratio(template["rel_error"], percentile))
            found += copies_of(replace(one, instance_id=f"{row.template_id} {row.pool}"), row.instances)
        return found

    def _safe_use(
        self, workload: Workload, instances: Sequence[SimInstance], receivers: Sequence[SimInstance]
    ) -> float | None:
        from tasks.simulation.headroom import headroom, instances_class
        from warehouse.results import find_result, write_result

        requests_at, stream = self._stream(workload.model.model)
        percentile = 100 - (100 - workload.slo_percentile) / 2
        counts_transfer = self._loaded.scenario.library.mode != "paper"
        inputs = {
            "instances": instances_class(instances),
            "receivers": instances_class(receivers),
            "longest_prompt": workload.lengths.input_at_percentile,
            "stream": stream,
            "slo": [workload.slo_ms, percentile, counts_transfer],
            "search": [STREAM_REQUESTS, LOWEST, STEP],
            "code": code_hash(("tasks.simulation",)),
        }
        result_id = short_hash(inputs)
        known = self._known.get(result_id) or find_result(self._lake.root, result_id, KIND)
        if known is None and not self._simulates:
            return None
        if known is None:
            found = headroom(
                instances,
                workload.slo_ms,
                percentile,
                requests_at,
                lowest=LOWEST,
                step=STEP,
                counts_transfer=counts_transfer,
                receivers=receivers,
                longest_prompt=workload.lengths.input_at_percentile,
            )
            known = {"workload": workload.alias, "utilization": round(found.utilization, 6), **inputs}
            known["tried"] = {f"{share:.2f}": met for share, met in sorted(found.tried.items())}
            if not self._lake.is_read_only:
                write_result(self._lake.root, result_id, known, KIND)
        self._known[result_id] = known
        return float(known["utilization"])

    def _stream(self, model: str) -> tuple[RequestsAt, str]:
        from tasks.simulation.headroom import poisson_at

        if model not in self._streams:
            inputs, outputs = scenario_pairs(model, self._loaded, [])
            key = short_hash(["poisson", inputs.tobytes().hex(), outputs.tobytes().hex()])
            self._streams[model] = (poisson_at(model, (inputs, outputs), STREAM_REQUESTS), key)
        return self._streams[model]
