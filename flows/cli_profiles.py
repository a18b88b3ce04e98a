"""``coral profiles``: where rates come from and how far off they are. Each command lives in a module of its own."""

from __future__ import annotations

import typer

from flows import cli_profiles_add, cli_profiles_check, cli_profiles_sensitivity


def register(app: typer.Typer) -> None:
    """Add the group and its commands to ``app``."""
    profiles = typer.Typer(
        name="profiles",
        help="Where rates come from and how far off they are.",
        short_help="Errors, fits, own measurements.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    cli_profiles_check.register(profiles)
    cli_profiles_add.register(profiles)
    cli_profiles_sensitivity.register(profiles)
    app.add_typer(profiles)
