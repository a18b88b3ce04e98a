"""Compiled loops of ruin and recreate (:mod:`tasks.allocation.covers.recreate`): a plan loses some instances, the models that
lack them are completed from what is left, and the plan stays where that costs less, or hardly more.

A model's instances lie in blocks, one per region and phase (phases of a region side by side); it is served by the sum over
regions of the least of its phases. Shares are of the demand asked for; money in USD/h.
"""

from __future__ import annotations

import numpy as np

from tasks.jit import kernel

WHOLE = 1e-12  # a model that lacks less lacks nothing
_ATTEMPTS = 8  # at completing a model: what it wants may not be left so often
_REGIONS_TRIED = 0.3  # of the regions, where a model may be completed besides those it lost instances in
_COMPARED = 6  # items, of which one to make room for is chosen
_NOISE = 0.1
_MOST_DUAL = 1.2  # of the prices of scarcity, in the prices at which a model is completed


@kernel
def _put(items, state, i, many):  # type: ignore[no-untyped-def]
    state.x[i] += many
    state.many[items.block[i]] += many
    state.served[items.block[i]] += many * items.share[i]
    for j in range(items.node.shape[1]):
        if items.need[i, j] > 0:
            state.left[items.node[i, j]] -= many * items.need[i, j]


@kernel
def _put_and_log(items, state, i, many):  # type: ignore[no-untyped-def]
    """Whether they were put: not where the log is full."""
    at = state.log[0, 0] + 1
    if at == len(state.log):
        return False
    _put(items, state, i, many)
    state.log[0, 0] = at
    state.log[at, 0], state.log[at, 1] = i, many
    return True


@kernel
def _undo(items, state):  # type: ignore[no-untyped-def]
    for at in range(1, state.log[0, 0] + 1):
        _put(items, state, state.log[at, 0], -state.log[at, 1])


@kernel
def _fits(items, state, i):  # type: ignore[no-untyped-def]
    fits, j = state.x[i] < items.most[i], 0
    while fits and j < items.node.shape[1]:
        fits = items.need[i, j] == 0 or state.left[items.node[i, j]] >= items.need[i, j]
        j += 1
    return fits


@kernel
def _largest(layout, state, block):  # type: ignore[no-untyped-def]
    """The first item in use of a block, of which none in use is larger; where there is none the block's end."""
    i, end = layout.start[block], layout.start[block + 1]
    while i < end and state.x[i] == 0:
        i += 1
    return i


