"""What the steps of the covers solver share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import ModelBlocks
from tasks.allocation.types import AllocationProblem, SolveLimits


@dataclass(frozen=True, slots=True)
class Task:
    """A problem and its columns; ``models`` of it, of which ``share`` of the demand is to be served; and when to stop."""

    problem: AllocationProblem
    columns: Columns
    models: Sequence[ModelBlocks]
    limits: SolveLimits
    clock: Clock
    share: float = 1.0

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each model's missing share counts."""
        return np.array([model.demand.weight for model in self.models])
