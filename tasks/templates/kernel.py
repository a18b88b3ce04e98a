"""Machine-code core of the exact placement: solves combinations one after the other without the GIL.

Letters: k node configuration, p a (stage count S >= 2, cycle) pair, L all layers, j layers of a stage (``least`` or more),
t the rate that is tested, g a group of nodes, ``cap(g, t)`` the most layers g can hold at rate >= t; place 0 first, 1 mid,
2 last, 3 the best of the three. Rates are int64 milli-tok/s.

In the search ``rate`` and ``most`` are flat: the combination's i-th type has its rates for a place and j layers at
``rate[row[i] + place * width + j]`` (width = L + 1) and the most layers with a rate at ``most[most_row[i] + place]``.
Groups are those of :class:`~tasks.templates.partitions.PartitionTables`.

All of it is in one file because numba's cache looks at the file of the outermost function only: a change to a helper
elsewhere would leave old machine code in use.
"""

from __future__ import annotations

import numpy as np

from tasks.jit import inlined, kernel

# The formatter would give each of twenty arguments a line of its own.
# fmt: off
FIRST, MID, LAST, BEST = 0, 1, 2, 3
# The bounds are float sums; this covers their rounding, so that a bound never cuts off an optimum.
_SAFETY = 1.0 + 1e-11


@inlined
def group_rate(rate, row, start, end, member, amount, at):  # type: ignore[no-untyped-def]
    """Summed rate of the group with entries start..end; ``at`` = place * (L + 1) + layers."""
    total = 0
    for e in range(start, end):
        total += amount[e] * rate[row[member[e]] + at]
    return total


@inlined
def group_cap(  # type: ignore[no-untyped-def]
    rate, most, row, most_row, start, end, member, amount, place, width, t, least, limit
):
    """Most layers j in least..limit at which all nodes of the group are feasible and their rates sum to >= t; 0 if none."""
    hi = limit
    for e in range(start, end):
        hi = min(hi, most[most_row[member[e]] + place])
    shift = place * width
    lo = hi
    if hi > 0 and group_rate(rate, row, start, end, member, amount, shift + hi) < t:
        lo = 0
        while hi - lo > 1:
            middle = (lo + hi) >> 1
            if group_rate(rate, row, start, end, member, amount, shift + middle) >= t:
                lo = middle
            else:
                hi = middle
    return lo if lo >= least else 0


@kernel
def choose_ends(first, mid, last, S, L, ends):  # type: ignore[no-untyped-def]
    """Pick the first and the last stage that let S groups hold the most layers; the total, or 0 if it is below L.

    ``first``, ``mid``, ``last`` are the caps of the groups in each place; ``ends`` receives the two indices. Every
    stage must hold a layer. The lowest indices win ties.
    """
    total_mid, zeros = 0, 0
    for s in range(S):
        total_mid += mid[s]
        if mid[s] == 0:
            zeros += 1
    best = L - 1
    for a in range(S):
        if first[a] == 0:
            continue
        for b in range(S):
            if b == a or last[b] == 0:
                continue
            if zeros - (mid[a] == 0) - (mid[b] == 0) > 0:
                continue
            total = total_mid - mid[a] - mid[b] + first[a] + last[b]
            if total > best:
                best = total
                ends[0], ends[1] = a, b
    return best if best >= L else 0


@kernel
def trim(rate, row, first_entry, member, amount, parts, q, width, S, L, least, ends, split):  # type: ignore[no-untyped-def]
    """Lower ``split`` (caps at a feasible rate) to sum to L, the slowest stage first; the rate of the slowest stage.

    For fixed places this is the max-min split: a stage slower than the optimum must give up layers in any better one.
    """
    now = np.empty(S, np.int64)
    total = 0
    for s in range(S):
        total += split[s]
    at = 0  # stages below S are measured first, then the one that was lowered
    while at < S or total > L:
        slow = at
        if at >= S:
            slow = -1
            for s in range(S):
                if split[s] > least and (slow < 0 or now[s] < now[slow]):
                    slow = s
            split[slow] -= 1
            total -= 1
        place = FIRST if slow == ends[0] else (LAST if slow == ends[1] else MID)
        g = parts[q, slow]
        now[slow] = group_rate(
            rate, row, first_entry[g], first_entry[g + 1], member, amount, place * width + split[slow]
        )
        at += 1
    return now.min()


