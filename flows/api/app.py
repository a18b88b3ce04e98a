"""The routes: only GET, JSON everywhere but the metrics, every error one clear line under ``error``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from catalogs.errors import CoralError, LakeError, UnknownNameError
from flows.api.metrics import metrics_text
from flows.api.reader import PlanReader
from tasks.allocation.plan import Plan, plan_json_schema
from tasks.allocation.plan_diff import diff_plans
from warehouse.records import PlanSummary

_OF_PLAN = "/scenarios/{scenario_id}/plans"


def make_app(root: Path, max_age_s: float | None = None) -> FastAPI:
    """The API over the lake in ``root``. ``max_age_s``: how long ago a run may have decided before health says stale."""
    reader = PlanReader(root)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()

    # The documentation pages that come with the framework load scripts from elsewhere.
    app = FastAPI(
        title="Coral", summary="Published plans, read-only.", docs_url=None, redoc_url=None, lifespan=lifespan
    )
    _add_errors(app)
    _add_plans(app, reader)
    _add_monitoring(app, reader, max_age_s)
    return app


def _add_plans(app: FastAPI, reader: PlanReader) -> None:
    @app.get("/scenarios")
    def scenarios() -> list[dict[str, Any]]:
        """Scenarios that have plans, with the number of the current one."""
        return [
            {
                "scenario_id": name,
                "current_plan_version": next(row.plan_version for row in summaries if row.is_current),
                "plans": len(summaries),
            }
            for name, summaries in reader.scenarios().items()
        ]

    @app.get(_OF_PLAN)
    def plans(scenario_id: str) -> list[dict[str, Any]]:
        """Versions of a scenario's plan, newest first."""
        return [_summary(row) for row in reader.plans(scenario_id)]

    @app.get("/scenarios/{scenario_id}/plan")
    def current(scenario_id: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """The current plan."""
        return _plan(reader.plan(scenario_id), if_none_match)

    @app.get(_OF_PLAN + "/{version}")
    def version(scenario_id: str, version: int, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """A plan version."""
        return _plan(reader.plan(scenario_id, version), if_none_match)

    @app.get(_OF_PLAN + "/{before}/diff/{after}")
    def diff(scenario_id: str, before: int, after: int) -> dict[str, Any]:
        """What changes from one version to another: instances to add, keep and remove, and the cost."""
        return diff_plans(reader.plan(scenario_id, before), reader.plan(scenario_id, after)).document()

    @app.get("/schema/plan.json")
    def schema() -> dict[str, Any]:
        """The JSON Schema of a plan."""
        return plan_json_schema()


def _add_monitoring(app: FastAPI, reader: PlanReader, max_age_s: float | None) -> None:
    @app.get("/")
    def index() -> dict[str, Any]:
        """What there is to ask."""
        paths = app.openapi()["paths"]
        return {"routes": {path: routes["get"]["description"] for path, routes in paths.items()}}

    @app.get("/health")
    def health() -> JSONResponse:
        """Ages of plans and inputs; 503 where one is stale or the lake cannot be read."""
        document = reader.health(datetime.now(UTC), max_age_s)
        return JSONResponse(document, status_code=200 if document["status"] == "ok" else 503)

    @app.get("/metrics")
    def metrics() -> Response:
        """Current plans and runs as Prometheus metrics."""
        return Response(metrics_text(reader, datetime.now(UTC)), media_type=CONTENT_TYPE_LATEST)


def _summary(row: PlanSummary) -> dict[str, Any]:
    return {**asdict(row), "created_at": row.created_at.astimezone(UTC).isoformat()}


def _plan(plan: Plan, if_none_match: str | None) -> Response:
    """The document; a version never changes but for its state, so who has it already is told so."""
    tag = f'"{plan.plan_version}-{plan.state.value}"'
    if if_none_match == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(plan.model_dump_json(by_alias=True), media_type="application/json", headers={"ETag": tag})


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(CoralError)
    def expected(_: Request, error: CoralError) -> JSONResponse:
        code = 404 if isinstance(error, UnknownNameError) else 503 if isinstance(error, LakeError) else 400
        return _error(str(error), code)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _error(f"{first['loc'][-1]} {first.get('input')!r}: {first['msg']}", 422)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return _error(f"there is nothing at {request.url.path}. To fix: / lists what there is", 404)
        return _error(f"{request.method} {request.url.path}: {error.detail}. To fix: use GET", error.status_code)


def _error(text: str, code: int) -> JSONResponse:
    return JSONResponse({"error": " ".join(text.split())}, status_code=code)
