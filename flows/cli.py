"""The ``coral`` command: wires the commands together and turns expected outcomes into one line and an exit code.

stdout = data, stderr = progress and messages. Exit codes: 0 ok, 1 bug (with its traceback), 2 usage or bad input,
3 difference, 4 shortfall published, 5 held or stale, 6 lake locked or of another schema, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from catalogs.errors import CoralError
from flows import (
    cli_alerts,
    cli_api,
    cli_catalog,
    cli_compare,
    cli_copy,
    cli_dashboard,
    cli_doctor,
    cli_drift,
    cli_export,
    cli_ingest,
    cli_inputs,
    cli_lake,
    cli_models,
    cli_plan,
    cli_plans,
    cli_profiles,
    cli_serve,
    cli_simulate,
    cli_sql,
    cli_whatif,
)
from flows.cli_common import ExitCode, say, say_error
from flows.cli_faults import CommandLine, check_arguments, system_fault
from flows.cli_streams import StdoutError, flush_stdout, give_up_stdout, leave_stdout, settle_streams
from flows.interrupt import notice_interrupts, was_interrupted

_INTERRUPTED = "interrupted: what was published is untouched, finished work is kept; run the same command to go on"

app = typer.Typer(
    name="coral",
    cls=CommandLine,
    help="Plan what GPUs to rent and how to lay LLMs over them, at the least cost that meets demand and latency.",
    epilog=(
        "\b\nExamples:\n"
        "  coral plan                       the shipped scenario `core`, to a published plan\n"
        "  coral init my && coral plan -s my/scenario.yaml      your own models, regions and prices\n\n"
        "\b\nExit codes: 0 ok, 1 bug, 2 usage or bad input, 3 difference, 4 shortfall published,\n"
        "5 held or stale, 6 lake locked or of another schema, 130 interrupted."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
cli_alerts.register(app)
cli_api.register(app)
cli_catalog.register(app)
cli_compare.register(app)
cli_copy.register(app)
cli_dashboard.register(app)
cli_doctor.register(app)
cli_drift.register(app)
cli_export.register(app)
cli_ingest.register(app)
cli_inputs.register(app)
cli_lake.register(app)
cli_models.register(app)
cli_plan.register(app)
cli_plans.register(app)
cli_profiles.register(app)
cli_serve.register(app)
cli_simulate.register(app)
cli_sql.register(app)
cli_whatif.register(app)


def main() -> int:
    """Run the command line; the exit code. A bug leaves by its traceback."""
    notice_interrupts()
    try:
        settle_streams()
        check_arguments(sys.argv[1:])
        code = _run()
        flush_stdout()
    except CoralError as error:
        say_error(error)
        return error.exit_code
    except StdoutError as error:
        leave_stdout()
        if error.is_reader_gone:  # `| head`: nothing is wrong
            return ExitCode.OK
        say(f"error: {error}")
        return ExitCode.BAD_INPUT
    except OSError as error:
        known = system_fault(error)
        if known is None:
            raise
        say_error(known)
        give_up_stdout()
        return known.exit_code
    except Exception:
        if not was_interrupted():
            raise
        say(_INTERRUPTED)
        return ExitCode.INTERRUPTED
    return code


def _run() -> int:
    try:
        app(prog_name="coral")
    except BrokenPipeError as error:
        raise StdoutError(error) from error
    except RuntimeError as error:
        # DuckDB's own word for Ctrl-C during a statement; a time limit's interrupt is another class.
        if str(error) != "Query interrupted":
            raise
        say(_INTERRUPTED)
        return ExitCode.INTERRUPTED
    except SystemExit as stop:
        if stop.code == ExitCode.INTERRUPTED:
            say(_INTERRUPTED)
        # The library's own word for a reader that has left, while it prints help.
        return ExitCode.OK if isinstance(stop.__context__, BrokenPipeError) else int(stop.code or 0)
    return ExitCode.OK
