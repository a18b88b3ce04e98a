"""Ways to spread one model replica set over the GPUs of a node: tensor x pipeline x replicas."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.profiling.shapes import ModelShape


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """``replicas`` independent copies, each a pipeline of ``pp`` inner stages of ``tp`` GPUs. Ordered by preference
    among equals: fewer inner stages, then narrower groups."""

    pp: int
    tp: int
    replicas: int

    def inner_layers(self, layers: int) -> tuple[int, int, int]:
        """Layers of the (first, fullest, last) inner stage when a replica holds ``layers``.

        vLLM's own split: as even as it goes, the remainder to the stages before the last and from there towards the
        front, so the last inner stage never holds more than the others.
        """
        base, rest = divmod(layers, self.pp)
        first = base + (1 if rest == self.pp - 1 and rest else 0)
        return first, base + (1 if rest else 0), base


def all_layouts(gpu_count: int) -> tuple[Layout, ...]:
    """Every (tp, pp, replicas) with tp * pp * replicas == ``gpu_count``, in order of preference."""
    divisors = [d for d in range(1, gpu_count + 1) if gpu_count % d == 0]
    return tuple(
        sorted(
            Layout(pp, tp, gpu_count // (tp * pp)) for tp in divisors for pp in divisors if gpu_count % (tp * pp) == 0
        )
    )


def legal_layouts(shape: ModelShape, gpu_count: int) -> tuple[Layout, ...]:
    """The layouts an engine accepts for the model (see :meth:`ModelShape.tp_refusal`); a replica needs a layer per inner
    stage, which the caller checks per number of layers."""
    refused = {layout.tp for layout in all_layouts(gpu_count) if shape.tp_refusal(layout.tp)}
    return tuple(
        layout for layout in all_layouts(gpu_count) if layout.tp not in refused and layout.pp <= shape.spec.layers
    )
