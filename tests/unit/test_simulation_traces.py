"""Trace readers: each format, and each kind of bad row with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalogs.errors import CoralError, InputError, UnknownNameError
from catalogs.traces import read_trace, trace_path

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_azure_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2024-05-10 00:00:00.009930+00:00,10,2\n",
    )
    trace = read_trace(path)
    assert trace.input_tokens.tolist() == [374, 396, 10]
    assert trace.arrival_s is not None
    assert trace.arrival_s[:2] == pytest.approx([0.0, 4.314579])
    assert trace.rejected == ()


def test_burst_gpt_csv_rejects_failed_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
        ",GPT-4,1,1,2,API log\n"
        "130,GPT-4,many,1,2,API log\n"
        "131,GPT-4,1.5,1,2,API log\n"
        "140,GPT-4,7\n",
    )
    trace = read_trace(path)
    assert trace.input_tokens.tolist() == [472, 417]
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 113.0]
    assert [(f.row, f.column, f.value) for f in trace.rejected] == [
        (2, "response tokens", "0"),
        (4, "timestamp", ""),
        (5, "request tokens", "many"),
        (6, "request tokens", "1.5"),
        (7, "response tokens", ""),
    ]


def test_mooncake_json_lines_are_in_milliseconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "mooncake.jsonl",
        '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        "not json\n"
        '{"timestamp": 4500, "input_length": 7, "output_length": 1}\n',
    )
    trace = read_trace(path)
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 3.5]
    assert [finding.row for finding in trace.rejected] == [2]


def test_lengths_alone_have_no_times(tmp_path: Path) -> None:
    path = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"input_tokens": [10, 30], "output_tokens": [2, 4]}), path)
    trace = read_trace(path)
    assert trace.arrival_s is None
    lengths = trace.lengths(50)
    assert (lengths.input_mean, lengths.output_mean) == (20, 3)
    assert (lengths.input_sq_mean, lengths.output_sq_mean, lengths.cross_mean) == (500, 10, 70)
    # E[io]/E[o] + E[o^2]/(2 E[o]) = 70/3 + 10/6
    assert lengths.decode_context_mean == pytest.approx(25.0)
    assert lengths.input_at_percentile == 30  # the length from the median up that some request has


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "time,in,out\n1,2,3\n", "unknown columns time, in, out"),
        ("a.csv", "", "is empty.*timestamp_s,input_tokens,output_tokens"),
        ("a.csv", "\ntimestamp_s,input_tokens,output_tokens\n0,1,1\n", "begins with a blank line"),
        ("a.csv", "timestamp_ms,input_tokens,output_tokens\n0,1,1\n", "begin with timestamp_s,input_tokens,output_tok"),
        ("a.csv", "timestamp_s;input_tokens;output_tokens\n0;1;1\n", "by commas, not semicolons"),
        ("a.tsv", "timestamp_s\tinput_tokens\toutput_tokens\n0\t1\t1\n", "by commas, not tabs"),
        ("a.csv", "timestamp_s,input_tokens,output_tokens,Output_Tokens\n0,1,1,9\n", "column output_tokens 2 times"),
        ("a.csv", "timestamp_s,input_tokens,output_tokens,model,model\n0,1,1,a,b\n", "column model 2 times"),
        ("a.csv.gz", "timestamp_s,input_tokens,output_tokens\n0,1,1\n", "is packed.*unpack it"),
        (
            "a.json",
            '[{"timestamp": 0, "input_length": 1, "output_length": 1}]\n',
            "not a JSON object.*one object a line",
        ),
        ("a.jsonl", '{"timestamp": "x", "input_length": 1, "output_length": 1}\n', "give milliseconds from the start"),
        ("a.csv", "Timestamp,Request tokens,Response tokens\n", "no rows"),
        ("a.csv", "Timestamp,Request tokens,Response tokens\n1,0,0\n", "row 1, request tokens"),
    ],
)
def test_unusable_files_raise(tmp_path: Path, name: str, text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_trace(write(tmp_path, name, text))


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="is no regular file"):
        trace_path(tmp_path / "pipe.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "timestamp_s,input_tokens,output_tokens\n0,1,2\n\n4,x,6\n7,8,9\n\n"),
        (
            "a.jsonl",
            '{"timestamp": 0, "input_length": 1, "output_length": 2}\n\n[4]\n'
            '{"timestamp": 7000, "input_length": 8, "output_length": 9}\n\n',
        ),
    ],
)
def test_blank_lines_are_no_requests_that_were_set_aside(tmp_path: Path, name: str, text: str) -> None:
    trace = read_trace(write(tmp_path, name, text))
    assert trace.output_tokens.tolist() == [2, 9]
    assert [finding.row for finding in trace.rejected] == [3]


@pytest.mark.parametrize(
    ("name", "rows", "input_mean", "output_mean"),
    [
        ("azure_llm_2023_code", 8819, 2047.85, 27.88),
        ("azure_llm_2023_conv", 19366, 1154.70, 211.13),
        ("mooncake_conversation", 12031, 12035.06, 342.62),
    ],
)
def test_real_traces(name: str, rows: int, input_mean: float, output_mean: float) -> None:
    """Against the published statistics that come with the data."""
    path = SHARED / "traces" / f"{name}.parquet"
    if not path.exists():
        pytest.skip("the raw traces are not here (CORAL_SHARED_DATA)")
    trace = read_trace(path)
    assert len(trace.input_tokens) == rows
    assert trace.rejected == ()
    assert np.round([trace.input_tokens.mean(), trace.output_tokens.mean()], 2) == pytest.approx(
        [input_mean, output_mean]
    )


def test_own_form_may_name_models(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "own.csv",
        "timestamp_s,input_tokens,output_tokens,model\n3,10,1,b\n1,20,2,a\n2,30,3,\n0,40,4,b\n",
    )
    trace = read_trace(path)
    assert trace.models == (("b", 1), ("a", 2))
    assert [trace.models[i][0] for i in trace.model] == ["b", "a", "b"]
    assert trace.input_tokens.tolist() == [40, 20, 10]
    assert [(f.row, f.column) for f in trace.rejected] == [(3, "model")]


def test_burst_gpt_names_openai_models_which_are_left_alone(tmp_path: Path) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    assert read_trace(write(tmp_path, "b.csv", header + "5,ChatGPT,472,18,490,Conversation log\n")).models == ()


@pytest.mark.parametrize(("name", "content"), [("t.parquet", b"not parquet"), ("t.csv", b"\xff\xfe\x00timestamp")])
def test_an_unreadable_file_is_one_finding(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_trace(tmp_path / name)
    assert [(f.file, f.row) for f in raised.value.findings] == [(name, 0)]


def test_names_lead_to_the_collection_and_say_where_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORAL_SHARED_DATA", str(tmp_path))
    with pytest.raises(CoralError, match="CORAL_SHARED_DATA"):
        trace_path("azure-conv")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "azure_llm_2023_conv.parquet").touch()
    assert trace_path("azure-conv") == tmp_path / "traces" / "azure_llm_2023_conv.parquet"
    with pytest.raises(UnknownNameError, match="did you mean azure-code"):
        trace_path("azure-cod")
    with pytest.raises(InputError, match="no such file"):
        trace_path("missing.csv")