@kernel
def place_partition(  # type: ignore[no-untyped-def]
    rate, most, row, most_row, first_entry, member, amount, parts, q, zero, width, S, L, least, t, caps, stamps, version,
    work, ends, split
):
    """Rate (>= t) of a max-min split of one partition, or 0 if it cannot reach t. Fills ``ends`` and ``split``.

    The places are those that hold the most layers at t; other places may reach more, so try again above the result.
    ``work`` [3, n_max] is scratch space; ``caps``, ``stamps``, ``version`` are those of :func:`search_pair`.
    """
    limit = L - (S - 1) * least
    for s in range(S):
        g = parts[q, s]
        if stamps[g - zero, FIRST] != version:
            stamps[g - zero, FIRST] = version
            for place in range(3):
                if place != MID or S > 2:
                    caps[g - zero, place] = group_cap(
                        rate, most, row, most_row, first_entry[g], first_entry[g + 1], member, amount, place, width,
                        t, least, limit
                    )
                else:
                    caps[g - zero, place] = 0
        for place in range(3):
            work[place, s] = caps[g - zero, place]
    if choose_ends(work[FIRST], work[MID], work[LAST], S, L, ends) == 0:
        return 0
    for s in range(S):
        place = FIRST if s == ends[0] else (LAST if s == ends[1] else MID)
        split[s] = work[place, s]
    return trim(rate, row, first_entry, member, amount, parts, q, width, S, L, least, ends, split)


@kernel
def search_pair(  # type: ignore[no-untyped-def]
    rate, most, row, most_row, first_entry, member, amount, parts, q_start, q_end, zero, width, S, L, least, t, caps,
    stamps, version, work, best_ends, best_split
):
    """Best partition of one combination for one (S, cycle) with a rate of at least ``t``.

    Returns (rate, partition, version): rate 0 if none reaches t. ``caps`` [groups, 4] cache the caps at the current t
    in each place, ``stamps`` tell of which ``version`` (BEST: its own; FIRST: of the three places). ``zero`` is the
    number of the pattern's first group; ``best_ends``, ``best_split`` receive the layout.
    """
    limit = L - (S - 1) * least
    found, found_part = 0, -1
    split, ends = np.zeros(best_split.shape[0], np.int64), np.zeros(2, np.int64)
    version += 1
    q = q_start
    while q < q_end:
        total = 0
        for s in range(S):
            g = parts[q, s]
            if stamps[g - zero, BEST] != version:
                stamps[g - zero, BEST] = version
                caps[g - zero, BEST] = group_cap(
                    rate, most, row, most_row, first_entry[g], first_entry[g + 1], member, amount, BEST, width, t,
                    least, limit
                )
            total += caps[g - zero, BEST]
        reached = 0
        if total >= L:
            reached = place_partition(
                rate, most, row, most_row, first_entry, member, amount, parts, q, zero, width, S, L, least, t, caps,
                stamps, version, work, ends, split
            )
        if reached == 0:
            q += 1
            continue
        found, found_part = reached, q
        best_ends[:] = ends
        best_split[:] = split
        t = reached + 1
        version += 1
    return found, found_part, version


@kernel
def upper_bounds(weight, types, nodes, d, pairs, bounds, slopes):  # type: ignore[no-untyped-def]
    """Relaxed rate per pair: min over slopes of the nodes' summed weights (see ``exact.bound_weights``)."""
    n_slopes = weight.shape[2]
    sums = np.zeros((pairs, n_slopes))
    for i in range(d):
        for p in range(pairs):
            for m in range(n_slopes):
                sums[p, m] += nodes[i] * weight[types[i], p, m]
    for p in range(pairs):
        bounds[p], slopes[p] = sums[p, 0], 0
        for m in range(1, n_slopes):
            if sums[p, m] < bounds[p]:
                bounds[p], slopes[p] = sums[p, m], m
        bounds[p] *= _SAFETY


@kernel
def passes_capped(rate, most, tail, shift, types, nodes, d, p, m, S, L, t):  # type: ignore[no-untyped-def]
    """Whether t survives the bound in which a node counts at most as one whole stage (see ``exact.bound_weights``)."""
    need = float(L - shift[p, m] * S)
    have = 0.0
    for i in range(d):
        k = types[i]
        lo, hi = 0, min(most[k, p, BEST], L - S + 1)
        if hi > 0 and rate[k, p, BEST, hi] < t:
            while hi - lo > 1:
                middle = (lo + hi) >> 1
                if rate[k, p, BEST, middle] >= t:
                    lo = middle
                else:
                    hi = middle
            hi = lo
        have += nodes[i] * max(float(hi - shift[p, m]), tail[k, p, m, hi + 1] / t, 0.0)
    return have * _SAFETY >= need


@kernel
def sort_types(counts, row, types, nodes):  # type: ignore[no-untyped-def]
    """Configurations of a combination by falling count, then index, into ``types`` and ``nodes``; how many there are."""
    d = 0
    for k in range(counts.shape[1]):
        if counts[row, k] > 0:
            at = d
            while at > 0 and nodes[at - 1] < counts[row, k]:
                types[at], nodes[at] = types[at - 1], nodes[at - 1]
                at -= 1
            types[at], nodes[at] = k, counts[row, k]
            d += 1
    return d


