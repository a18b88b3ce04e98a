"""``coral export``: what a published plan needs to be launched, gathered from the lake, and its files written as one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, UnknownNameError

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from tasks.exports.export import Export
    from tasks.exports.types import Facts, Launch, ModelFacts, NodeFacts, PlanRules, ServedWorkload
    from warehouse.connect import Lake


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """One call of ``coral export``. ``plan_version`` None = the current one; ``from_plan_version``: what runs now.
    ``engine_version`` None = the one the plan was made for, else the newest known. ``checkpoints``: MODEL=REPOSITORY."""

    scenario: str
    lake_root: Path
    targets: tuple[str, ...]
    plan_version: int | None = None
    from_plan_version: int | None = None
    engine_version: str | None = None
    checkpoints: tuple[str, ...] = ()
    attention_backend: str = ""


@dataclass(frozen=True)
class Exported:
    """The export with the launch it is of."""

    launch: Launch
    export: Export
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", self.launch.plan)


def export_plan(settings: ExportSettings, out: Path) -> Exported:
    """Make the files of a plan and write them to ``out``, which must be new, empty, or an export that nobody has edited.

    Raises UnknownNameError for a scenario, version or model that is not there, CoralError for facts the lake does not have
    and for a folder that is not an export's, LakeError.
    """
    from flows.export_folder import check_folder, write_folder
    from tasks.exports.export import export_of
    from warehouse.connect import Lake

    check_folder(out)  # before the work
    with Lake.open(settings.lake_root, read_only=True) as lake:
        launch = _launch(lake, settings, settings.plan_version)
        running = settings.from_plan_version
        before = None if running is None else _launch(lake, settings, running)
    export = export_of(launch, settings.targets, before)
    write_folder(out, export.files)
    return Exported(launch, export)


def _launch(lake: Lake, settings: ExportSettings, version: int | None) -> Launch:
    from flows.cli_plans import plan_in
    from tasks.exports.groups import launch_of

    plan = plan_in(lake, settings.scenario, version)
    return launch_of(plan, _facts(lake, plan, settings))


def _facts(lake: Lake, plan: Plan, settings: ExportSettings) -> Facts:
    from catalogs.engines import engine_launch, engine_version
    from tasks.exports.types import Facts

    name, _, stated = plan.inputs.engine.partition(" ")
    engine = engine_launch(name or "vllm", settings.engine_version or stated or None)
    workloads = _workloads(lake, plan)
    models = _models(lake, plan)
    return Facts(
        workloads=workloads,
        models=models,
        nodes=_nodes(lake, plan),
        engine=engine,
        gpu_memory_utilization=engine_version(engine.engine, engine.version).gpu_memory_utilization,
        memory_used_gib=_memory(lake, plan),
        checkpoints=_checkpoints(settings.checkpoints, workloads.values()),
        attention_backend=settings.attention_backend,
        rules=_rules(lake, plan),
    )


def _rules(lake: Lake, plan: Plan) -> PlanRules | None:
    """The rules the plan was made under, from its frame; None where an older version of coral kept none."""
    from flows.plan_frame import demands_of, find_frame, links_of, quotas_of
    from tasks.exports.types import PlanRules

    frame = find_frame(lake.root, plan.scenario_id, plan.plan_version)
    if frame is None:
        return None
    demands = {demand.model: demand for demand in demands_of(frame)}
    return PlanRules(demands, tuple(quotas_of(frame)), frame["budget_usd_per_h"], tuple(links_of(frame)))


def _rows(lake: Lake, plan: Plan, name: str) -> list[dict[str, Any]]:
    from warehouse.reference import plan_inputs

    return plan_inputs(lake.connection, plan.scenario_id, plan.plan_version, name).to_pylist()


def _workloads(lake: Lake, plan: Plan) -> dict[str, ServedWorkload]:
    from catalogs.types import Phase
    from tasks.exports.types import ServedWorkload

    names = (
        "workload_id",
        "alias",
        "model",
        "weight_dtype",
        "kv_dtype",
        "input_mean",
        "output_mean",
        "input_at_percentile",
    )
    return {
        row["workload_id"]: ServedWorkload(phase=Phase(row["phase"]), **{name: row[name] for name in names})
        for row in _rows(lake, plan, "workloads")
    }


def _models(lake: Lake, plan: Plan) -> dict[str, ModelFacts]:
    """From the catalog where it has the model; a model of one's own from what the lake recorded of it, which is less."""
    from catalogs import load_catalog
    from tasks.exports.types import ModelFacts

    known, found = load_catalog().models, {}
    for row in _rows(lake, plan, "models"):
        spec = known.get(row["model"])
        if spec is not None and (spec.layers, spec.heads) == (row["layers"], row["heads"]):
            found[row["model"]] = ModelFacts.of_spec(spec)
            continue
        width = row["moe_intermediate"] if row["n_experts"] else row["intermediate"]
        found[row["model"]] = ModelFacts(
            row["model"],
            row["layers"],
            row["heads"],
            row["kv_heads"],
            2 * row["kv_heads"] * row["head_dim"],
            row["max_position"],
            row["shipped_dtype"],
            (width,),
            has_latent_kv=False,
            quant_block=None,
        )
    return found


def _nodes(lake: Lake, plan: Plan) -> dict[str, NodeFacts]:
    from catalogs import load_catalog
    from tasks.exports.types import NodeFacts

    gpus = load_catalog().gpus
    return {
        row["node_config"]: NodeFacts(
            row["gpu"], row["gpu_count"], row["memory_gib"] / row["gpu_count"], gpus[row["gpu"]].has_native_bf16
        )
        for row in _rows(lake, plan, "node_configs")
        if row["gpu"] in gpus
    }


def _memory(lake: Lake, plan: Plan) -> dict[tuple[str, int, str], float]:
    """Memory of the fullest GPU by (template, stage, node configuration), where the library still has the profile."""
    from warehouse.read import profile_memory

    ids, cycles = {row.workload_id for row in plan.instances}, {row.cycle_ms for row in plan.instances}
    table = profile_memory(lake, plan.inputs.library_id, sorted(ids), sorted(cycles))
    names = ("workload_id", "node_config", "layers", "position", "stages", "cycle_ms", "tp")
    used = {tuple(row[name] for name in names): row["memory_used_gib"] for row in table.to_pylist()}
    found = {}
    for row in plan.instances:
        for s, stage in enumerate(row.stages):
            layers = stage.layers[1] - stage.layers[0] + 1
            for node in stage.nodes:
                key = (
                    row.workload_id,
                    node.node_config,
                    layers,
                    stage.position,
                    len(row.stages),
                    row.cycle_ms,
                    node.tp,
                )
                if key in used:
                    found[row.template_id, s, node.node_config] = used[key]
    return found


def _checkpoints(given: Sequence[str], served: Any) -> Mapping[str, str]:
    by_name = {name.lower(): row.model for row in served for name in (row.model, row.alias.rpartition("/")[0])}
    found = {}
    for text in given:
        name, _, repository = text.partition("=")
        if not name or not repository:
            raise CoralError(f"--checkpoint {text!r} names no repository", remedy="write MODEL=ORG/NAME")
        if name.lower() not in by_name:
            raise UnknownNameError("model of this plan", name, by_name)
        found[by_name[name.lower()]] = repository
    return found
