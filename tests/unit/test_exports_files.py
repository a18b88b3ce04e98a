"""The files of an export: golden, run with an engine that only says how it was called, counted, and parsed as what they are."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_cases import (
    INSIDE,
    MIXED,
    MODEL,
    OWNED,
    ROWS,
    SHARED_STAGE,
    SIDE_BY_SIDE,
    SMALL,
    UNEQUAL,
    instance,
    launch,
    node,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.allocation.plan import PlanWarning
from tasks.exports.changes import changes_between
from tasks.exports.counts import check_counts
from tasks.exports.export import TARGETS, export_of
from tasks.exports.kubernetes import sets_of
from tasks.exports.routing import nodes_of
from tasks.exports.rules import refusals
from tasks.exports.types import Group, GroupNode, Launch

IOWA = {"region": "gcp/us-central1"}
GOLDEN = Path(__file__).parents[1] / "golden" / "export"


@pytest.fixture(scope="module")
def made() -> Launch:
    return launch()


@pytest.fixture(scope="module")
def files(made: Launch) -> dict[str, str]:
    return export_of(made, TARGETS, launch(MIXED | {"instances": 3}, SIDE_BY_SIDE)).files


def test_the_files_are_the_golden_ones(files: dict[str, str]) -> None:
    """CORAL_WRITE_GOLDEN=1 writes them anew: read the difference before it is committed."""
    files = {
        name: text for name, text in files.items() if name != "plan.json"
    }  # the plan's own form is tested elsewhere
    if os.environ.get("CORAL_WRITE_GOLDEN"):
        for path in GOLDEN.rglob("*"):
            if path.is_file():
                path.unlink()
        for name, text in files.items():
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(text)
    known = {path.relative_to(GOLDEN).as_posix(): path.read_text() for path in GOLDEN.rglob("*") if path.is_file()}
    assert sorted(files) == sorted(known)
    for name, text in files.items():
        assert text == known[name], f"{name} differs from its golden file"


# ---- run them --------------------------------------------------------------------------------------------------------

# Writes how it was called, the words last, and stays until as many have as are expected: one that ends would end the others.
STUB = r"""#!/bin/sh
env | grep ^VLLM_PP > "$CALLS/$$.env" || true
for w in "$@"; do printf '%s\n' "$w"; done > "$CALLS/$$.part"
mv "$CALLS/$$.part" "$CALLS/$$.words"
tries=0
while [ "$(ls "$CALLS" | grep -c words)" -lt "$EXPECTED" ] && [ "$tries" -lt 200 ]; do sleep 0.05; tries=$((tries + 1)); done
"""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A folder to which a stand-in for vllm, first on the PATH, writes how it is called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "calls").mkdir()
    (tmp_path / "bin" / "vllm").write_text(STUB)
    (tmp_path / "bin" / "hostname").write_text("#!/bin/sh\necho 10.0.0.9\n")
    for name in ("vllm", "hostname"):
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def called(
    folder: Path, script: str, shell: str = "bash", expected: int = 1, **env: str
) -> list[tuple[list[str], dict[str, str]]]:
    """(words, environment of layers) of every engine that ``script`` starts, by port."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script],
        env={"PATH": path, "CALLS": str(folder / "calls"), "EXPECTED": str(expected), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = []
    for file in sorted((folder / "calls").glob("*.words")):
        set_env = dict(line.split("=", 1) for line in file.with_suffix(".env").read_text().splitlines())
        found.append((file.read_text().splitlines(), set_env))
        file.unlink()
    return sorted(found, key=lambda one: one[0][one[0].index("--port") + 1])


def group_of(made: Launch, row: dict[str, Any]) -> Group:
    return next(group for group in made.groups if group.row.template_id == row["template_id"])


def accepted(made: Launch, group: Group, rank: int, starts: list[tuple[list[str], dict[str, str]]]) -> None:
    """All engines of a node are there, with its rank, and the engine's rules refuse none of them."""
    assert len(starts) == len(group.servers)
    for words, env in starts:
        gpus = group.nodes[rank].gpu_count // len(group.servers)
        prefill = group.served.phase.value == "prefill"
        assert refusals(words, env, SMALL, made.facts.engine, gpus_on_node=gpus, is_prefill=prefill) == []
        if len(group.nodes) > 1:
            assert words[words.index("--node-rank") + 1] == str(rank)


@pytest.mark.parametrize("row", [SIDE_BY_SIDE, MIXED, INSIDE, OWNED], ids=["two servers", "mixed", "inside", "owned"])
def test_every_script_starts_what_the_engine_accepts(
    made: Launch, files: dict[str, str], calls: Path, row: dict
) -> None:
    group = group_of(made, row)
    for at in group.nodes:
        script = next(text for name, text in files.items() if f"{group.name}/node-{at.rank}.sh" in name)
        accepted(made, group, at.rank, called(calls, script, expected=len(group.servers), HEAD_IP="10.0.0.1"))


def test_a_name_is_never_run(calls: Path) -> None:
    """What a user names (a repository, a backend) reaches the engine as it is written, whatever the shell could make of it."""
    names = {"checkpoints": {MODEL: "$(touch pwned)/m"}, "attention_backend": "A;touch pwned"}
    made = launch(OWNED, **names)
    script = next(text for name, text in export_of(made, ["vllm"]).files.items() if name.endswith("node-0.sh"))
    ((words, _),) = called(calls, script)
    assert words[1] == "$(touch pwned)/m"
    assert "A;touch pwned" in words
    assert not Path("pwned").exists()


@pytest.mark.parametrize("row", [SIDE_BY_SIDE, MIXED, INSIDE], ids=["two servers", "mixed", "inside"])
def test_every_skypilot_task_runs_the_ranks_of_its_nodes(
    made: Launch, files: dict[str, str], calls: Path, row: dict
) -> None:
    group = group_of(made, row)
    text = next(text for name, text in files.items() if name.startswith("skypilot") and group.name in name)
    documents = list(yaml.safe_load_all(text))
    rank = 0
    for task in (document for document in documents if "run" in document):
        for index in range(task["num_nodes"]):
            env = {
                "SKYPILOT_NODE_RANK": str(index),
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
                "SKYPILOT_JOBGROUP_NAME": "g",
            }
            starts = called(calls, task["run"], expected=len(group.servers), **env)
            accepted(made, group, rank, starts)
            if len(documents) > 1:
                words = starts[0][0]
                assert words[words.index("--master-addr") + 1] == f"{documents[1]['name']}-0.g"
            rank += 1
    assert rank == len(group.nodes)
    if len(documents) > 1:
        assert documents[0] == {"name": group.name, "execution": "parallel"}


@pytest.mark.parametrize("row", [SIDE_BY_SIDE, MIXED, INSIDE, OWNED], ids=["two servers", "mixed", "inside", "owned"])
def test_every_pod_runs_its_rank(made: Launch, files: dict[str, str], calls: Path, row: dict) -> None:
    group = group_of(made, row)
    text = next(text for name, text in files.items() if name.startswith("kubernetes") and group.name in name)
    rank = 0
    for document in yaml.safe_load_all(text):
        if document["kind"] != "LeaderWorkerSet":
            continue
        template = document["spec"]["leaderWorkerTemplate"]
        for index in range(template["size"]):
            pod = (
                template.get("leaderTemplate", template["workerTemplate"]) if index == 0 else template["workerTemplate"]
            )
            starts = []
            for container in pod["spec"]["containers"]:
                assert container["command"] == ["/bin/sh", "-c"]
                env = {"NODE_IP": "10.0.0.9", "GROUP_INDEX": "1", "LWS_WORKER_INDEX": str(index)}
                starts += called(calls, container["args"][0], "sh", **env)
                if len(group.nodes) > 1:
                    words = starts[0][0]
                    assert words[words.index("--master-addr") + 1] == f"{group.name}-1.{group.name}"
            accepted(made, group, rank, starts)
            rank += 1
    assert rank == len(group.nodes)


# ---- parse them ------------------------------------------------------------------------------------------------------


class _Response:
    def __init__(self, document: Any) -> None:
        self.data = json.dumps(document)


def test_kubernetes_reads_every_manifest_whole(files: dict[str, str]) -> None:
    """Its own client models keep every field: one they did not know would be lost."""
    client = pytest.importorskip("kubernetes.client")
    api = client.ApiClient()

    def whole(document: Any, model: str) -> bool:
        return api.sanitize_for_serialization(api.deserialize(_Response(document), model)) == document

    seen = 0
    for name, text in files.items():
        if not name.startswith("kubernetes/"):
            continue
        for document in yaml.safe_load_all(text):
            seen += 1
            assert whole(document["metadata"], "V1ObjectMeta")
            if document["kind"] == "Service":
                assert whole(document, "V1Service")
                continue
            spec = document["spec"]
            assert (document["apiVersion"], set(spec)) == (
                "leaderworkerset.x-k8s.io/v1",
                {"replicas", "startupPolicy", "leaderWorkerTemplate"},
            )
            template = spec["leaderWorkerTemplate"]
            assert set(template) <= {"size", "restartPolicy", "leaderTemplate", "workerTemplate"}
            assert all(whole(template[pod], "V1PodTemplateSpec") for pod in template if pod.endswith("Template"))
    assert seen == 9  # 4 groups with a service each, one of them in two sets


def test_a_set_has_at_most_two_pod_shapes_and_an_instance_as_few_sets_as_that_allows(files: dict[str, str]) -> None:
    text = next(text for name, text in files.items() if name.startswith("kubernetes/aws") and "decode" in name)
    sets = [d for d in yaml.safe_load_all(text) if d["kind"] == "LeaderWorkerSet"]
    # g6, g6, g5, g6e: a set of the first two, and one of a g5 leader and a g6e worker.
    assert [d["metadata"]["annotations"]["coral/node-configs"] for d in sets] == ["L4x1,L4x1", "A10Gx1,L40Sx1"]
    assert [(d["spec"]["replicas"], d["spec"]["leaderWorkerTemplate"]["size"]) for d in sets] == [(2, 2), (2, 2)]


def fewest_sets(types: list[str]) -> int:
    """By trying every way to cut the list."""
    best = [0, *[len(types)] * len(types)]
    for end in range(1, len(types) + 1):
        fits = [start for start in range(end) if len(set(types[start + 1 : end])) <= 1]
        best[end] = min(best[start] + 1 for start in fits)
    return best[-1]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
def test_sets_are_the_fewest(types: list[str]) -> None:
    nodes = tuple(GroupNode(i, t, t, 1, (i, i), 1.0, None) for i, t in enumerate(types))
    group = Group("g", None, None, nodes, (), 0)  # type: ignore[arg-type]
    found = sets_of(group)
    assert [rank for first, last in found for rank in range(first, last)] == list(range(len(types)))
    assert all(len(set(types[first + 1 : last])) <= 1 for first, last in found)
    assert len(found) == fewest_sets(types)


# ---- counts, refusals -----------------------------------------------------------------------------------------


def test_a_node_that_is_missing_from_a_file_is_found(made: Launch, files: dict[str, str]) -> None:
    refused = [r for r in export_of(made, ["vllm"]).refused if r.target == "vllm"]
    rows = files["commands/inventory.csv"].splitlines(keepends=True)
    check_counts(made, "vllm", files, refused)
    with pytest.raises(RuntimeError, match="does not hold the plan's nodes"):
        check_counts(made, "vllm", {**files, "commands/inventory.csv": "".join(rows[:-1])}, refused)
    name = next(n for n in files if n.startswith("kubernetes/aws"))
    fewer = {**files, name: files[name].replace("replicas: 2", "replicas: 1").replace("size: 1", "size: 2")}
    with pytest.raises(RuntimeError, match="kubernetes"):
        check_counts(made, "kubernetes", fewer, refused)


def test_what_is_not_launchable_is_listed_per_target_with_reason_and_remedy(files: dict[str, str]) -> None:
    rows = list(csv.DictReader(files["NOT_LAUNCHABLE.csv"].splitlines()))
    left_out = {target: {row["template_id"] for row in rows if row["target"] == target} for target in TARGETS}
    never = {SHARED_STAGE["template_id"], UNEQUAL["template_id"]}
    assert left_out == {"vllm": never, "kubernetes": never, "skypilot": never | {OWNED["template_id"]}}
    assert all(row["reason"] and row["remedy"] for row in rows)


def test_changes_keep_what_both_plans_launch(files: dict[str, str]) -> None:
    before, after = launch(MIXED, SIDE_BY_SIDE), launch(MIXED | {"instances": 3}, INSIDE)
    changes = changes_between(before, after)
    counts = {kind: [c.group.row.template_id for c in changes if c.action == kind] for kind in ("keep", "add", "drain")}
    assert counts == {
        "keep": [MIXED["template_id"]] * 2,
        "add": [MIXED["template_id"]] + [INSIDE["template_id"]] * 3,
        "drain": [SIDE_BY_SIDE["template_id"]],
    }
    assert [c.action for c in changes] == sorted((c.action for c in changes), key=["keep", "add", "drain"].index)
    assert "drain" in files["CHANGES.csv"]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(st.sampled_from(range(len(ROWS))), st.integers(1, 4)),
        min_size=1,
        max_size=4,
        unique_by=lambda r: r[0],
    )
)
def test_every_export_holds_the_nodes_of_its_plan(chosen: list[tuple[int, int]]) -> None:
    made = launch(*(ROWS[index] | {"instances": count} for index, count in chosen))
    for target in TARGETS:
        export_of(made, [target])  # raises where a count is off
    assert sum(nodes_of(made.groups).values()) == sum(
        count * sum(len(stage["nodes"]) for stage in ROWS[index]["stages"]) for index, count in chosen
    )


