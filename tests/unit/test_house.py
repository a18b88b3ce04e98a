"""The house rules, read from the tree itself: who may import whom, what is packaged, and what may not be committed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = ("catalogs", "tasks", "warehouse", "flows", "dashboards")
ALLOWED = {
    "catalogs": set(),
    "tasks": {"catalogs"},
    "warehouse": {"catalogs", "tasks"},
    "flows": {"catalogs", "tasks", "warehouse"},
    "dashboards": {"warehouse"},
}
HOME_OF = {"prefect": "flows", "prefect_dask": "flows", "duckdb": "warehouse"}
MAX_LINES = 400
FILE_CALLS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "mkdir",
    "unlink",
    "rename",
    "glob",
    "iterdir",
}
FILE_MODULES = {"pathlib", "os", "shutil", "tempfile", "io", "glob", "fileinput", "sqlite3", "socket", "subprocess"}


def modules(house: str) -> list[Path]:
    return sorted((ROOT / house).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of every import, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ("." * node.level) + (node.module or ""), node.lineno


def tracked_files() -> list[Path]:
    """Files git would commit; everything on disk but the ignored where there is no git."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what is tracked is unknown")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def foreign_imports(house: str, path: Path) -> list[str]:
    """Imports of ``path`` that its house may not have."""
    bad = []
    for name, line in imported(path):
        top = name.split(".")[0]
        if name.startswith("."):
            bad.append(f"{path}:{line} relative import {name!r}")
        elif (top in HOUSES and top != house and top not in ALLOWED[house]) or HOME_OF.get(top, house) != house:
            bad.append(f"{path}:{line} {house} imports {name}")
    return bad


@pytest.mark.parametrize("house", HOUSES)
def test_dependency_rule(house: str) -> None:
    assert modules(house), f"{house} has no module: this test looks in the wrong place"
    assert [bad for path in modules(house) for bad in foreign_imports(house, path)] == []


@pytest.mark.parametrize(
    ("house", "source"),
    [
        ("catalogs", "from tasks.profiling import schema"),
        ("tasks", "def f():\n    import warehouse.lake"),
        ("tasks", "import prefect"),
        ("warehouse", "from flows import cli"),
        ("flows", "import duckdb"),
        ("dashboards", "from catalogs import ids"),
        ("tasks", "from . import types"),
    ],
)
def test_dependency_rule_catches(tmp_path: Path, house: str, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert len(foreign_imports(house, module)) == 1


def file_access(path: Path) -> list[str]:
    """Ways ``path`` could reach the file system, the network or another process."""
    bad = [f"{path}:{line} imports {name}" for name, line in imported(path) if name.split(".")[0] in FILE_MODULES]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in FILE_CALLS:
                bad.append(f"{path}:{node.lineno} calls {called}()")
    return bad


def test_tasks_touch_no_file() -> None:
    assert [bad for path in modules("tasks") for bad in file_access(path)] == []


@pytest.mark.parametrize(
    "source", ["import pathlib", "open('x')", "from os import path", "def f(p):\n    p.read_text()"]
)
def test_file_access_is_caught(tmp_path: Path, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert len(file_access(module)) == 1


def test_listed_packages_are_those_on_disk() -> None:
    on_disk = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for house in HOUSES
        for path in (ROOT / house).rglob("__init__.py")
    }
    listed = pyproject()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(on_disk)


def test_every_module_folder_is_a_package() -> None:
    folders = {path.parent for house in HOUSES for path in modules(house)}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_data_files_of_the_catalogs_are_shipped() -> None:
    patterns = pyproject()["tool"]["setuptools"]["package-data"]["catalogs"]
    suffixes = {pattern.rsplit("*", 1)[1] for pattern in patterns}
    data = [path for path in tracked_files() if path.is_relative_to(ROOT / "catalogs") and path.suffix != ".py"]
    assert [str(path) for path in data if path.suffix not in suffixes] == []


def test_modules_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for house in (*HOUSES, "tests", "benchmarks")
        for path in modules(house)
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_our_names_are_ours_from_a_hostile_folder(tmp_path: Path) -> None:
    """A user's own ``tasks.py`` next to the command must not be what we import (PYTHONSAFEPATH=1, as the Makefile sets)."""
    for house in HOUSES:
        (tmp_path / f"{house}.py").write_text("raise RuntimeError('the wrong module')\n")
    code = f"import {', '.join(HOUSES)}\nfor m in ({', '.join(HOUSES)}): print(m.__file__)"
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ROOT / house / "__init__.py") for house in HOUSES]


def test_our_names_belong_to_our_distribution() -> None:
    from importlib.metadata import distribution, packages_distributions

    owners = packages_distributions()
    top_level = (distribution("coral-planner").read_text("top_level.txt") or "").split()
    assert sorted(top_level) == sorted(HOUSES)
    assert {
        house: owners[house] for house in HOUSES if house in owners and set(owners[house]) != {"coral-planner"}
    } == {}


def test_script_is_declared_and_the_makefile_guards_the_path() -> None:
    assert pyproject()["project"]["scripts"] == {"coral": "flows.start:main"}
    assert "export PYTHONSAFEPATH := 1" in (ROOT / "Makefile").read_text()


# Spelled in parts, so that this file does not match itself.
ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?:" + "|".join(("home", "root", "work", "Users", "mnt")) + r")/\w")
REGISTRY = re.compile(
    "|".join(
        ("pypi" + r"\.org", "files" + r"\.pythonhosted", r"--(?:extra-)?" + "index-url", "regi" + "stry" + r"\.npm")
    )
)


def forbidden(text: str) -> list[str]:
    return [match.group() for pattern in (ABSOLUTE, REGISTRY) for match in pattern.finditer(text)]


def test_no_machine_path_and_no_registry_address_is_committed() -> None:
    found = {}
    for path in tracked_files():
        try:
            hits = forbidden(path.read_text())
        except UnicodeDecodeError:
            continue
        if hits:
            found[str(path.relative_to(ROOT))] = hits
    assert found == {}


@pytest.mark.parametrize("text", ["cd /" + "home/someone", "see (/" + "root/x)", "https://pypi" + ".org/simple"])
def test_forbidden_text_is_caught(text: str) -> None:
    assert forbidden(text)


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert sorted(names) == sorted(set(names))


def test_every_dependency_is_pinned() -> None:
    project = pyproject()["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = [re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", entry).group()).lower() for entry in wanted]
    assert [name for name in names if name not in pinned] == []
