"""What a backfill and a too large library are, decided before anything is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flows_cases import SMALL_SCENARIO, write_scenario

from catalogs.errors import CoralError, UnknownNameError
from catalogs.scenario import load_scenario
from catalogs.scenario_extend import how_to_offer, load_extended
from flows.build_inputs import BuildInputs, resolve_inputs
from flows.build_limits import check_size, estimated_size
from flows.settings import BuildSettings, SilentProgress


def small(folder: Path, old: str = "", new: str = "") -> Path:
    path = write_scenario(folder)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new) if old else path.read_text())
    return path


def configs(path: Path, gpus: list[str]) -> set[str]:
    return set(load_extended(path, gpus).node_configs)


def test_a_gpu_is_added_where_the_regions_sell_it(tmp_path: Path) -> None:
    path = small(tmp_path)
    before = set(load_scenario(path).node_configs)
    assert configs(path, ["T4"]) - before == {"T4x1", "T4x8"}
    assert configs(path, ["H200"]) - before == {"H200-SXMx8"}, "as the SkyPilot catalog calls it"
    assert configs(path, ["t4", "H200-SXM", "T4"]) >= before | {"T4x1", "H200-SXMx8"}
    assert path.read_text() == SMALL_SCENARIO.format(ttft_ms=1200)


def test_it_passes_a_list_of_gpus_left_out_and_of_configurations(tmp_path: Path) -> None:
    included = "include_gpus: [L40S, L4, A10G]"
    path = small(tmp_path, included, "exclude_gpus: [T4, H100-SXM]")
    assert {"T4x1", "T4x8"} <= configs(path, ["T4"])
    assert not any(config.startswith("H100") for config in configs(path, ["T4"]))
    path = small(tmp_path, included, "node_configs: [L40Sx4, L4x1]")
    assert configs(path, ["T4"]) == {"L40Sx4", "L4x1", "T4x1", "T4x8"}


@pytest.mark.parametrize(
    ("filters", "steps"),
    [
        ("include_gpus: [L40S, L4, A10G]", "add T4, H200-SXM to offers.include_gpus"),
        ("exclude_gpus: [T4]", "take T4 out of offers.exclude_gpus"),
        ("node_configs: [L40Sx4, L4x1]", "add their configurations to offers.node_configs"),
        (
            "include_gpus: [L40S, L4, A10G]\n  exclude_gpus: [H200-SXM]",
            "take H200-SXM out of offers.exclude_gpus and add T4, H200-SXM to offers.include_gpus",
        ),
    ],
)
def test_what_to_change_to_plan_with_a_gpu_goes_by_what_leaves_it_out(tmp_path: Path, filters: str, steps: str) -> None:
    """`include_gpus: [T4]` in a scenario without that key would leave out all others."""
    path = small(tmp_path, "include_gpus: [L40S, L4, A10G]", filters)
    assert how_to_offer(path, ["T4", "H200", "H200-SXM"]) == steps


def test_what_cannot_be_added_is_told(tmp_path: Path) -> None:
    path = small(tmp_path)
    with pytest.raises(CoralError, match="small offers L40S already"):
        load_extended(path, ["T4", "L40S"])
    with pytest.raises(CoralError, match=r"sells MI300X at prices of 2025-05-01.*left out: .*H100-SXM.*T4"):
        load_extended(path, ["MI300X"])
    with pytest.raises(UnknownNameError, match="did you mean"):
        load_extended(path, ["H20O"])


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    return BuildSettings(write_scenario(tmp_path), tmp_path / "lake")


@pytest.fixture
def inputs(settings: BuildSettings) -> BuildInputs:
    return resolve_inputs(settings)


def test_a_small_library_passes_and_its_size_is_told(settings: BuildSettings, inputs: BuildInputs) -> None:
    told: list[str] = []

    class Listener(SilentProgress):
        def message(self, text: str) -> None:
            told.append(text)

    check_size(settings, inputs, Listener())
    combinations, _ = estimated_size(inputs)
    on_top = "profiles, checks and, the first time, the compilation of the kernels come on top"
    assert told == [f"small: about {combinations:,} combinations, under a second of one core; {on_top}"]


def test_the_estimate_is_about_the_paper_s_full_grid() -> None:
    """Counted by enumeration elsewhere: 1.15 million combinations of at most 6 nodes within 12 x the weights."""
    combinations, work_s = estimated_size(resolve_inputs(BuildSettings("paper-extended", Path("lake"))))
    assert combinations == pytest.approx(1.15e6, rel=0.1)
    assert 10 < work_s < 1_000


@pytest.mark.parametrize(
    ("scenario", "changes", "remedy"),
    [
        ("paper-extended", {"n_max": 8, "rho": 18.0}, r"lower library.n_max \(8\) or library.rho \(18\)"),
        ("core", {"solver": "ilp"}, "or use --solver exact"),
    ],
)
def test_one_that_would_explode_is_refused_unless_accepted(
    settings: BuildSettings, scenario: str, changes: dict[str, object], remedy: str
) -> None:
    inputs = replace(resolve_inputs(replace(settings, scenario=scenario)), **changes)  # type: ignore[arg-type]
    with pytest.raises(CoralError, match=rf"combinations, .* of one core.*{remedy}.*--yes") as caught:
        check_size(settings, inputs, SilentProgress())
    assert caught.value.exit_code == 2
    check_size(replace(settings, accept_large=True), inputs, SilentProgress())
