"""``coral gpus|configs|regions|scenarios list``: the names that the catalogs know, as ``coral models list`` has the models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from flows.cli_common import JsonOption, command_group, described, put, put_json

_GpuFilter = Annotated[str | None, typer.Option("--gpu", metavar="GPU", help="Only of this GPU. [default: all]")]
_RegionFilter = Annotated[
    str | None, typer.Option("--region", metavar="REGION", help="Only what is sold there. [default: all]")
]


def register(app: typer.Typer) -> None:
    """Add the groups and their commands to ``app``."""
    for name, what, command, examples in (
        ("gpus", "The GPUs of the catalog.", list_gpus, ("coral gpus list", "coral gpus list --json")),
        (
            "configs",
            "Node configurations: a GPU type and a count.",
            list_configs,
            ("coral configs list", "coral configs list --gpu L40S --region aws/us-east-2"),
        ),
        (
            "regions",
            "Regions with machines on offer.",
            list_regions,
            ("coral regions list", "coral regions list --json"),
        ),
        ("scenarios", "The shipped scenarios.", list_scenarios, ("coral scenarios list",)),
    ):
        group = command_group(name, what, *examples)
        # With one command alone typer would make the group that command.
        group.callback()(_nothing)
        group.command("list", **described(what, *examples))(command)
        app.add_typer(group)


def _nothing() -> None:
    """Only so that a group of one command stays a group."""


def list_gpus(as_json: JsonOption = False) -> None:
    """List the GPU ids: memory, peaks, link, and the weakest ground of their performance factors."""
    from catalogs import load_catalog
    from catalogs.types import Provenance
    from flows.render import table

    catalog = load_catalog()
    grounds = list(Provenance)

    def ground(gpu: str) -> str:
        factors = catalog.efficiencies.get(gpu)
        return "none" if factors is None else max(factors.provenance.values(), key=grounds.index).value

    if as_json:
        put_json(
            [
                {**asdict(gpu), "as_of": gpu.as_of.isoformat(), "factors": ground(gpu.gpu)}
                for gpu in catalog.gpus.values()
            ]
        )
        return
    rows = [
        (
            gpu.gpu,
            f"{gpu.memory_gib:,.1f}",
            _number(gpu.bf16_dense_tflops or gpu.fp16_dense_tflops),
            _number(gpu.fp8_dense_tflops),
            _number(gpu.memory_bandwidth_gb_per_s),
            gpu.link,
            ground(gpu.gpu),
        )
        for gpu in catalog.gpus.values()
    ]
    header = ("gpu", "GiB", "16-bit TFLOPS", "fp8 TFLOPS", "GB/s", "link", "factors")
    put("\n".join(table(header, rows, right=(1, 2, 3, 4))))


def list_configs(gpu: _GpuFilter = None, region: _RegionFilter = None, as_json: JsonOption = False) -> None:
    """List node configurations: memory, network, and the cheapest offer on demand with its region."""
    from catalogs import load_catalog
    from catalogs.errors import UnknownNameError
    from catalogs.types import Market
    from flows.render import money, table

    catalog = load_catalog()
    if region is not None and region not in catalog.regions:
        raise UnknownNameError("region", region, catalog.regions)
    wanted = None if gpu is None else catalog.gpu_names.encode(gpu)
    best: dict[str, Any] = {}
    for offer in catalog.offers:
        is_asked = offer.market is Market.ON_DEMAND and region in (None, offer.region)
        if is_asked and (
            offer.node_config not in best or offer.price_usd_per_h < best[offer.node_config].price_usd_per_h
        ):
            best[offer.node_config] = offer
    configs = [
        config
        for name, config in catalog.node_configs.items()
        if wanted in (None, config.gpu) and (region is None or name in best)
    ]
    if as_json:
        put_json(
            [
                {
                    **{key: value for key, value in asdict(config).items() if key not in {"source", "as_of"}},
                    "cheapest_usd_per_h": best[config.node_config].price_usd_per_h
                    if config.node_config in best
                    else None,
                    "cheapest_region": best[config.node_config].region if config.node_config in best else None,
                }
                for config in configs
            ]
        )
        return
    rows = []
    for config in configs:
        one = best.get(config.node_config)
        cheapest = ("", "", "") if one is None else (money(one.price_usd_per_h), one.region, one.instance_type)
        rows.append(
            (
                config.node_config,
                f"{config.memory_gib:,.0f}",
                config.link,
                _number(config.network_gbit_per_s),
                *cheapest,
            )
        )
    header = ("configuration", "GiB", "link", "Gbit/s", "USD/h from", "in", "as")
    put("\n".join(table(header, rows, right=(1, 3, 4))))


def list_regions(as_json: JsonOption = False) -> None:
    """List the regions, written provider/region as scenarios do, with the GPUs sold there."""
    from catalogs import load_catalog
    from flows.render import table

    catalog = load_catalog()
    sold: dict[str, set[str]] = {region: set() for region in catalog.regions}
    for offer in catalog.offers:
        if not offer.is_derived:
            sold[offer.region].add(catalog.node_configs[offer.node_config].gpu)
    if as_json:
        put_json([{"region": region, "gpus": sorted(gpus)} for region, gpus in sold.items()])
        return
    rows = [(region, " ".join(sorted(gpus))) for region, gpus in sold.items()]
    put("\n".join(table(("region", "GPUs sold"), rows, right=())))


def list_scenarios(as_json: JsonOption = False) -> None:
    """List the scenarios that come with Coral; `coral init DIR` starts one of your own."""
    from catalogs.scenario import load_scenario
    from catalogs.scenario_files import shipped_scenarios
    from flows.render import table

    loaded = {name: load_scenario(name) for name in shipped_scenarios()}
    documents: list[dict[str, Any]] = [
        {
            "scenario": name,
            "models": [demand.alias for demand in one.model_demands],
            "regions": list(one.regions),
            "description": one.scenario.description,
        }
        for name, one in loaded.items()
    ]
    if as_json:
        put_json(documents)
        return
    rows = [
        (row["scenario"], str(len(row["models"])), str(len(row["regions"])), row["description"]) for row in documents
    ]
    put("\n".join(table(("scenario", "models", "regions", "what"), rows, right=(1, 2))))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
