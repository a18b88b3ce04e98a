"""Machine-code core of the exact placement: solves combinations one after the other without the GIL."""

from __future__ import annotations

import numpy as np

from tasks.templates.bounds import passes_capped, upper_bounds
from tasks.templates.jit import kernel
from tasks.templates.search import search_pair


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
    counts,
    patterns,
    L,
    solo,
    pair_stages,
    pair_cycle,
    pairs_up_to,
    rate,
    most,
    weight,
    tail,
    shift,
    group_start,
    first_entry,
    member,
    amount,
    part_start,
    part_count,
    parts,
    out_rate,
    out_stages,
    out_cycle,
    out_slot_stage,
    out_layers,
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
        best, out_cycle[r] = best_single_stage(solo, types, nodes, d)
        best_pair, best_part = -1, -1
        pairs, pattern = pairs_up_to[n], patterns[r]
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
                flat_rate,
                flat_most,
                rate_row,
                most_row,
                first_entry,
                member,
                amount,
                parts,
                q,
                q + part_count[pattern, S],
                group_start[pattern],
                width,
                S,
                L,
                t,
                caps,
                stamps,
                version,
                work,
                new_ends,
                new_split,
            )
            if found > 0:
                best, best_pair, best_part = found, p, part
                ends[:], split[:] = new_ends, new_split
        out_rate[r] = best
        if best_pair >= 0:
            out_stages[r], out_cycle[r] = pair_stages[best_pair], pair_cycle[best_pair]
            write_stages(
                counts,
                r,
                types,
                pair_stages[best_pair],
                parts,
                best_part,
                first_entry,
                member,
                amount,
                ends,
                split,
                out_slot_stage,
                out_layers,
            )
        elif best > 0:
            out_stages[r] = 1
            out_layers[r, 0] = L
            out_slot_stage[r, :n] = 0
