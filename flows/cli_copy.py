"""``coral copy``: the lake's tables at a place that cannot hold a lake, such as a bucket."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import JsonOption, LakeOption, described, put, put_json
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from warehouse.copies import Copied


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "copy",
        **described(
            "The lake's tables in a bucket or folder.",
            "coral copy --to /tmp/coral-copy",
            "coral copy --to /tmp/coral-copy --keep 30",
        ),
    )(copy)


def copy(
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or a folder.")
    ],
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            min=1,
            metavar="N",
            help="Delete all but the newest N snapshots there. [default: keep all]",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy every table of the lake as it is now: Parquet files that DuckDB, pyarrow and polars read without Coral and
    without the lake's folder.

    copy.json there says which files make up which table, copy.sql makes tables and views in plain DuckDB; both are written
    last, so readers see a whole snapshot or the one before. Files that are there already are not sent again. Credentials
    come from the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL; or
    GOOGLE_APPLICATION_CREDENTIALS.
    """
    from flows.interrupt import interrupt_sets
    from warehouse.copies import copy_lake
    from warehouse.places import place_of

    asked_to_stop = threading.Event()

    def go_on() -> None:
        if asked_to_stop.is_set():
            raise KeyboardInterrupt

    with interrupt_sets(asked_to_stop):  # between files: what is being sent is sent whole
        copied = copy_lake(lake_root_of(lake), place_of(to), keep=keep, go_on=go_on)
    if as_json:
        put_json(asdict(copied))
    else:
        put(_line(copied))


def _line(copied: Copied) -> str:
    there = copied.files - copied.files_sent
    sent = f"{counted(copied.files_sent, 'file')} sent ({copied.bytes_sent / 2**20:,.1f} MiB), {there:,} there before"
    what = "copied to" if copied.is_new else "is there already:"
    gone = f"; {counted(copied.deleted, 'file')} of older ones deleted" if copied.deleted else ""
    return f"snapshot {copied.snapshot} {what} {copied.to}: {sent}{gone}"
