"""``benchmarks/h200_layers.py`` dry: on a made-up torch whose kernels take known times, through to fitted factors."""

from __future__ import annotations

import runpy
import sys
from contextlib import contextmanager, nullcontext
from math import prod
from pathlib import Path
from types import SimpleNamespace as Space

import pytest

from flows.profile_check import fit

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "h200_layers.py"
# The made-up GPU: FLOP and bytes per ms, ms per launch.
FLOP, BYTES, LAUNCH = 989e9 * 0.7, 4.8e9 * 0.8, 0.004


class Tensor:
    """A shape in 16 bits; element-wise work on it moves its bytes."""

    def __init__(self, clock: list[float], *shape: int) -> None:
        self.clock, self.shape = clock, shape

    @property
    def size(self) -> int:
        return 2 * prod(self.shape)

    def __add__(self, _: Tensor) -> Tensor:
        self.clock[0] += 3 * self.size / BYTES
        return self

    def __mul__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            self.clock[0] += 3 * self.size / BYTES
        return self

    def __getitem__(self, place: tuple[slice, slice]) -> Tensor:
        width = len(range(*place[1].indices(self.shape[1])))
        return Tensor(self.clock, self.shape[0], width)


class Event:
    """Reads the clock of the device."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.at = clock, 0.0

    def record(self) -> None:
        self.at = self.clock[0]

    def synchronize(self) -> None:
        assert self.at <= self.clock[0]

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


class Graph:
    """Takes as long as what was captured."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.ms = clock, 0.0

    def replay(self) -> None:
        self.clock[0] += self.ms


def made_up_torch() -> Space:
    """The parts of torch that the script uses, on a clock that kernels move on."""
    clock = [0.0]

    @contextmanager
    def graph(held: Graph):
        begin = clock[0]
        yield
        held.ms = clock[0] - begin

    def linear(given: Tensor, weight: Tensor) -> None:
        (n, k), (m, _) = given.shape, weight.shape
        clock[0] += max(2 * n * k * m / FLOP, (weight.size + 2 * n * (k + m)) / BYTES) + LAUNCH

    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, enable_gqa: bool) -> None:
        batch, heads, queries, width = query.shape
        assert enable_gqa is (heads != key.shape[1])
        flop = 4 * batch * heads * width * queries * key.shape[2] / (2 if is_causal else 1)
        clock[0] += max(flop / FLOP, (key.size + value.size) / BYTES) + LAUNCH

    def rms_norm(state: Tensor, shape: tuple[int, ...], weight: Tensor) -> None:
        assert shape == weight.shape == state.shape[1:]
        clock[0] += 2 * state.size / BYTES

    cuda = Space(
        is_available=lambda: True, get_device_name=lambda: "made-up", synchronize=lambda: None, empty_cache=lambda: None,
        CUDAGraph=lambda: Graph(clock), graph=graph, Event=lambda enable_timing: Event(clock),
    )  # fmt: skip
    functional = Space(linear=linear, scaled_dot_product_attention=attend, rms_norm=rms_norm, silu=lambda x: x)

    def filled(*shape: int, **_: object) -> Tensor:
        return Tensor(clock, *((shape[0],) if isinstance(shape[0], int) and len(shape) == 1 else shape))

    return Space(
        cuda=cuda, nn=Space(functional=functional), randn=filled, ones=filled, bfloat16="bf16", no_grad=nullcontext,
        __version__="0",
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("--quick",), ()])
def test_what_the_script_writes_is_fitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    out = tmp_path / "layers.csv"
    monkeypatch.setitem(sys.modules, "torch", made_up_torch())
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--system", "H200-SXM", "--out", str(out), *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stopped.value.code == 0
    rows = out.read_text(encoding="utf-8").splitlines()[1:]
    assert len(rows) == 2 * 4 * ((3 + 5) if arguments else (9 + 15))
    found = fit("H200-SXM", str(out))
    eff = found.efficiency
    # The made-up kernels are rooflines without loss, of which these are the shares of peak.
    assert eff.mfu_gemm == pytest.approx(0.7, rel=0.03)
    assert eff.mbu_gemm == pytest.approx(0.8, rel=0.03)
    assert eff.mbu_attn == pytest.approx(0.8, rel=0.05)
    assert eff.all_reduce == {}  # not timed on one GPU
    assert set(eff.provenance.values()) == {"fitted"}
    assert found.fitted["decode"] < 0.03
    assert found.held_out_how.startswith("Qwen/Qwen3-32B, Qwen/Qwen3-8B, each left out")
