"""The refusal of workers that would compute something else, and where tasks run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogs.errors import CoralError
from flows import runner

OURS = {"python": "3.11", "code": "aaaa", "coral-planner": "0.1.0", "numpy": "2.4.6"}


def test_workers_with_the_same_code_are_accepted() -> None:
    runner.refuse_mismatch(OURS, {"tcp://127.0.0.1:1": dict(OURS), "tcp://127.0.0.1:2": dict(OURS)})


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("code", "bbbb"),
        ("coral-planner", "0.0.9"),
        ("numpy", "2.3.0"),
        ("python", "3.12"),
        ("code", "shadowed: tasks by /x/tasks.py"),
    ],
)
def test_one_differing_worker_is_refused_and_named(name: str, theirs: str) -> None:
    workers = {"tcp://127.0.0.1:1": dict(OURS), "tcp://127.0.0.1:2": {**OURS, name: theirs}}
    with pytest.raises(CoralError) as caught:
        runner.refuse_mismatch(OURS, workers)
    text = str(caught.value)
    assert "1 of 2 Dask workers" in text
    assert f"tcp://127.0.0.1:2: {name} {theirs} (here {OURS[name]})" in text
    assert "tcp://127.0.0.1:1:" not in text
    assert caught.value.exit_code == 2
    assert "\n" not in text


def test_a_worker_that_does_not_say_is_refused() -> None:
    silent = {key: value for key, value in OURS.items() if key != "code"}
    with pytest.raises(CoralError, match=r"code missing \(here aaaa\)"):
        runner.refuse_mismatch(OURS, {"tcp://127.0.0.1:1": silent})


def test_a_scheduler_without_workers_is_refused() -> None:
    with pytest.raises(CoralError, match="has no workers"):
        runner.refuse_mismatch(OURS, {})


def test_workers_on_other_machines_need_a_reachable_prefect_api(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(CoralError, match="set PREFECT_API_URL"):
        runner.check_scheduler("tcp://10.1.2.3:8786", tmp_path)


def test_a_lake_named_from_here_is_looked_for_from_a_workers_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client whose worker runs in another working folder, as `dask worker` processes do."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake").mkdir()

    class Client:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, question: Callable[..., object], *arguments: str) -> dict[str, object]:
            if question is runner._threads:
                return {"tcp://127.0.0.1:1": 2}
            with contextlib.chdir(tmp_path / "elsewhere"):
                return {"tcp://127.0.0.1:1": question(*arguments)}

    monkeypatch.setattr("distributed.Client", Client)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoralError, match=r"1 of 1 Dask workers do not see the lake .*/lake: tcp://127.0.0.1:1"):
        runner.check_scheduler("tcp://127.0.0.1:8786", Path("lake"))  # an empty folder is none
    (tmp_path / "lake" / "lake.json").touch()
    assert runner.check_scheduler("tcp://127.0.0.1:8786", Path("lake")) == 2


def test_the_code_hash_changes_with_any_byte_of_code(tmp_path: Path) -> None:
    script = "from flows.runner import code_hash; print(code_hash(('house_a',)))"
    package = tmp_path / "house_a"
    package.mkdir()
    module = package / "__init__.py"

    def hash_of(source: str) -> str:
        module.write_text(source)
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        return subprocess.run(
            [sys.executable, "-P", "-c", path + script], check=True, capture_output=True, text=True
        ).stdout.strip()

    first = hash_of("x = 1\n")
    assert first == hash_of("x = 1\n")
    assert first != hash_of("x = 2\n")
    assert len(first) == 16


def test_a_module_in_the_way_shows_in_the_code_hash(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('shadowed')\n")
    script = "from flows.runner import code_hash; print(code_hash())"
    unsafe = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    # Without -P the working folder comes first: the hostile module is found, and told, without being run.
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=unsafe, check=True, capture_output=True, text=True
    ).stdout
    assert out.startswith("shadowed: tasks by ")


def test_no_prefect_or_dask_before_they_are_needed() -> None:
    script = (
        "import sys, flows.server, flows.runner, flows.settings\n"
        "print(sorted({'prefect', 'distributed', 'dask', 'numba', 'duckdb'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
