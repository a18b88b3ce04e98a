"""``coral profiles sensitivity``: what a plan owes to each factor, and what wrong factors would cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import DEFAULT_SCENARIO, JsonOption, ScenarioOption, described, put, put_json

if TYPE_CHECKING:
    from flows.sensitivity import FactorRow, Outcome, RegretRow


def register(profiles: typer.Typer) -> None:
    """Add the command to the group."""
    profiles.command(
        "sensitivity",
        **described(
            "How cost and GPUs move with the factors.",
            "coral profiles sensitivity --scenario core --change 10 --draws 20",
        ),
    )(sensitivity)


def sensitivity(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    change: Annotated[float, typer.Option("--change", min=0.1, max=90, help="Change of each factor, in %.")] = 10.0,
    draws: Annotated[int, typer.Option("--draws", min=0, help="Draws of true rates; 0 leaves regret out.")] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws.")] = 1,
    n_max: Annotated[int, typer.Option("--n-max", min=1, max=8, help="Most nodes per template in this study.")] = 2,
    factor: Annotated[list[str] | None, typer.Option("--factor", help="Only this factor. May be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan with each factor of the performance model and each de-rating worse and better, and with each GPU slower and faster.

    Then the regret of the plan: true rates are drawn from the errors of the rates, and the plan made good is compared
    with the best plan for the truth. Libraries are small and in memory; nothing is written.
    """
    from catalogs.errors import UnknownNameError
    from catalogs.scenario import load_scenario
    from flows.cli_progress import show_progress
    from flows.sensitivity import Study, factor_study, regret_study
    from tasks.profiling.perturb import factor_names

    study = Study(load_scenario(scenario), n_max)
    known = factor_names(study.gpus)
    for name in factor or ():
        if name not in known:
            raise UnknownNameError("factor", name, known)
    with show_progress() as progress:
        base, rows = factor_study(study, change / 100, progress, tuple(factor or ()))
        regrets = regret_study(study, draws, seed, progress) if draws else []
    if as_json:
        put_json({"base": asdict(base), "factors": [asdict(r) for r in rows], "regret": [asdict(r) for r in regrets]})
        return
    put("\n".join([*_factor_lines(base, rows, change, study.n_max), *_regret_lines(regrets, seed)]))


def _factor_lines(base: Outcome, rows: list[FactorRow], change: float, n_max: int) -> list[str]:
    from flows.render import table

    nodes = counted(n_max, "node")
    lines = [
        f"plan as it is: {_cost(base)} USD/h, GPUs {_gpus(base)}",
        f"templates of at most {nodes} and the stated headroom, so not quite the cost that `coral plan` prints",
        "",
        "USD/h and GPUs, planned again with one factor changed on all GPUs (speed of: one GPU's)",
    ]
    cells = [
        (
            row.factor,
            _cost(row.worse),
            _moved(base, row.worse),
            _gpu_change(base, row.worse),
            _cost(row.better),
            _moved(base, row.better),
            _gpu_change(base, row.better),
        )
        for row in rows
    ]
    header = ("factor", f"{change:g} % worse", "", "GPUs", f"{change:g} % better", "", "GPUs")
    return lines + table(header, cells, right=(1, 2, 4, 5))


def _cost(outcome: Outcome) -> str:
    return "not met" if outcome.cost_usd_per_h is None else f"{outcome.cost_usd_per_h:,.2f}"


def _moved(base: Outcome, outcome: Outcome) -> str:
    if not base.cost_usd_per_h or outcome.cost_usd_per_h is None:
        return ""
    return f"{outcome.cost_usd_per_h / base.cost_usd_per_h - 1:+.1%}"


def _gpus(outcome: Outcome) -> str:
    return ", ".join(f"{count} {gpu}" for gpu, count in outcome.gpus.items()) or "none"


def _gpu_change(base: Outcome, outcome: Outcome) -> str:
    if outcome.cost_usd_per_h is None:
        return outcome.note
    names = sorted(base.gpus.keys() | outcome.gpus.keys())
    moved = [(name, outcome.gpus.get(name, 0) - base.gpus.get(name, 0)) for name in names]
    return ", ".join(f"{count:+d} {name}" for name, count in moved if count) or "same"


def _regret_lines(rows: list[RegretRow], seed: int) -> list[str]:
    if not rows:
        return []
    from flows.render import table

    cells = [
        (
            "as expected" if row.safety_percentile is None else f"p{row.safety_percentile:g}",
            f"{row.cost_usd_per_h:,.2f}",
            f"{row.share_met:.0%}",
            f"{row.worst_met_share:.0%}",
            f"{row.regret_mean:.1%}",
            f"{row.regret_p90:.1%}",
            f"{row.regret_max:.1%}",
        )
        for row in rows
    ]
    header = ("planned with rates", "USD/h", "demand met", "worst share", "regret mean", "p90", "max")
    title = (
        f"regret over {rows[0].draws} draws of true rates from their errors, one for each GPU and phase (seed {seed})"
    )
    notes = [
        "demand met: draws in which the plan as made serves all demand; worst share: what it serves in the worst draw",
        "regret: what the plan costs more than the best for the true rates, once nodes are added or given back",
    ]
    return ["", title, *table(header, cells, right=(1, 2, 3, 4, 5, 6)), *notes]
