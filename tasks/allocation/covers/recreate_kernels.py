"""Compiled loops of ruin and recreate (:mod:`tasks.allocation.covers.recreate`): a plan loses some instances, the models that
lack them are completed from what is left, and the plan stays where that costs less, or hardly more.
"""

from __future__ import annotations

import numpy as np

from tasks.allocation.covers.complete_kernels import complete
from tasks.allocation.covers.state_kernels import WHOLE, fits, lack, penalty_of, put_and_log, undo
from tasks.jit import kernel

_REGIONS_TRIED = 0.3  # of the regions, where a model may be completed besides those it lost instances in
_COMPARED = 6  # items, of which one to make room for is chosen
_NOISE = 0.1
_MOST_DUAL = 1.2  # of the prices of scarcity, in the prices at which a model is completed


@kernel
def _count(items, state, block, i, many):  # type: ignore[no-untyped-def]
    """Count instances of an item among what serves, without its nodes."""
    state.x[i] += many
    state.many[block] += many
    state.served[block] += many * items.share[i]
    if items.firm[i]:
        state.firm[block] += many * items.share[i]


@kernel
def trim(items, layout, state, m):  # type: ignore[no-untyped-def]
    """Take the instances of ``m`` that nothing needs, dearest first."""
    low, high = layout.start[layout.first[m]], layout.start[layout.first[m + 1]]
    used = low + np.flatnonzero(state.x[low:high])
    most = WHOLE + (max(lack(items, layout, state, m), 0.0) if layout.jump == 0.0 else 0.0)
    for i in used[np.argsort(-items.cost[used], kind="mergesort")]:
        while state.x[i] > 0:
            block = items.block[i]
            _count(items, state, block, i, -1)
            is_needed = lack(items, layout, state, m) > most
            _count(items, state, block, i, 1)
            if is_needed or not put_and_log(items, state, i, -1):
                break


@kernel
def _take_some(items, state, low, high, part):  # type: ignore[no-untyped-def]
    """Take items low..high-1 with chance ``part`` each, all instances of one; whether any was there."""
    found = False
    for i in range(low, high):
        if state.x[i] > 0:
            found = True
            if np.random.random() < part:
                put_and_log(items, state, i, -state.x[i])
    return found


