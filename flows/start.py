"""Where the command starts: nothing is imported here, so that Ctrl-C is answered from the first moment on."""

_INTERRUPTED = 130  # as flows.cli_common.ExitCode, which takes time to import


def main() -> int:
    """Run the command line; the exit code."""
    try:
        from flows.cli import main as run

        return run()
    except KeyboardInterrupt:
        import sys

        print("interrupted", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
