"""What ``coral simulate`` makes of its options, and how it says what came out."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flows_cases import write_scenario
from simulate_cases import publish_next_plan, publish_small_plan

from catalogs.errors import CoralError, InputError, LakeError, UnknownNameError
from flows.render_simulation import share, simulation_lines, validation_lines
from flows.settings import SilentProgress
from flows.simulate import run_simulation
from flows.simulate_inputs import SimulateInputs, SimulateSettings, _plan_notes, resolve
from flows.simulate_work import SimulateJob, document, is_kept, missing_runs, plan_instances_of, run_job, runs_of
from tasks.allocation.plan import PlanState

PHI, GPT = "microsoft/phi-4", "openai/gpt-oss-20b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("simulate")
    publish_small_plan(root)
    return root


def inputs_of(folder: Path, **options: Any) -> SimulateInputs:
    return resolve(SimulateSettings(folder / "scenario.yaml", folder / ".coral", **{"minutes": 1.0, **options}))


def trace_file(folder: Path, name: str, rows: list[tuple[Any, ...]], *columns: str) -> Path:
    path = folder / name
    lines = [
        ",".join(columns or ("timestamp_s", "input_tokens", "output_tokens")),
        *(",".join(map(str, r)) for r in rows),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_without_options_it_is_poisson_at_the_planned_rates(folder: Path) -> None:
    inputs = inputs_of(folder)
    assert [stream.name for stream in inputs.streams] == ["poisson"]
    made = {part.model: (part.rate_req_per_s, part.arrival_s) for part in inputs.streams[0].models}
    assert made == {PHI: (2.0, None), GPT: (2.0, None)}
    assert inputs.notes == (
        "every request has the stated mean prompt and answer: phi-4 1155 and 211; gpt-oss-20b 2048 and 28 tokens",
    )


def test_a_stated_prefix_cache_is_told(folder: Path) -> None:
    inputs = inputs_of(folder)
    cached = {
        name: replace(workload, prefix_hit_rate=0.25 if workload.model.model == PHI else 0.0)
        for name, workload in inputs.workloads.items()
    }
    assert _plan_notes(inputs.plan, cached) == [
        "of every prompt the stated part is in the prefix cache, whatever came before: phi-4 25 %"
    ]
    assert _plan_notes(inputs.plan, inputs.workloads) == []


def test_a_plan_that_does_not_run_says_so(folder: Path) -> None:
    inputs = inputs_of(folder)
    for state, words in (
        (PlanState.PROPOSED, "is a proposal: it waits for `coral plans approve 1`"),
        (PlanState.SUPERSEDED, "is superseded: another version is current"),
    ):
        (note,) = _plan_notes(inputs.plan.model_copy(update={"state": state}), inputs.workloads)
        assert note == f"version 1 of {inputs.plan.scenario_id} {words}"


def test_a_version_that_was_superseded_says_so_when_simulated(tmp_path: Path) -> None:
    publish_small_plan(tmp_path)
    publish_next_plan(tmp_path)
    assert "superseded" in inputs_of(tmp_path, plan_version=1).notes[-1]
    assert not any("superseded" in note for note in inputs_of(tmp_path, plan_version=2, from_plan_version=1).notes)


def test_a_lake_that_may_only_be_read_is_simulated_without_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SimulateSettings(publish_small_plan(tmp_path), tmp_path / ".coral", minutes=1.0)
    said: list[str] = []
    listening = SilentProgress()
    monkeypatch.setattr(listening, "message", said.append)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    unkept = run_simulation(settings, listening)
    assert said[-1] == f"{tmp_path / '.coral'} may only be read: what is simulated is not kept"
    assert not (tmp_path / ".coral" / "simulations").exists()
    with pytest.raises(CoralError, match="workers elsewhere leave their results there"):
        run_simulation(replace(settings, dask_address="tcp://127.0.0.1:1"))
    monkeypatch.undo()
    assert run_simulation(settings) == unkept
    (kept,) = (tmp_path / ".coral" / "simulations").iterdir()
    # What the lake has is not simulated again.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("flows.simulate_work.run_job", None)
    assert run_simulation(settings) == unkept
    assert [*(tmp_path / ".coral" / "simulations").iterdir()] == [kept]


def test_each_trace_is_a_stream_and_a_models_own_trace_is_in_all(folder: Path, tmp_path: Path) -> None:
    a = trace_file(tmp_path, "a.csv", [(0, 10, 2), (4, 20, 3)])
    b = trace_file(tmp_path, "b.csv", [(0, 30, 4), (4, 40, 5)])
    own = trace_file(tmp_path, "own.csv", [(0, 50, 6), (4, 60, 7)])
    inputs = inputs_of(folder, traces=(str(a), str(b), f"PHI-4={own}"), rates=("3", "gpt-oss-20b=0.5"))
    assert [stream.name for stream in inputs.streams] == ["a+own", "b+own"]
    first = {part.model: part for part in inputs.streams[0].models}
    assert first[PHI].input_tokens.tolist() == [50, 60]
    assert first[GPT].input_tokens.tolist() == [10, 20]
    assert (first[PHI].rate_req_per_s, first[GPT].rate_req_per_s) == (3.0, 0.5)


def test_poisson_with_a_trace_takes_its_lengths_only(folder: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"input_tokens": [7, 8], "output_tokens": [2, 3]}), lengths)
    with pytest.raises(InputError, match=r"lengths\.parquet, timestamp_s: has no arrival times.*--poisson"):
        inputs_of(folder, traces=(str(lengths),))
    part = inputs_of(folder, traces=(str(lengths),), is_poisson=True).streams[0].models[0]
    assert part.arrival_s is None
    assert part.input_tokens.tolist() == [7, 8]


def test_how_a_trace_is_brought_to_its_rate_is_told(folder: Path, tmp_path: Path) -> None:
    """5 requests in 8 s are 0.5 a second by their gaps: 4 times as fast for 2 a second. 2 minutes, the warm-up among them,
    take 240 requests: 48 times 5."""
    trace = trace_file(tmp_path, "t.csv", [(2.0 * i, 10, 2) for i in range(5)])
    inputs = inputs_of(folder, traces=(str(trace),), rates=("phi-4=2", "gpt-oss-20b=0.01"))
    assert inputs.notes == (
        "the clock of traces is scaled to the rates, bursts with it: t.csv 4 times as fast for phi-4, its 5 requests 48 "
        "times over; t.csv 0.02 times as fast for gpt-oss-20b",
    )


@pytest.mark.parametrize("rate", ["100000", "1e12", "1e300"])
def test_more_requests_than_memory_holds_are_refused_before_they_are_made(
    folder: Path, tmp_path: Path, rate: str
) -> None:
    trace = trace_file(tmp_path, "t.csv", [(0, 10, 2), (4, 20, 3)])
    for traces in ((), (str(trace),)):
        with pytest.raises(CoralError, match=r"requests\. To fix: give a lower --rate or fewer --minutes: 20,000,000"):
            inputs_of(folder, traces=traces, rates=(rate,))


def test_a_trace_that_names_models_is_divided_by_them(folder: Path, tmp_path: Path) -> None:
    columns = ("timestamp_s", "input_tokens", "output_tokens", "model")
    trace = trace_file(tmp_path, "t.csv", [(0, 10, 2, "phi-4"), (1, 20, 3, PHI), (2, 30, 4, "phi-4")], *columns)
    inputs = inputs_of(folder, traces=(str(trace),))
    parts = {part.model: part for part in inputs.streams[0].models}
    assert parts[PHI].input_tokens.tolist() == [10, 20, 30]
    assert parts[GPT].rate_req_per_s == 0.0
    assert any("no requests of gpt-oss-20b" in note for note in inputs.notes)


def test_a_model_of_a_trace_that_is_not_planned_is_named_with_file_row_and_column(folder: Path, tmp_path: Path) -> None:
    columns = ("timestamp_s", "input_tokens", "output_tokens", "model")
    trace = trace_file(tmp_path, "t.csv", [(0, 10, 2, "phi-4"), (1, 20, 3, "phi-5")], *columns)
    with pytest.raises(InputError) as raised:
        inputs_of(folder, traces=(str(trace),))
    finding = raised.value.findings[0]
    assert (finding.file, finding.row, finding.column, finding.value) == ("t.csv", 2, "model", "phi-5")
    assert "did you mean phi-4" in finding.remedy


def test_bad_rows_are_set_aside_and_the_first_is_named(folder: Path, tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "t.csv", [(0, 10, 2), (1, "x", 3), (2, 30, 4)])
    notes = inputs_of(folder, traces=(str(trace),)).notes
    assert any(note.startswith("1 row set aside, first: t.csv, row 2, input_tokens") for note in notes)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"plan_version": 7}, UnknownNameError, "unknown plan version '7'"),
        ({"traces": ("nowhere.csv",)}, InputError, "nowhere.csv: no such file"),
        ({"traces": ("phi-5=azure-conv",)}, UnknownNameError, "did you mean phi-4"),
        ({"rates": ("fast",)}, CoralError, "--rate fast: not a rate"),
        ({"rates": ("-1",)}, CoralError, "--rate -1: not a rate"),
        ({"rates": ("nan",)}, CoralError, "--rate nan: not a rate"),
        ({"rates": ("qwen=1",)}, UnknownNameError, "unknown model 'qwen'"),
        ({"minutes": 0.0}, CoralError, "--minutes"),
        ({"seeds": 0}, CoralError, "--seeds"),
        ({"switch_minutes": 1.0}, CoralError, "give --from-plan VERSION"),
        ({"from_plan_version": 1, "switch_minutes": 1.0}, CoralError, r"give --switch-at in \[0, --minutes\)"),
        ({"from_plan_version": 1}, CoralError, "plan 1 cannot change to itself"),
        ({"from_plan_version": 7}, UnknownNameError, "unknown plan version '7'"),
    ],
)
def test_bad_options_are_expected_outcomes(
    folder: Path, options: dict[str, Any], kind: type[CoralError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        inputs_of(folder, **options)


def test_all_requests_at_one_moment_are_no_stream(folder: Path, tmp_path: Path) -> None:
    trace = trace_file(tmp_path, "t.csv", [(3, 10, 2), (3, 20, 2)])
    with pytest.raises(InputError, match=r"t\.csv, timestamp_s: all requests come at one moment"):
        inputs_of(folder, traces=(str(trace),))


def test_a_plan_for_other_workloads_than_the_scenario_has_is_refused(tmp_path: Path) -> None:
    scenario = publish_small_plan(tmp_path)
    scenario.write_text(scenario.read_text().replace("ttft_ms: 1200", "ttft_ms: 1300"))
    with pytest.raises(CoralError, match=r"other workloads than the scenario has now: phi-4/prefill"):
        inputs_of(tmp_path)


def test_no_lake_and_no_plan_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake"):
        resolve(SimulateSettings(folder / "scenario.yaml", tmp_path / ".coral"))
    with pytest.raises(CoralError, match="run `coral plan --scenario core` first"):
        resolve(SimulateSettings("core", folder / ".coral"))


def test_results_are_named_by_what_decides_them(folder: Path, tmp_path: Path) -> None:
    one, again = inputs_of(folder), inputs_of(folder)
    name = one.run_id(one.streams[0], 0)
    assert name == again.run_id(again.streams[0], 0)
    others = [
        one.run_id(one.streams[0], 1),
        *(
            made.run_id(made.streams[0], 0)
            for made in (
                inputs_of(folder, rates=("3",)),
                inputs_of(folder, minutes=2.0),
                inputs_of(folder, counts_transfer=False),
                inputs_of(folder, traces=(str(trace_file(tmp_path, "t.csv", [(0, 10, 2), (4, 20, 3)])),)),
            )
        ),
    ]
    assert len({name, *others}) == 1 + len(others)


def test_a_run_is_kept_found_again_and_tells_the_same(folder: Path) -> None:
    inputs = inputs_of(folder)
    runs = runs_of(inputs, 2)
    assert len(missing_runs(folder / ".coral", runs)) == 2
    assert run_job(SimulateJob(folder / ".coral", inputs, tuple(runs))) == 2
    assert missing_runs(folder / ".coral", runs) == []
    assert run_job(SimulateJob(folder / ".coral", inputs, tuple(runs))) == 0
    first = document(folder / ".coral", inputs, runs)
    assert first["streams"][0]["seeds"] == 2
    assert is_kept(first)
    missed = copy.deepcopy(first)
    missed["streams"][0]["workloads"][0]["is_met"] = False
    assert not is_kept(missed)


def test_the_text_fits_and_marks_what_is_missed(folder: Path) -> None:
    inputs = inputs_of(folder)
    runs = runs_of(inputs, 1)
    run_job(SimulateJob(folder / ".coral", inputs, tuple(runs)))
    made = document(folder / ".coral", inputs, runs)
    lines = simulation_lines(made)
    assert max(len(line.text) for line in lines) <= 110
    assert lines[-1].text == "every workload keeps its SLO"
    made["streams"][0]["workloads"][1].update(is_met=False, attained=0.98999)
    made["streams"][0]["models"][0]["lost"] = {"too_long": 3}
    lines = simulation_lines(made)
    text = "\n".join(line.text for line in lines)
    assert "98.99 %" in text
    assert "3 requests were longer than any instance's KV memory" in text
    assert lines[-1].text == "SLO missed by phi-4/decode"


def test_without_requests_no_slo_is_said_to_be_kept(folder: Path) -> None:
    inputs = inputs_of(folder, rates=("1e-9",))
    runs = runs_of(inputs, 1)
    run_job(SimulateJob(folder / ".coral", inputs, tuple(runs)))
    assert simulation_lines(document(folder / ".coral", inputs, runs))[-1].text.startswith("no request came")
    inputs = inputs_of(folder, rates=("phi-4=1e-9",))
    runs = runs_of(inputs, 1)
    run_job(SimulateJob(folder / ".coral", inputs, tuple(runs)))
    last = simulation_lines(document(folder / ".coral", inputs, runs))[-1].text
    assert last == "every workload that got requests keeps its SLO"


def test_a_change_of_plans_drains_the_old_and_waits_for_the_new(tmp_path: Path) -> None:
    """Counted from 60 s on: asked for after a minute, at 120 s, up a minute later; what both plans have runs on."""
    publish_small_plan(tmp_path)
    publish_next_plan(tmp_path)
    inputs = inputs_of(tmp_path, from_plan_version=1, switch_minutes=1.0, startup_minutes=1.0, minutes=3.0)
    spans = {
        (i.model, i.phase.value, i.active_from_s, i.active_until_s): i.template_id for i in plan_instances_of(inputs)
    }
    forever = float("inf")
    assert {span: name for span, name in spans.items() if span[:2] == (PHI, "prefill")} == {
        (PHI, "prefill", 0.0, 180.0): inputs.change.before.instances[0].template_id,
        (PHI, "prefill", 180.0, forever): "other",
    }
    assert {span[2:] for span in spans if span[:2] != (PHI, "prefill")} == {(0.0, forever)}
    runs = runs_of(inputs, 1)
    assert run_job(SimulateJob(tmp_path / ".coral", inputs, tuple(runs))) == 1
    made = document(tmp_path / ".coral", inputs, runs)
    (stream,) = made["streams"]
    # From the switch to the end are two of three minutes, at 2 requests/s. Half the time one instance of 12 req/s, then two.
    assert {row["alias"]: row["requests"] for row in stream["change"]} == pytest.approx(
        {"phi-4": 240, "gpt-oss-20b": 240}, rel=0.2
    )
    assert {row["attained"] for row in stream["change"]} == {1.0}
    assert stream["workloads"][0]["rate_req_per_s"] == pytest.approx((2 * 12 + 24) / 3)
    text = "\n".join(line.text for line in simulation_lines(made))
    assert "plan 2 is asked for at minute 1, its new instances are up 1 minutes later" in text
    assert "during the change (minutes 1 to 3)" in text
    assert runs[0].result_id not in {run.result_id for run in runs_of(inputs_of(tmp_path, minutes=3.0), 1)}
    assert not any("are up at" in note for note in inputs.notes)
    late = inputs_of(tmp_path, from_plan_version=1, switch_minutes=1.0, startup_minutes=2.5, minutes=3.0)
    assert late.notes[-1] == (
        "new instances of plan 2 are up at minute 3.5, after the 3 simulated: give more --minutes to see it alone"
    )


def test_a_share_is_never_shown_as_all_when_it_is_not() -> None:
    assert [share(value) for value in (1.0, 0.999999, 0.0, None)] == ["100.00 %", "99.99 %", "0.00 %", "-"]


def test_validation_text_shows_errors_with_their_sign_and_what_is_open() -> None:
    row = {"set": "S", "case": "c", "what": "w", "unit": "ms", "measured": 100.0, "simulated": 90.0, "error_pct": -10.0}
    total = {"set": "S", "kind": "latency", "n": 1, "mean_abs_error_pct": 10.0, "mean_error_pct": -10.0,
             "largest_error_pct": -10.0}  # fmt: skip
    document = {"rows": [row], "summary": [total], "helix_simulator_vs_prototype_pct": 8.2, "unvalidated": ["splits"]}
    text = "\n".join(line.text for line in validation_lines(document))
    assert "-10.0 %" in text
    assert text.endswith("Not validated\n  - splits")


def test_poisson_draws_lengths_from_the_scenarios_own_trace(tmp_path: Path) -> None:
    trace_file(tmp_path, "mine.csv", [(0, 700, 90), (1, 1500, 30), (2, 1100, 60)])
    stated = "lengths: {input: 1155, output: 211}"
    text = write_scenario(tmp_path).read_text()
    assert stated in text
    publish_small_plan(tmp_path, text.replace(stated, "lengths: {file: mine.csv}"))
    parts = {part.model: part for part in inputs_of(tmp_path).streams[0].models}
    assert parts[PHI].input_tokens.tolist() == [700, 1500, 1100]
    assert parts[GPT].input_tokens.tolist() == [2048]


def test_a_catalog_trace_that_is_not_here_is_drawn_from_its_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORAL_SHARED_DATA", str(tmp_path / "nothing"))
    text = write_scenario(tmp_path).read_text()
    publish_small_plan(tmp_path, text.replace("{input: 1155, output: 211}", "{trace: azure-conv-2023}"))
    inputs = inputs_of(tmp_path)
    part = next(part for part in inputs.streams[0].models if part.model == PHI)
    assert part.input_tokens.mean() == pytest.approx(1154.7, rel=0.02)
    assert any("azure-conv-2023 are drawn from its moments" in note for note in inputs.notes)
