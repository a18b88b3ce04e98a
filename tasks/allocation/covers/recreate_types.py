"""What the loops of ruin and recreate work on; named tuples, which compiled code takes as they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Items(NamedTuple):
    """What may be bought, by block, in it by falling share: nodes [item, place] and how many of each it needs (0: none), the
    share of the demand an instance serves, its cost, what its nodes are worth besides, how many there may be, its block and
    model, and whether its nodes are ``firm`` (not on spot)."""

    node: Ints
    need: Ints
    share: Floats
    cost: Floats
    worth: Floats
    most: Ints
    block: Ints
    model: Ints
    firm: Bools


class Layout(NamedTuple):
    """Where things lie: ``first`` block of each model and one more, first item of each block and one more (``start``), number
    of ``phases``, the ``region`` of every run of blocks of the phases, the items that use a kind of node (``user``, from
    ``users`` of it on), what a whole model's lack costs (``weight``), and what lacking anything at all costs besides, in parts of
    that (``jump``; 0: models are served in part where that costs less); of every block whether its largest instance may be lost
    (``spare``), how many instances it has at least, or serves nothing (``replicas``), and what part of what it serves firm
    instances must be able to (``firm``; 0: spot is not capped)."""

    first: Ints
    start: Ints
    phases: int
    regions: int
    region: Ints
    users: Ints
    user: Ints
    weight: Floats
    jump: float
    spare: Bools
    replicas: Ints
    firm: Floats


class Tables(NamedTuple):
    """What serves a model's blocks, by [block, cell]: the ``cost`` found of so many cells or more, the ``share`` it is exactly,
    the cell it came from (``source``) and by what item (``taken``), and the cheapest cell that gives as much (``at``)."""

    cost: Floats
    share: Floats
    source: Ints
    taken: Ints
    at: Ints


class State(NamedTuple):
    """A plan: instances per item, nodes ``left``, share ``served`` by block, of it by ``firm`` instances, and how ``many``
    instances; ``log``: rows 1..``log[0, 0]`` are items and how many of them were put (taken: below 0) since that was 0."""

    x: Ints
    left: Ints
    served: Floats
    firm: Floats
    many: Ints
    log: Ints
