"""Machine code that searches one combination at one (stage count, cycle): caps of groups, partitions, layer splits.

Letters: j layers of a stage, L all layers, S stages, t the rate that is tested, g a group of nodes, ``cap(g, t)`` the
most layers g can hold at rate >= t, place 0 first, 1 mid, 2 last, 3 the best of the three. Rates are int64 milli-tok/s.

``rate`` and ``most`` are flat: the combination's i-th type has its rates for place p and j layers at
``rate[row[i] + p * width + j]`` (width = L + 1) and the most layers with a rate at ``most[most_row[i] + p]``. Groups are
those of :class:`~tasks.templates.partitions.PartitionTables`.
"""

from __future__ import annotations

import numpy as np

from tasks.templates.jit import inlined, kernel

FIRST, MID, LAST, BEST = 0, 1, 2, 3


@inlined
def group_rate(rate, row, start, end, member, amount, at):  # type: ignore[no-untyped-def]
    """Summed rate of the group with entries start..end; ``at`` = place * (L + 1) + layers."""
    total = 0
    for e in range(start, end):
        total += amount[e] * rate[row[member[e]] + at]
    return total


@inlined
def group_cap(rate, most, row, most_row, start, end, member, amount, place, width, t, limit):  # type: ignore[no-untyped-def]
    """Most layers j <= limit at which every node of the group is feasible and their rates sum to >= t; 0 if none."""
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
    return lo


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
def trim(rate, row, first_entry, member, amount, parts, q, width, S, L, ends, split):  # type: ignore[no-untyped-def]
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
                if split[s] > 1 and (slow < 0 or now[s] < now[slow]):
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
    rate,
    most,
    row,
    most_row,
    first_entry,
    member,
    amount,
    parts,
    q,
    zero,
    width,
    S,
    L,
    t,
    caps,
    stamps,
    version,
    work,
    ends,
    split,
):
    """Rate (>= t) of a max-min split of one partition, or 0 if it cannot reach t. Fills ``ends`` and ``split``.

    The places are those that hold the most layers at t; other places may reach more, so try again above the result.
    ``work`` [3, n_max] is scratch space; ``caps``, ``stamps``, ``version`` are those of :func:`search_pair`.
    """
    limit = L - S + 1
    for s in range(S):
        g = parts[q, s]
        if stamps[g - zero, FIRST] != version:
            stamps[g - zero, FIRST] = version
            for place in range(3):
                if place != MID or S > 2:
                    caps[g - zero, place] = group_cap(
                        rate,
                        most,
                        row,
                        most_row,
                        first_entry[g],
                        first_entry[g + 1],
                        member,
                        amount,
                        place,
                        width,
                        t,
                        limit,
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
    return trim(rate, row, first_entry, member, amount, parts, q, width, S, L, ends, split)


@kernel
def search_pair(  # type: ignore[no-untyped-def]
    rate,
    most,
    row,
    most_row,
    first_entry,
    member,
    amount,
    parts,
    q_start,
    q_end,
    zero,
    width,
    S,
    L,
    t,
    caps,
    stamps,
    version,
    work,
    best_ends,
    best_split,
):
    """Best partition of one combination for one (S, cycle) with a rate of at least ``t``.

    Returns (rate, partition, version): rate 0 if none reaches t. ``caps`` [groups, 4] cache the caps at the current t
    in each place, ``stamps`` tell of which ``version`` (BEST: its own; FIRST: of the three places). ``zero`` is the
    number of the pattern's first group; ``best_ends``, ``best_split`` receive the layout.
    """
    limit = L - S + 1
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
                    rate, most, row, most_row, first_entry[g], first_entry[g + 1], member, amount, BEST, width, t, limit
                )
            total += caps[g - zero, BEST]
        reached = 0
        if total >= L:
            reached = place_partition(
                rate,
                most,
                row,
                most_row,
                first_entry,
                member,
                amount,
                parts,
                q,
                zero,
                width,
                S,
                L,
                t,
                caps,
                stamps,
                version,
                work,
                ends,
                split,
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
