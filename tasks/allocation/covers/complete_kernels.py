"""Completing a model, compiled: what it lacks is bought where it costs least, of what is left.

Under N+1 what is added may be no larger than what is there already, or than an instance bought besides, the opener: the largest
is what may be lost. Where spot is capped, firm instances for the least firm part or more are bought beside any others.
"""

from __future__ import annotations

import numpy as np

from tasks.allocation.covers.recreate_types import Tables
from tasks.allocation.covers.state_kernels import (
    WHOLE,
    counted,
    fits,
    lack,
    largest_item,
    least_served,
    put_and_log,
    without_loss,
)
from tasks.jit import kernel

_ATTEMPTS = 8  # at completing a model: what it wants may not be left so often


@kernel
def _copies(share, width):  # type: ignore[no-untyped-def]
    """How many of an item are taken together: so many that they fill a cell."""
    return max(int(np.ceil(width / share - 1e-9)), 1)


@kernel
def _useful(items, layout, state, price, block, enough, firm):  # type: ignore[no-untyped-def]
    """Items of a block (the ``firm`` alone, or all) that fit and cost less than all larger ones, by falling share; of those that
    are ``enough`` alone the last."""
    useful, many, best = np.empty(layout.start[block + 1] - layout.start[block], dtype=np.int64), 0, np.inf
    for i in range(layout.start[block], layout.start[block + 1]):
        if price[i] < best and (items.firm[i] or not firm) and fits(items, state, i):
            best = price[i]
            if items.share[i] >= enough:
                many = 0  # this one does alone, for less
            useful[many] = i
            many += 1
    return useful[:many]


@kernel
def _fill(items, layout, state, price, block, firm, width, cost, share, source, taken):  # type: ignore[no-untyped-def]
    """cost[k] = cost found of k * ``width`` of share from items that fit, k = 0..cells; ``share``: how many exactly, ``source``
    and ``taken``: the state it came from and by what item. A cell keeps its cheapest, so that sums are not
    rounded at every item; supply only counts for one instance of each. ``firm``: of firm items alone."""
    cells = len(cost) - 1
    useful = _useful(items, layout, state, price, block, cells * width, firm)
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
def _empty_path(cells):  # type: ignore[no-untyped-def]
    """Room for a path: of every cell its cost, exact share, the cell it came from, by what item, and how many instances."""
    floats, ints = np.empty((2, cells + 1)), np.zeros((3, cells + 1), dtype=np.int64)
    return floats[0], floats[1], ints[0], ints[1], ints[2]


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
    """Let the cells of ``ruled`` be reached by those of ``path``: with the item ``first`` (-1: none) for ``more``, which lets
    ``gain`` cells count, and instances that the model then ``lacks`` for ``each``."""
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
    useful = _useful(items, layout, state, price, block, cells * width, False)
    path[0][:], path[4][:], ruled[0][:] = np.inf, 0, np.inf
    uncounted = without_loss(items, layout, state, block) - counted(items, layout, state, block)
    path[0][0], path[1][0], ruled[0][0] = 0.0, uncounted / width, 0.0
    if len(useful) == 0:
        return
    lacks, each = layout.replicas[block] - many, price[useful[-1]]
    largest = largest_item(layout, state, block)
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
def _empty_tables(blocks, cells):  # type: ignore[no-untyped-def]
    """Room for the tables of so many blocks."""
    floats, ints = np.empty((2, blocks, cells + 1)), np.zeros((3, blocks, cells + 1), dtype=np.int64)
    return Tables(floats[0], floats[1], ints[0], ints[1], ints[2])


@kernel
def _cells(more):  # type: ignore[no-untyped-def]
    """How many cells are so much, or just more; 0 where that is less than nothing."""
    return int(np.ceil(more - 1e-9)) if more > 1e-9 else 0


@kernel
def _fill_block(items, layout, state, price, block, own, width, path, tables, firm, least):  # type: ignore[no-untyped-def]
    """least[k] = cost found of k * ``width`` of share more that counts in a block, row ``own`` of ``tables`` and, where spot is
    capped, of ``firm``; their ``at``: the cells behind it."""
    if _is_ruled(layout, state, block):
        # Only openers and origins are kept: the path from there is sought again when it is taken.
        ruled = (tables.cost[own], tables.taken[own], tables.source[own])
        _fill_ruled(items, layout, state, price, block, width, path, ruled, 0)
    else:
        _fill(
            items,
            layout,
            state,
            price,
            block,
            False,
            width,
            tables.cost[own],
            tables.share[own],
            tables.source[own],
            tables.taken[own],
        )
    _at_least(tables.cost[own], least, tables.at[own])
    if layout.firm[block] > 0.0:
        _fill(
            items,
            layout,
            state,
            price,
            block,
            True,
            width,
            firm.cost[own],
            firm.share[own],
            firm.source[own],
            firm.taken[own],
        )
        _beside_firm(
            items, layout, state, block, width, firm.cost[own], firm.share[own], firm.at[own], tables.at[own], least
        )


