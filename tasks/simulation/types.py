"""What the simulator reads and returns. Times in seconds from the start, rates per second, sizes in tokens or bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.errors import CoralError
from catalogs.types import Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SimulationInputError(CoralError):
    """Requests or instances that cannot be simulated as given."""


class RequestStatus(IntEnum):
    """How a request left. Everything but ``DONE`` misses its SLO."""

    DONE = 0
    NO_PREFILL_INSTANCE = 1
    NO_DECODE_INSTANCE = 2
    TOO_LONG = 3


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival: arrays [n]; ``model[i]`` indexes ``models``. Every request asks for >= 1 output token."""

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    model: Ints
    models: tuple[str, ...]

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        if not (len(self.input_tokens) == len(self.output_tokens) == len(self.model) == n):
            raise SimulationInputError("requests: arrays differ in length", remedy="give one entry per request in each")
        if n == 0:
            return
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise SimulationInputError("requests: arrivals are not finite and sorted", remedy="sort by arrival_s")
        if self.input_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise SimulationInputError("requests: a token count below 1", remedy="drop requests without tokens")
        if self.model.min() < 0 or self.model.max() >= len(self.models):
            raise SimulationInputError("requests: a model index outside `models`", remedy="index the list of models")

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True)
class StepTable:
    """Time of one pass on one engine (one replica of a node; one inner stage where it has several).

    ``time_s[i, j]`` holds at ``tokens[i]`` tokens in the pass (decode: sequences) and ``context[j]`` mean keys attended
    per token. Between knots bilinear; below the first token knot constant; else the outer segments continue.
    """

    tokens: Floats
    context: Floats
    time_s: Floats

    def __post_init__(self) -> None:
        shape = (len(self.tokens), len(self.context))
        if self.time_s.shape != shape or min(shape) < 1:
            raise SimulationInputError(
                f"step table: times of shape {self.time_s.shape} for knots {shape}", remedy="match them"
            )
        if (np.diff(self.tokens) <= 0).any() or (np.diff(self.context) <= 0).any():
            raise SimulationInputError("step table: knots do not ascend", remedy="sort them and drop duplicates")
        if not (np.isfinite(self.time_s).all() and (self.time_s > 0).all()):
            raise SimulationInputError(
                "step table: a time is not positive", remedy="leave infeasible sizes out of the knots"
            )

    @classmethod
    def from_function(
        cls, step_s: Callable[[float, float], float], tokens: Sequence[float], context: Sequence[float]
    ) -> StepTable:
        """Tabulates ``step_s(tokens, mean context)`` at the knots."""
        times = np.array([[step_s(n, c) for c in context] for n in tokens], dtype=np.float64)
        return cls(np.array(tokens, dtype=np.float64), np.array(context, dtype=np.float64), times)

    @classmethod
    def constant(cls, seconds: float) -> StepTable:
        """Every pass takes ``seconds``."""
        return cls(np.array([1.0]), np.array([0.0]), np.array([[seconds]]))


@dataclass(frozen=True, slots=True)
class SimNode:
    """One node of a stage: ``replicas`` engines alike, each of ``inner_stages`` pipeline stages inside the node.

    ``step`` is the pass time of one inner stage of one replica. ``batch`` is per replica: tokens of a prefill pass,
    sequences of a decode micro-batch. ``kv_capacity_tokens`` per replica (decode only). ``share`` is the node's part of
    the stage's work. A pass's results reach the next stage after ``hop_latency_s`` + activations over the replica's part of
    ``network_bytes_per_s``; from the last stage only token ids go back.
    """

    node_config: str
    share: float
    step: StepTable
    batch: int
    network_bytes_per_s: float
    kv_capacity_tokens: float = float("inf")
    replicas: int = 1
    inner_stages: int = 1
    hop_latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimStage:
    """``layers`` consecutive layers on ``nodes``, data-parallel replicas of the stage."""

    layers: int
    nodes: tuple[SimNode, ...]


