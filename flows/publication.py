"""What an allocation leaves in Prefect: an event for every outcome; for a new version an asset and artifacts.

Events are named ``coral.allocation.<outcome>``, of the resource ``coral.plan.<scenario>``. A publication materializes the
asset ``coral://plans/<scenario>`` and writes the artifacts ``coral-plan-<scenario>`` (table), ``coral-diff-<scenario>``
(what changes from the version before) and ``coral-prices-<scenario>`` (prices paid over the last versions). Only called
inside a flow run.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.cli_diff import diff_lines
from flows.render import to_text
from tasks.allocation.plan import Plan
from tasks.allocation.plan_diff import diff_plans

if TYPE_CHECKING:
    from flows.plan_publish import AllocationOutcome

EVENT_PREFIX = "coral.allocation."
RESOURCE_PREFIX = "coral.plan."
_CHART_VERSIONS = 50


def announce(outcome: AllocationOutcome, lake_root: Path) -> None:
    """Emit the outcome's event; for a published version materialize its asset, with artifacts."""
    plan = outcome.plan
    if outcome.run_outcome == "published":
        asset = Asset(
            key=f"coral://plans/{plan.scenario_id}",
            properties=AssetProperties(
                name=f"Plan of {plan.scenario_id}", description="What to rent and how to use it"
            ),
        )
        materialize(asset, name="publish plan", cache_policy=NO_CACHE, persist_result=False)(_publish)(
            asset, plan, lake_root
        )
    _emit(
        outcome.run_outcome or "unchanged",
        plan.scenario_id,
        {
            "plan_version": plan.plan_version,
            "status": plan.status.value,
            "cost_usd_per_h": plan.cost_usd_per_h,
            "reason": plan.reason,
            "text": outcome.text,
        },
    )


def announce_undecided(outcome: str, scenario_id: str | None, text: str) -> None:
    """Emit the event of a run that decided nothing: held, superseded or failed."""
    _emit(outcome, scenario_id or "unknown", {"text": text})


def _emit(outcome: str, scenario_id: str, payload: dict[str, Any]) -> None:
    resource = {"prefect.resource.id": RESOURCE_PREFIX + scenario_id, "prefect.resource.name": f"Plan of {scenario_id}"}
    emit_event(EVENT_PREFIX + outcome, resource=resource, payload={"scenario_id": scenario_id, **payload})


def _publish(asset: Asset, plan: Plan, lake_root: Path) -> None:
    """The task that materializes the asset."""
    from warehouse import read, runs
    from warehouse.connect import Lake

    with Lake.open(lake_root, read_only=True) as lake:
        earlier = runs.version_before(lake, plan.scenario_id, plan.plan_version)
        before = None if earlier is None else read.plan_version(lake, plan.scenario_id, earlier)
        prices = runs.prices_paid(lake, plan.scenario_id, _CHART_VERSIONS)
    name = f"{plan.scenario_id} version {plan.plan_version}"
    create_table_artifact(key=_key("plan", plan), description=f"Plan {name}", table=plan_rows(plan))
    create_markdown_artifact(key=_key("diff", plan), description=f"Changes to {name}", markdown=diff_text(before, plan))
    create_image_artifact(
        key=_key("prices", plan), description=f"Prices paid up to {name}", image_url=image_address(price_chart(prices))
    )
    asset.add_metadata(
        {"plan_version": plan.plan_version, "cost_usd_per_h": plan.cost_usd_per_h, "status": plan.status.value}
    )


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """The plan's instances as rows of a table for people."""
    return [
        {
            "region": row.region,
            "workload": row.workload,
            "combination": row.combination_id,
            "market": row.market.value,
            "instances": row.instances,
            "of them new": row.new_instances,
            "tok/s each": round(row.throughput_tok_per_s),
            "USD/h each": round(row.cost_usd_per_h, 4),
        }
        for row in plan.instances
    ]


def diff_text(before: Plan | None, plan: Plan) -> str:
    """What changes from the version before, as markdown; for the first version, that it is the first."""
    if before is None:
        return f"Version {plan.plan_version} of {plan.scenario_id} is its first: everything in it is new."
    return f"{plan.reason}\n\n```\n{to_text(diff_lines(diff_plans(before, plan)))}\n```"


def price_chart(prices: list[dict[str, Any]]) -> bytes:
    """The chart as SVG, drawn by the dashboards in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "prices.json", Path(folder) / "prices.svg"
        source.write_text(json.dumps(prices))
        command = [sys.executable, "-P", "-m", "dashboards.price_chart", str(source), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the price chart was not drawn:\n{done.stderr}")
        return out.read_bytes()


def image_address(svg: bytes) -> str:
    """An address that holds the picture itself, so that nothing is fetched to show it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _key(kind: str, plan: Plan) -> str:
    """An artifact's key: lower-case letters, digits and single dashes."""
    return re.sub("[^a-z0-9]+", "-", f"coral-{kind}-{plan.scenario_id}").strip("-")