def test_a_model_of_which_one_side_is_missing_is_pointed_out() -> None:
    (note,) = export_of(launch(SIDE_BY_SIDE, UNEQUAL), ["vllm"]).notes
    assert note == f"{MODEL} in aws/us-east-2 lacks its decode instances: nothing is served there"


def test_what_the_plan_warns_of_and_a_launch_meets_is_said_again() -> None:
    alone = instance("decode", [(0, 11, [node("L40Sx4", tp=4)])], "A")
    made = launch(SIDE_BY_SIDE, alone)
    codes = ("not_launchable", "network_full", "mixed_dates")
    warned = made.plan.model_copy(
        update={"warnings": tuple(PlanWarning(code=code, text=f"of {code}") for code in codes)}
    )
    assert export_of(replace(made, plan=warned), ["vllm"]).notes == ("of not_launchable", "of network_full")


def test_gpus_of_several_types_on_two_sides_are_pointed_out() -> None:
    assert "attention backend" in export_of(launch(SIDE_BY_SIDE, MIXED), ["vllm"]).notes[0]
    assert export_of(launch(SIDE_BY_SIDE, MIXED, attention_backend="TRITON_ATTN"), ["vllm"]).notes == ()
    alone = instance("decode", [(0, 11, [node("L40Sx4", tp=4)])], "A")
    assert export_of(launch(SIDE_BY_SIDE, alone), ["vllm"]).notes == ()