@kernel
def _without_loss(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a block serves, under N+1 what its largest instance leaves of it."""
    if not layout.spare[block]:
        return state.served[block]
    return state.served[block] - items.share[_largest(layout, state, block)] if state.many[block] > 1 else 0.0


@kernel
def _counted(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a block serves by the rules of its model."""
    return _without_loss(items, layout, state, block) if state.many[block] >= layout.replicas[block] else 0.0


@kernel
def _least_served(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a region serves: the least of its phases, from ``block`` on."""
    least = _counted(items, layout, state, block)
    for phase in range(1, layout.phases):
        least = min(least, _counted(items, layout, state, block + phase))
    return least


@kernel
def lack(items, layout, state, m):  # type: ignore[no-untyped-def]
    """Share of model ``m``'s demand that nothing serves; below 0 where it has to spare."""
    total = 0.0
    for block in range(layout.first[m], layout.first[m + 1], layout.phases):
        total += _least_served(items, layout, state, block)
    return 1.0 - total


@kernel
def penalty_of(items, layout, state, m):  # type: ignore[no-untyped-def]
    """What it costs that model ``m`` lacks something."""
    missing = lack(items, layout, state, m)
    return layout.weight[m] * (missing + layout.jump) if missing > WHOLE else 0.0


@kernel
def _copies(share, width):  # type: ignore[no-untyped-def]
    """How many of an item are taken together: so many that they fill a cell."""
    return max(int(np.ceil(width / share - 1e-9)), 1)


@kernel
def _useful(items, layout, state, price, block, enough):  # type: ignore[no-untyped-def]
    """Items of a block that fit and cost less than all larger ones, by falling share; of those that are ``enough`` alone the
    last."""
    useful, many, best = np.empty(layout.start[block + 1] - layout.start[block], dtype=np.int64), 0, np.inf
    for i in range(layout.start[block], layout.start[block + 1]):
        if price[i] < best and _fits(items, state, i):
            best = price[i]
            if items.share[i] >= enough:
                many = 0  # this one does alone, for less
            useful[many] = i
            many += 1
    return useful[:many]


@kernel
def _fill(items, layout, state, price, block, width, cost, share, source, taken):  # type: ignore[no-untyped-def]
    """cost[k] = cost found of k * ``width`` of share from items that fit, k = 0..cells; ``share``: how many exactly, ``source``
    and ``taken``: the state it came from and by what item. A cell keeps its cheapest, so that sums are not
    rounded at every item; supply only counts for one instance of each."""
    cells = len(cost) - 1
    useful = _useful(items, layout, state, price, block, cells * width)
    many = len(useful)
    costs, shares, single = np.empty(many), np.empty(many), 0
    for u in range(many):
        copies = _copies(items.share[useful[u]], width)
        costs[u], shares[u] = copies * price[useful[u]], copies * items.share[useful[u]] / width
        single += copies == 1
    cost[:] = np.inf
    cost[0], share[0] = 0.0, 0.0
    for k in range(cells):
        if cost[k] >= cost[cells]:
            continue
        for u in range(many - 1, -1, -1):
            value, reached = cost[k] + costs[u], share[k] + shares[u]
            to = int(min(reached + 1e-9, float(cells)))  # what serves far more than all is beyond any int
            if to > k and (value < cost[to] or (value == cost[to] and reached > share[to])):
                cost[to], share[to], source[to], taken[to] = value, reached, k, useful[u]
            if to == cells and u < single:
                break  # the larger ones cost more


@kernel
def _add_item(items, price, i, width, path):  # type: ignore[no-untyped-def]
    """Let the cells of ``path`` be reached with any number of an item besides."""
    cost, share, source, taken, number = path
    cells, copies = len(cost) - 1, _copies(items.share[i], width)
    more, each = copies * price[i], copies * items.share[i] / width
    for k in range(cells):
        if cost[k] >= cost[cells]:
            continue
        value, reached = cost[k] + more, share[k] + each
        to = int(min(reached + 1e-9, float(cells)))
        if to > k and (value < cost[to] or (value == cost[to] and reached > share[to])):
            cost[to], share[to], source[to], taken[to], number[to] = value, reached, k, i, number[k] + copies


@kernel
def _offer(path, first, more, gain, lacks, each, ruled):  # type: ignore[no-untyped-def]
    """Let the cells of ``ruled`` be reached by those of ``path``: with the item ``first`` for ``more`` (-1: none), which lets ``gain``
    cells count, and the instances that the model then ``lacks`` for ``each``."""
    cost, share, _, _, number = path
    least, opener, origin = ruled
    for k in range(len(cost)):
        if cost[k] == np.inf:
            continue
        to = int(min(share[k] + gain + 1e-9, float(len(cost) - 1)))
        short = lacks - number[k] - (first >= 0)
        value = cost[k] + more + (short * each if short > 0 else 0.0)
        if to > 0 and value < least[to]:
            least[to], opener[to], origin[to] = value, first, k


@kernel
def _fill_ruled(items, layout, state, price, block, width, path, ruled, upto):  # type: ignore[no-untyped-def]
    """As :func:`_fill` of a block under rules, into ``ruled``: least cost of cells, the item that opens them and the cell of
    ``path`` they came from. Under N+1 the others are no larger than the opener, which may be lost, or than what is there. Ends
    at item ``upto``, from the smallest on."""
    cells, spare, many = len(path[0]) - 1, layout.spare[block], state.many[block]
    useful = _useful(items, layout, state, price, block, cells * width)
    path[0][:], path[4][:], ruled[0][:] = np.inf, 0, np.inf
    uncounted = _without_loss(items, layout, state, block) - _counted(items, layout, state, block)
    path[0][0], path[1][0], ruled[0][0] = 0.0, uncounted / width, 0.0
    if len(useful) == 0:
        return
    lacks, each = layout.replicas[block] - many, price[useful[-1]]
    largest = _largest(layout, state, block)
    gain = items.share[largest] / width if many > 0 else 0.0
    is_open = spare and many == 0
    for u in range(len(useful) - 1, -1, -1):
        i = useful[u]
        if i < upto:
            return
        if spare and i < largest and not is_open:
            _offer(path, -1, 0.0, 0.0, lacks, each, ruled)
            is_open = True
        _add_item(items, price, i, width, path)
        if spare and i < largest:
            _offer(path, i, price[i], gain, lacks, each, ruled)
    if not is_open:
        _offer(path, -1, 0.0, 0.0, lacks, each, ruled)
    if not spare:
        for i in useful:
            _offer(path, i, price[i], items.share[i] / width, lacks, each, ruled)


@kernel
def _at_least(cost, least, at):  # type: ignore[no-untyped-def]
    """least[k] = min of cost[k] and of what gives more, at[k]: where."""
    for k in range(len(cost) - 1, -1, -1):
        is_least = k == len(cost) - 1 or cost[k] <= least[k + 1]
        least[k], at[k] = (cost[k], k) if is_least else (least[k + 1], at[k + 1])


@kernel
def _is_ruled(layout, state, block):  # type: ignore[no-untyped-def]
    """Whether what is added to a block counts by rules."""
    return layout.spare[block] or state.many[block] < layout.replicas[block]


@kernel
def complete(items, layout, state, price, m, allowed, cells):  # type: ignore[no-untyped-def]
    """Put what model ``m`` lacks, cheap at ``price`` per item, in ``allowed`` regions; whether it lacks nothing now.

    What it lacks is split into ``cells`` (without a jump: so many of them as cost less than lacking them); a block's cost of
    cells, the sum over the phases of what each lacks of them, and the best split among the regions follow one another. What
    does not fit as often as it is wanted is left out, and what is lacking then sought again.
    """
    first, phases = layout.first[m], layout.phases
    blocks = layout.first[m + 1] - first
    cost, share = np.empty((blocks, cells + 1)), np.empty((blocks, cells + 1))
    source, taken = np.zeros((blocks, cells + 1), dtype=np.int64), np.zeros((blocks, cells + 1), dtype=np.int64)
    least, at, number = np.empty(cells + 1), np.zeros((blocks, cells + 1), dtype=np.int64), np.zeros(cells + 1, np.int64)
    scratch = np.empty(cells + 1)
    for _ in range(_ATTEMPTS):
        missing = lack(items, layout, state, m)
        if missing <= WHOLE:
            return True
        width = missing / cells
        joined = np.full(cells + 1, np.inf)
        joined[0] = 0.0
        split = np.zeros((blocks // phases, cells + 1), dtype=np.int64)
        for g in range(blocks // phases):
            block = first + g * phases
            if not allowed[layout.region[block // phases]]:
                continue
            serves = _least_served(items, layout, state, block)
            region = np.zeros(cells + 1)
            for b in range(block, block + phases):
                own = b - first
                if _is_ruled(layout, state, b):
                    path = (scratch, share[own], source[own], taken[own], number)
                    # Its path is sought again when it is taken: until then its two arrays hold the opener and the origin.
                    ruled = (cost[own], np.zeros(cells + 1, np.int64), np.zeros(cells + 1, np.int64))
                    _fill_ruled(items, layout, state, price, b, width, path, ruled, 0)
                    taken[own], source[own] = ruled[1], ruled[2]
                else:
                    _fill(items, layout, state, price, b, width, cost[own], share[own], source[own], taken[own])
                _at_least(cost[own], least, at[own])
                spare = (_counted(items, layout, state, b) - serves) / width
                for k in range(1, cells + 1):
                    if k - spare > 1e-9:
                        region[k] += least[int(np.ceil(k - spare - 1e-9))]
            _join(joined, region, split[g])
        dear = layout.weight[m] * width
        to = cells if layout.jump > 0.0 else np.argmin(joined - dear * np.arange(cells + 1))
        if joined[to] == np.inf:
            return False
        if not _put_split(items, layout, state, price, first, split, to, width, at, source, taken):
            return False
    return lack(items, layout, state, m) <= WHOLE


@kernel
def _join(joined, region, split):  # type: ignore[no-untyped-def]
    """``joined`` with one more region; ``split``: its cells x (cells + 1) + those of the others, 0 where it has none."""
    cells = len(joined) - 1
    before, at, many, least = joined.copy(), np.empty(cells, dtype=np.int64), 0, np.inf
    for a in range(cells - 1, -1, -1):
        if before[a] < least:  # else more costs no more
            least, at[many] = before[a], a
            many += 1
    for k in range(1, cells + 1):
        value = region[k]
        if value >= joined[cells]:
            return
        if k < cells and region[k + 1] == value:
            continue  # the next one gives more for the same
        for j in range(many):
            a = at[j]
            to = min(a + k, cells)
            if before[a] + value < joined[to]:
                joined[to], split[to] = before[a] + value, k * (cells + 1) + a


@kernel
def _put_split(items, layout, state, price, first, split, to, width, at, source, taken):  # type: ignore[no-untyped-def]
    """Put the instances behind cell ``to`` of ``split`` that fit; how many those are."""
    groups, cells = split.shape[0], split.shape[1] - 1
    phases, put = layout.phases, 0
    for g in range(groups - 1, -1, -1):
        if split[g, to] == 0:
            continue
        k, to = split[g, to] // (cells + 1), split[g, to] % (cells + 1)
        block = first + g * phases
        serves = _least_served(items, layout, state, block)
        for own in range(block - first, block - first + phases):
            spare = (_counted(items, layout, state, first + own) - serves) / width
            cell = at[own, int(np.ceil(k - spare - 1e-9))] if k - spare > 1e-9 else 0
            if cell > 0 and _is_ruled(layout, state, first + own):
                put += _put_ruled(items, layout, state, price, first + own, width, cells, taken[own, cell], source[own, cell])
                continue
            put += _put_path(items, state, cell, width, source[own], taken[own])
    return put


@kernel
def _put_path(items, state, cell, width, source, taken):  # type: ignore[no-untyped-def]
    """Put the instances that lead to ``cell`` and fit; how many those are."""
    put = 0
    while cell > 0:
        i, cell = taken[cell], source[cell]
        for _ in range(_copies(items.share[i], width)):
            if not _fits(items, state, i) or not _put_and_log(items, state, i, 1):
                break
            put += 1
    return put


@kernel
def _put_ruled(items, layout, state, price, block, width, cells, opener, cell):  # type: ignore[no-untyped-def]
    """As :func:`_put_path` of a block under rules: ``opener`` (-1: none), what leads to ``cell``, and the replicas that lack."""
    ints, floats = np.zeros((5, cells + 1), dtype=np.int64), np.empty((3, cells + 1))
    low = 0
    if layout.spare[block]:
        low = opener if opener >= 0 else _largest(layout, state, block)
    path = (floats[0], floats[1], ints[0], ints[1], ints[2])
    _fill_ruled(items, layout, state, price, block, width, path, (floats[2], ints[3], ints[4]), low)
    put = 0
    if opener >= 0 and _fits(items, state, opener):
        put += _put_and_log(items, state, opener, 1)
    if path[0][cell] < np.inf:
        put += _put_path(items, state, cell, width, path[2], path[3])
    while state.many[block] < layout.replicas[block]:
        i = _cheapest(items, layout, state, price, max(low, layout.start[block]), layout.start[block + 1])
        if i < 0 or not _put_and_log(items, state, i, 1):
            break
        put += 1
    return put


@kernel
def _cheapest(items, layout, state, price, low, end):  # type: ignore[no-untyped-def]
    """The cheapest item of low..end-1 that fits; -1: none."""
    best, at = np.inf, -1
    for i in range(low, end):
        if price[i] < best and _fits(items, state, i):
            best, at = price[i], i
    return at


@kernel
def _count(items, state, block, i, many):  # type: ignore[no-untyped-def]
    """Count instances of an item among what serves, without its nodes."""
    state.x[i] += many
    state.many[block] += many
    state.served[block] += many * items.share[i]


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
            if is_needed or not _put_and_log(items, state, i, -1):
                break


@kernel
def _take_some(items, state, low, high, part):  # type: ignore[no-untyped-def]
    """Take items low..high-1 with chance ``part`` each, all instances of one; whether any was there."""
    found = False
    for i in range(low, high):
        if state.x[i] > 0:
            found = True
            if np.random.random() < part:
                _put_and_log(items, state, i, -state.x[i])
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
                if not _put_and_log(items, state, other, -1):
                    return False
    return _fits(items, state, i)


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
        if not _make_room(items, layout, state, i) or not _put_and_log(items, state, i, 1):
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
            _undo(items, state)
            continue
        now += _value(items, state, 0.0) + lacking
        for m in models:
            penalty[m] = penalty_of(items, layout, state, m)
        if now < best - 1e-9:
            best = now
            for m in mine:
                low, high = layout.start[layout.first[m]], layout.start[layout.first[m + 1]]
                best_x[low:high] = state.x[low:high]
