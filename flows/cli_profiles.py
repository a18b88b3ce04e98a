"""``coral profiles``: where rates come from and how far off they are. Each command lives in a module of its own."""

from __future__ import annotations

import typer

from flows import cli_profiles_add, cli_profiles_check, cli_profiles_sensitivity
from flows.cli_common import command_group


def register(app: typer.Typer) -> None:
    """Add the group and its commands to ``app``."""
    profiles = command_group(
        "profiles",
        "Where rates come from and how far off they are.",
        "coral init my",
        "coral profiles add my/rates.csv --scenario my/scenario.yaml",
        short="Errors, fits, own measurements.",
    )
    cli_profiles_check.register(profiles)
    cli_profiles_add.register(profiles)
    cli_profiles_sensitivity.register(profiles)
    app.add_typer(profiles)