@kernel
def write_stages(  # type: ignore[no-untyped-def]
    counts, row, types, S, parts, q, first_entry, member, amount, ends, split, slot_stage, stage_layers
):
    """Write one placement: the stage of each node slot and the layers of each stage, first and last stage in place."""
    order = np.empty(S, np.int64)
    order[0], order[S - 1] = ends[0], ends[1]
    at = 1
    for s in range(S):
        if s not in (ends[0], ends[1]):
            order[at] = s
            at += 1
    next_slot = np.zeros(counts.shape[1] + 1, np.int64)
    for k in range(counts.shape[1]):
        next_slot[k + 1] = next_slot[k] + counts[row, k]
    for stage in range(S):
        stage_layers[row, stage] = split[order[stage]]
        g = parts[q, order[stage]]
        for e in range(first_entry[g], first_entry[g + 1]):
            k = types[member[e]]
            for _ in range(amount[e]):
                slot_stage[row, next_slot[k]] = stage
                next_slot[k] += 1


@kernel
def best_single_stage(solo, types, nodes, d):  # type: ignore[no-untyped-def]
    """(rate, cycle) of all nodes as replicas in one stage, (0, -1) if one of them cannot hold every layer."""
    best, best_cycle = 0, -1
    for c in range(solo.shape[1]):
        total, ok = 0, d > 0
        for i in range(d):
            ok = ok and solo[types[i], c] > 0
            total += nodes[i] * solo[types[i], c]
        if ok and total > best:
            best, best_cycle = total, c
    return best, best_cycle


@kernel
def solve_rows(  # type: ignore[no-untyped-def]
    counts, patterns, L, least, solo, pair_stages, pair_cycle, pairs_up_to, rate, most, weight, tail, shift, group_start,
    first_entry, member, amount, part_start, part_count, parts, out_rate, out_stages, out_cycle, out_slot_stage,
    out_layers
):
    """Solve every row of ``counts``; see ``exact.solve_many`` for the arrays. Ties: fewer stages, then shorter cycle.

    Pairs are tried by falling upper bound, each only at a rate that would replace the best so far: one more if the pair
    comes later in the order of ties, else the same.
    """
    n_max, n_pairs = parts.shape[1], pair_stages.shape[0]
    width = L + 1
    flat_rate, flat_most = rate.reshape(-1), most.reshape(-1)
    types, nodes = np.zeros(n_max, np.int64), np.zeros(n_max, np.int64)
    rate_row, most_row = np.zeros(n_max, np.int64), np.zeros(n_max, np.int64)
    bounds, slopes = np.empty(n_pairs), np.empty(n_pairs, np.int64)
    caps, stamps = np.zeros((first_entry.shape[0], 4), np.int64), np.zeros((first_entry.shape[0], 4), np.int64)
    work, version = np.zeros((3, n_max), np.int64), 0
    new_ends, new_split = np.zeros(2, np.int64), np.zeros(n_max, np.int64)
    ends, split = np.zeros(2, np.int64), np.zeros(n_max, np.int64)
    for r in range(counts.shape[0]):
        d = sort_types(counts, r, types, nodes)
        n = nodes[:d].sum()
        pairs, pattern = pairs_up_to[n], patterns[r]
        best, out_cycle[r] = 0, -1
        if part_count[pattern, 1] > 0:
            best, out_cycle[r] = best_single_stage(solo, types, nodes, d)
        best_pair, best_part = -1, -1
        upper_bounds(weight, types, nodes, d, pairs, bounds, slopes)
        for _ in range(pairs):
            p = int(np.argmax(bounds[:pairs]))
            bound = bounds[p]
            bounds[p] = -1.0
            if bound < max(best, 1):
                break
            S = pair_stages[p]
            t = best + 1 if p > best_pair else max(best, 1)
            if bound < t or not passes_capped(rate, most, tail, shift, types, nodes, d, p, slopes[p], S, L, t):
                continue
            for i in range(d):
                most_row[i] = (types[i] * n_pairs + p) * 4
                rate_row[i] = most_row[i] * width
            q = part_start[pattern, S]
            found, part, version = search_pair(
                flat_rate, flat_most, rate_row, most_row, first_entry, member, amount, parts, q, q +
                part_count[pattern, S], group_start[pattern], width, S, L, least, t, caps, stamps, version, work,
                new_ends, new_split
            )
            if found > 0:
                best, best_pair, best_part = found, p, part
                ends[:], split[:] = new_ends, new_split
        out_rate[r] = best
        if best_pair >= 0:
            out_stages[r], out_cycle[r] = pair_stages[best_pair], pair_cycle[best_pair]
            write_stages(
                counts, r, types, pair_stages[best_pair], parts, best_part, first_entry, member, amount, ends, split,
                out_slot_stage, out_layers
            )
        elif best > 0:
            out_stages[r] = 1
            out_layers[r, 0] = L
            out_slot_stage[r, :n] = 0
