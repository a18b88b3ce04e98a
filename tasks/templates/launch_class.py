"""How far stock engines can launch a placement: classes A, B1, B2 and C."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.templates.types import LaunchClass

LAUNCH_CLASSES: tuple[str, ...] = tuple(launch.value for launch in LaunchClass)
"""Codes of :func:`launch_classes` index this tuple."""

LAUNCHABLE: frozenset[str] = frozenset({LaunchClass.A.value, LaunchClass.B1.value})
"""Classes that stock engines launch as planned.

B2 is not among them: nobody has shown it to start (ranks over unequal nodes), and its nodes differ in inner stages, so that
the plan gives them micro-batches of different sizes, while an engine passes one size through all ranks: planned rates
would not be reached within the SLO.
"""


def launch_classes(
    slot_stage: NDArray[np.integer],
    gpu_count: NDArray[np.integer],
    tp: NDArray[np.integer],
    replicas: NDArray[np.integer],
) -> NDArray[np.int8]:
    """Codes (into ``LAUNCH_CLASSES``) of placements whose nodes are the slots of [N, n_max] arrays, -1 in ``slot_stage``
    where there is none.

    A: one node. Else C if a stage holds several nodes or a node runs replicas of its stage (data parallelism inside a
    stage), or tensor-parallel sizes differ; B1 if all nodes have the same GPU count; B2 if they do not.
    """
    real = slot_stage >= 0
    n_nodes = real.sum(axis=1)
    n_stages = slot_stage.max(axis=1, initial=-1) + 1

    def differ(values: NDArray[np.integer]) -> NDArray[np.bool_]:
        low = np.where(real, values, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
        return np.where(real, values, 0).max(axis=1, initial=0) > low

    shared = (n_nodes > n_stages) | (np.where(real, replicas, 1) > 1).any(axis=1) | differ(tp)
    code = np.where(shared, 3, np.where(differ(gpu_count), 2, 1))
    return np.where(n_nodes == 1, 0, code).astype(np.int8)
