"""What runs now, in the terms of the library that is planned from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake


def running_instances(lake: Lake, library_id: str, last_plan: Plan | None) -> dict[str, dict[tuple[str, str], int]]:
    """Instances the last plan has: per workload id, by (region, template id) of the library ``library_id``.

    A template's id changes with its library; an instance is the same one where the new library lays its workload over
    the same combination in the same way. What the new library lays out otherwise would have to start anew.
    """
    running: dict[str, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    if last_plan is None:
        return running
    same = {} if last_plan.inputs.library_id == library_id else _same_layouts(lake, library_id, last_plan)
    for row in last_plan.instances:
        running[row.workload_id][row.region, same.get(row.template_id, row.template_id)] += row.instances
    return running


def _same_layouts(lake: Lake, library_id: str, last_plan: Plan) -> dict[str, str]:
    """New template id by old one, for the plan's templates that the library has with the same stages."""
    from warehouse import read

    found: dict[str, str] = {}
    for workload_id in sorted({row.workload_id for row in last_plan.instances}):
        old_rows = [row for row in last_plan.instances if row.workload_id == workload_id]
        slim = read.library_templates(lake, library_id, workload_id)
        pairs = zip(slim["template_id"].to_pylist(), slim["combination_id"].to_pylist(), strict=True)
        wanted = {row.combination_id for row in old_rows}
        for new in read.templates_by_id(lake, [name for name, nodes in pairs if nodes in wanted]).to_pylist():
            layout = _layout(((s["layer_start"], s["layer_end"]), s["members"]) for s in new["stages"])
            for old in old_rows:
                same_nodes = old.combination_id == new["combination_id"]
                if same_nodes and layout == _layout((s.layers, (n.model_dump() for n in s.nodes)) for s in old.stages):
                    found[old.template_id] = new["template_id"]
    return found


def _layout(stages: Iterable[tuple[tuple[int, int], Iterable[dict[str, Any]]]]) -> list[Any]:
    """What has to be started: per stage its layers and its nodes with their inner layout, in any order."""
    inner = ("node_config", "tp", "pp", "replicas")
    return [(tuple(layers), sorted(tuple(node[name] for name in inner) for node in nodes)) for layers, nodes in stages]
