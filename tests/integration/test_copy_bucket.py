"""A copy of a lake in a bucket, against a server that speaks S3: killed on the way, gone on with, read by other programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import polars
import pyarrow.dataset
import pytest
from cli_runner import coral
from dashboard_cases import dashboard_lake
from moto.core import set_initial_no_auth_action_count
from moto.s3.models import S3Backend
from moto.server import ThreadedMotoServer
from pyarrow import fs
from warehouse_cases import plan, run

from warehouse.connect import Lake
from warehouse.copies import copy_lake
from warehouse.places import PlaceError, place_of
from warehouse.plans import publish_plan
from warehouse.sql import query

pytestmark = pytest.mark.integration
BUCKET, SECRET = "team-bucket", "not-to-be-shown"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment that leads to a store with one empty bucket; set here too."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield given
    server.stop()


def objects() -> dict[str, int]:
    found = boto3.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {row["Key"]: row["Size"] for row in found}


def test_a_copy_is_killed_goes_on_and_is_read(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, to = tmp_path / "lake", f"s3://{BUCKET}/team/coral"
    dashboard_lake(root)
    arrived, enough, put = [], threading.Event(), S3Backend.put_object

    def slow(self: Any, bucket: str, name: str, *args: Any, **given: Any) -> Any:
        time.sleep(0.2)
        arrived.append(name)
        if len(arrived) >= 6:
            enough.set()
        return put(self, bucket, name, *args, **given)

    monkeypatch.setattr(S3Backend, "put_object", slow)
    code = "import sys; from flows.start import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "copy", "--to", to, "--lake", str(root)]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONSAFEPATH": "1"}) as process:
        assert enough.wait(120)
        process.kill()
    assert len(arrived) < 40
    assert not [name for name in objects() if name.endswith(("copy.json", "copy.sql"))]
    there = len(objects())

    monkeypatch.setattr(S3Backend, "put_object", put)
    done = coral("copy", "--to", to, "--lake", root, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["is_new"]
    assert told["files_sent"] <= told["files"] - there + 4  # what was on its way when it was killed
    assert copy_lake(root, place_of(to)).files_sent == 0
    assert SECRET not in done.stdout + done.stderr + "".join(objects())

    store, folder = fs.FileSystem.from_uri(to)
    copy = json.loads(store.open_input_file(f"{folder}/copy.json").read())
    assert SECRET not in json.dumps(copy)
    for name in ("plan_instances", "solved_templates", "plan_documents"):
        files = [f"{folder}/{path}" for path in copy["tables"][name]["files"]]
        ours = query(root, f"FROM {copy['tables'][name]['schema']}.{name}").to_pylist()
        read = pyarrow.dataset.dataset(files, filesystem=store).to_table().to_pylist()
        assert sorted(map(str, read)) == sorted(map(str, ours))
    frame = polars.scan_parquet(
        [f"s3://{folder}/{path}" for path in copy["tables"]["plan_rows"]["files"]],
        storage_options={"aws_endpoint_url": variables["AWS_ENDPOINT_URL"], "aws_allow_http": "true"},
    ).collect()
    assert sorted(frame["plan_version"]) == [1, 2]

    with Lake.open(root) as lake:
        publish_plan(lake, plan(instances=3, cost_usd_per_h=24.0), run("r3"))
    newer = copy_lake(root, place_of(to), keep=1)
    assert (newer.is_new, newer.deleted) == (True, 2)  # copy.json and copy.sql of the snapshot before
    kept = {name.split("/")[3] for name in objects() if "/snapshots/" in name}
    kept.discard("")  # the folder itself, which the client marks
    assert kept == {newer.copy_id}


def test_what_a_store_refuses_is_one_line(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def said(bucket: str = BUCKET) -> str:
        with pytest.raises(PlaceError) as caught:
            place_of(f"s3://{bucket}/x").files("tables")
        assert SECRET not in str(caught.value)
        return str(caught.value)

    assert said("no-such-bucket") == "there is no bucket no-such-bucket. To fix: make it, or name another with --to"
    said_by_a_strict_one = set_initial_no_auth_action_count(0)(said)  # credentials are looked at
    assert said_by_a_strict_one().startswith(f"s3://{BUCKET}/x refuses these credentials")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    assert said().startswith(f"s3://{BUCKET} is not reached at http://127.0.0.1:9. To fix: check the network")
    assert time.monotonic() - started < 30
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://me:{SECRET}@127.0.0.1")
    assert said() == "AWS_ENDPOINT_URL is no address of a store. To fix: write https://HOST:PORT"