@kernel
def _ruin_region(items, layout, state, mine, g):  # type: ignore[no-untyped-def]
    """Take some instances that one or two of the models ``mine`` have in region ``g``."""
    wanted, part = 1 + np.random.randint(2), 0.3 + 0.7 * np.random.random()
    for _ in range(4 * len(mine)):
        m = mine[np.random.randint(len(mine))]
        for block in range(layout.first[m], layout.first[m + 1], layout.phases):
            if layout.region[block // layout.phases] == g:
                low, high = layout.start[block], layout.start[block + layout.phases]
                wanted -= _take_some(items, state, low, high, part)
        if wanted <= 0:
            return


@kernel
def _make_room(items, layout, state, i):  # type: ignore[no-untyped-def]
    """Take instances that use the nodes of item ``i`` until it fits; whether it does."""
    if state.x[i] >= items.most[i]:
        return False
    for j in range(items.node.shape[1]):
        node, need = items.node[i, j], items.need[i, j]
        if need == 0:
            continue
        low, many = layout.users[node], layout.users[node + 1] - layout.users[node]
        first = np.random.randint(many)
        for k in range(many):
            other = layout.user[low + (first + k) % many]
            while other != i and state.x[other] > 0 and state.left[node] < need:
                if not put_and_log(items, state, other, -1):
                    return False
    return fits(items, state, i)


@kernel
def _suits(items, low, high):  # type: ignore[no-untyped-def]
    """One of the items low..high-1, more likely one that costs little per share."""
    best, at = np.inf, low
    for _ in range(_COMPARED):
        i = low + np.random.randint(high - low)
        value = (items.cost[i] + items.worth[i]) / min(items.share[i], 1.0) * (1 + np.random.random())
        if value < best:
            best, at = value, i
    return at


@kernel
def _ruin_for_one(items, layout, state, mine, penalty, allowed):  # type: ignore[no-untyped-def]
    """Put instances of a model, at times of one that lacks something, in a region in the place of others'."""
    m = mine[np.random.randint(len(mine))]
    if np.random.random() < 0.5:
        first = np.random.randint(len(mine))
        for k in range(len(mine)):
            if penalty[m] == 0.0:
                m = mine[(first + k) % len(mine)]
    if penalty[m] == 0.0:
        _take_some(items, state, layout.start[layout.first[m]], layout.start[layout.first[m + 1]], 0.5)
    regions = (layout.first[m + 1] - layout.first[m]) // layout.phases
    block = layout.first[m] + layout.phases * np.random.randint(regions)
    allowed[layout.region[block // layout.phases]] = True
    only = np.random.randint(2 * layout.phases)  # one phase, as often all of them
    for phase in range(layout.phases):
        if phase != only and only < layout.phases:
            continue
        i = _suits(items, layout.start[block + phase], layout.start[block + phase + 1])
        if not _make_room(items, layout, state, i) or not put_and_log(items, state, i, 1):
            return


@kernel
def _ruin(items, layout, state, mine, penalty, allowed, room):  # type: ignore[no-untyped-def]
    """Take some instances of the models ``mine`` (indices) out, with chance ``room`` to make room for one; sets where they may be
    completed ``allowed``."""
    for g in range(layout.regions):
        allowed[g] = np.random.random() < _REGIONS_TRIED
    if np.random.random() < room:
        _ruin_for_one(items, layout, state, mine, penalty, allowed)
    else:
        g = np.random.randint(layout.regions)
        allowed[g] = True
        _ruin_region(items, layout, state, mine, g)


@kernel
def _value(items, state, bias):  # type: ignore[no-untyped-def]
    """What the logged changes cost, their nodes' worth counted ``bias`` times."""
    total = 0.0
    for at in range(1, state.log[0, 0] + 1):
        i = state.log[at, 0]
        total += state.log[at, 1] * (items.cost[i] + bias * items.worth[i])
    return total


@kernel
def _touched(items, state, mine, penalty):  # type: ignore[no-untyped-def]
    """Models that lost instances, in random order; at times those that lack anything with them."""
    touched = np.zeros(len(penalty), dtype=np.bool_)
    for k in range(1, state.log[0, 0] + 1):
        touched[items.model[state.log[k, 0]]] = True
    if np.random.random() < 0.5:
        for m in mine:
            touched[m] |= penalty[m] > 0.0
    models = np.flatnonzero(touched)
    np.random.shuffle(models)
    return models


@kernel
def _set_prices(items, layout, price, m, allowed, dual, noise):  # type: ignore[no-untyped-def]
    """Prices at which model ``m`` is completed: cost, ``dual`` times what its nodes are worth, and some noise."""
    for block in range(layout.first[m], layout.first[m + 1]):
        if allowed[layout.region[block // layout.phases]]:
            for i in range(layout.start[block], layout.start[block + 1]):
                price[i] = (items.cost[i] + dual * items.worth[i]) * (1 + noise * np.random.random())


@kernel
def search(items, layout, state, mine, best_x, rounds, heat, bias, room, cells, seed):  # type: ignore[no-untyped-def]
    """``rounds`` of ruin and recreate of the models ``mine``, the only ones in ``state``, which becomes the last plan kept;
    ``best_x`` becomes the best one of those models.

    A plan that costs more is kept with chance exp(-excess / heat); cost counts what models lack and, ``bias`` times, what their
    nodes are worth. ``heat`` and ``bias``: at the beginning and the end; ``room``: see :func:`_ruin`.
    """
    np.random.seed(seed)
    price, penalty = items.cost.copy(), np.zeros(len(layout.first) - 1)
    allowed = np.ones(layout.regions, dtype=np.bool_)
    for m in mine:
        penalty[m] = penalty_of(items, layout, state, m)
    now, best = 0.0, 0.0
    for at in range(rounds):
        done = at / rounds
        temperature = heat[0] * (heat[1] / heat[0]) ** done
        state.log[0, 0] = 0
        _ruin(items, layout, state, mine, penalty, allowed, room)
        models = _touched(items, state, mine, penalty)
        dual, noise = _MOST_DUAL * np.random.random(), _NOISE * np.random.random()
        lacking = 0.0
        for m in models:
            _set_prices(items, layout, price, m, allowed, dual, noise)
            complete(items, layout, state, price, m, allowed, cells)
            trim(items, layout, state, m)
            lacking += penalty_of(items, layout, state, m) - penalty[m]
        value = _value(items, state, bias[0] + (bias[1] - bias[0]) * done) + lacking
        if value >= -temperature * np.log(np.random.random() + 1e-300):
            undo(items, state)
            continue
        now += _value(items, state, 0.0) + lacking
        for m in models:
            penalty[m] = penalty_of(items, layout, state, m)
        if now < best - 1e-9:
            best = now
            for m in mine:
                low, high = layout.start[layout.first[m]], layout.start[layout.first[m + 1]]
                best_x[low:high] = state.x[low:high]