@dataclass(frozen=True, slots=True)
class SimInstance:
    """One running copy of a template. The router sends it work in [active_from_s, active_until_s); then it drains.

    ``rate_req_per_s`` is the weight in the router. KV of a token: ``kv_bytes_per_token_layer`` in each layer; with
    sliding windows only the share ``kv_full_share`` of layers keeps every token, the rest ``kv_window`` tokens.
    ``kv_capacity_tokens`` of the nodes counts tokens kept in all layers. Of each prompt the share ``prefix_hit_rate`` is found
    in the prefix cache: prefill attends to these tokens and sends their KV on, but does not compute them.
    """

    instance_id: str
    model: str
    phase: Phase
    region: str
    rate_req_per_s: float
    stages: tuple[SimStage, ...]
    kv_bytes_per_token_layer: float = 0.0
    activation_bytes_per_token: float = 0.0
    kv_full_share: float = 1.0
    kv_window: int = 0
    prefix_hit_rate: float = 0.0
    active_from_s: float = 0.0
    active_until_s: float = float("inf")
    template_id: str = ""

    def __post_init__(self) -> None:
        where = f"instance {self.instance_id}"
        if self.phase not in (Phase.PREFILL, Phase.DECODE):
            raise SimulationInputError(f"{where}: phase {self.phase} is not simulated", remedy="use prefill or decode")
        if not self.stages or any(not stage.nodes for stage in self.stages):
            raise SimulationInputError(f"{where}: a stage without nodes", remedy="give each stage at least one node")
        if not self.rate_req_per_s > 0:
            raise SimulationInputError(
                f"{where}: rate {self.rate_req_per_s}", remedy="leave instances without rate out"
            )
        for node in (node for stage in self.stages for node in stage.nodes):
            if not (
                node.share > 0 and node.batch >= 1 and node.network_bytes_per_s > 0 and node.kv_capacity_tokens > 0
            ):
                raise SimulationInputError(
                    f"{where}: node {node.node_config} has no share, batch, network or KV capacity",
                    remedy="leave nodes that do no work out of the stage",
                )


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What one node did. ``busy_s`` sums over its replicas; ``utilization`` = busy / (replicas * alive).

    ``mean_requests`` is the time-average number of requests at the node (waiting or in a pass).
    """

    instance: int
    stage: int
    node: int
    node_config: str
    busy_s: float
    alive_s: float
    utilization: float
    tokens: int
    requests: int
    mean_requests: float


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """What one instance did while alive, i.e. from its start until it is drained or the run ends.

    ``mean_waiting`` and ``mean_in_service`` are time averages counted event by event, not derived from the requests' times.
    """

    instance: int
    requests: int
    tokens: int
    alive_s: float
    mean_waiting: float
    mean_in_service: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class SimResult:
    """Times per request [n] (NaN = not reached) in the order of ``requests``, and use per node and instance.

    prefill_start_s: first pass that holds some of its prompt; first_token_s: end of prefill, where the first token is made
    (behind the usual proxies the client gets it through the decode instance, see ``ttft_s``); kv_ready_s: its KV has reached
    the decode instance; decode_start_s: joins a micro-batch; finish_s: last token. ``prefill_instance`` and
    ``decode_instance`` index ``instances`` (-1 = none).
    """

    requests: Requests
    instances: tuple[SimInstance, ...]
    status: Ints
    prefill_instance: Ints
    decode_instance: Ints
    prefill_start_s: Floats
    first_token_s: Floats
    kv_ready_s: Floats
    decode_start_s: Floats
    finish_s: Floats
    preemptions: Ints
    node_use: tuple[NodeUse, ...] = field(repr=False)
    instance_use: tuple[InstanceUse, ...] = field(repr=False)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token as the client sees it: it comes through the decode instance, once the KV has arrived there.
        A request for one token ends with prefill. NaN where there was none."""
        reached = np.where(self.requests.output_tokens > 1, self.kv_ready_s, self.first_token_s)
        return reached - self.requests.arrival_s

    @property
    def prefill_s(self) -> Floats:
        """Time to the end of prefill, without the transfer of the KV; NaN where there was none."""
        return self.first_token_s - self.requests.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, from the arrival of the KV on: the wait for a slot is included, the transfer
        is in the time to first token. NaN for one token."""
        return self._per_step(self.finish_s - self.kv_ready_s)

    @property
    def decode_tpot_s(self) -> Floats:
        """Time per output token from joining a micro-batch on: what the decode template alone promises."""
        return self._per_step(self.finish_s - self.decode_start_s)

    def _per_step(self, seconds: Floats) -> Floats:
        steps = (self.requests.output_tokens - 1).astype(np.float64)
        return np.divide(seconds, steps, out=np.full(len(steps), np.nan), where=steps > 0)