@kernel
def _beside_firm(items, layout, state, block, width, cost, share, firm_at, at, least):  # type: ignore[no-untyped-def]
    """Let ``least``, the cost of cells of any items, be that of cells that count where spot is capped: as many firm ones as
    these need or more, at ``cost``, and of any items what then still lacks; ``firm_at`` and ``at`` likewise."""
    cells, part, counts = len(cost) - 1, layout.firm[block], counted(items, layout, state, block)
    is_firm = (state.firm[block] - part * counts) / width
    is_there = 0.0 if _is_ruled(layout, state, block) else (state.served[block] - counts) / width
    fewest = 1 if state.many[block] < layout.replicas[block] else 0
    least_firm = np.empty(cells + 1)
    _at_least(cost, least_firm, firm_at)
    for k in range(cells, 0, -1):  # from above, for what is read lies below
        best, first, then = np.inf, 0, 0
        for x in range(_cells(part * k - is_firm), k + 1):
            if least_firm[x] >= best:
                break
            if firm_at[x] == x or x == k:
                rest = max(_cells(k - is_there - share[firm_at[x]]), fewest)
                if least_firm[x] + least[rest] < best:
                    best, first, then = least_firm[x] + least[rest], firm_at[x], at[rest]
        least[k], firm_at[k], at[k] = best, first, then


@kernel
def complete(items, layout, state, price, m, allowed, cells):  # type: ignore[no-untyped-def]
    """Put what model ``m`` lacks, cheap at ``price`` per item, in ``allowed`` regions; whether it lacks nothing now.

    What it lacks is split into ``cells`` (without a jump: so many of them as cost less than lacking them); a block's cost of
    cells, the sum over the phases of what each lacks of them, and the best split among the regions follow one another. What
    does not fit as often as it is wanted is left out, and what is lacking then sought again.
    """
    first, phases = layout.first[m], layout.phases
    blocks = layout.first[m + 1] - first
    is_capped = layout.firm[first : first + blocks].any()
    tables, firm = _empty_tables(blocks, cells), _empty_tables(blocks if is_capped else 0, cells)
    least, path = np.empty(cells + 1), _empty_path(cells)
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
            serves = least_served(items, layout, state, block)
            region = np.zeros(cells + 1)
            for b in range(block, block + phases):
                _fill_block(items, layout, state, price, b, b - first, width, path, tables, firm, least)
                spare = (counted(items, layout, state, b) - serves) / width
                for k in range(1, cells + 1):
                    if k - spare > 1e-9:
                        region[k] += least[_cells(k - spare)]
            _join(joined, region, split[g])
        dear = layout.weight[m] * width
        to = cells if layout.jump > 0.0 else np.argmin(joined - dear * np.arange(cells + 1))
        if joined[to] == np.inf:
            return False
        if not _put_split(items, layout, state, price, first, split, to, width, tables, firm):
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
def _put_split(items, layout, state, price, first, split, to, width, tables, firm):  # type: ignore[no-untyped-def]
    """Put the instances behind cell ``to`` of ``split`` that fit; how many those are."""
    groups, cells = split.shape[0], split.shape[1] - 1
    phases, put = layout.phases, 0
    for g in range(groups - 1, -1, -1):
        if split[g, to] == 0:
            continue
        k, to = split[g, to] // (cells + 1), split[g, to] % (cells + 1)
        block = first + g * phases
        serves = least_served(items, layout, state, block)
        for own in range(block - first, block - first + phases):
            lacks = _cells(k - (counted(items, layout, state, first + own) - serves) / width)
            if lacks > 0:
                put += _put_block(items, layout, state, price, first + own, own, lacks, width, tables, firm)
    return put


@kernel
def _put_block(items, layout, state, price, block, own, lacks, width, tables, firm):  # type: ignore[no-untyped-def]
    """Put the instances behind so many cells of a block, row ``own`` of the tables, that fit; how many those are."""
    cell, put = tables.at[own, lacks], 0
    if cell > 0 and _is_ruled(layout, state, block):
        opener, origin = tables.taken[own, cell], tables.source[own, cell]
        put += _put_ruled(items, layout, state, price, block, width, tables.at.shape[1] - 1, opener, origin)
    else:
        put += _put_path(items, state, cell, width, tables.source[own], tables.taken[own])
    if layout.firm[block] > 0.0:
        put += _put_path(items, state, firm.at[own, lacks], width, firm.source[own], firm.taken[own])
    return put


@kernel
def _put_path(items, state, cell, width, source, taken):  # type: ignore[no-untyped-def]
    """Put the instances that lead to ``cell`` and fit; how many those are."""
    put = 0
    while cell > 0:
        i, cell = taken[cell], source[cell]
        for _ in range(_copies(items.share[i], width)):
            if not fits(items, state, i) or not put_and_log(items, state, i, 1):
                break
            put += 1
    return put


@kernel
def _put_ruled(items, layout, state, price, block, width, cells, opener, cell):  # type: ignore[no-untyped-def]
    """As :func:`_put_path` of a block under rules: ``opener`` (-1: none), what leads to ``cell``, and the replicas that lack."""
    path = _empty_path(cells)
    ruled = (np.empty(cells + 1), np.zeros(cells + 1, dtype=np.int64), np.zeros(cells + 1, dtype=np.int64))
    low = 0
    if layout.spare[block]:
        low = opener if opener >= 0 else largest_item(layout, state, block)
    _fill_ruled(items, layout, state, price, block, width, path, ruled, low)
    put = 0
    if opener >= 0 and fits(items, state, opener):
        put += put_and_log(items, state, opener, 1)
    if path[0][cell] < np.inf:
        put += _put_path(items, state, cell, width, path[2], path[3])
    while state.many[block] < layout.replicas[block]:
        i = _cheapest(items, layout, state, price, max(low, layout.start[block]), layout.start[block + 1])
        if i < 0 or not put_and_log(items, state, i, 1):
            break
        put += 1
    return put


@kernel
def _cheapest(items, layout, state, price, low, end):  # type: ignore[no-untyped-def]
    """The cheapest item of low..end-1 that fits; -1: none."""
    best, at = np.inf, -1
    for i in range(low, end):
        if price[i] < best and fits(items, state, i):
            best, at = price[i], i
    return at
