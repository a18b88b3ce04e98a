"""A plan as ruin and recreate changes it, compiled: instances put and taken, what they serve by the models' rules, and what
models lack.

A model's instances lie in blocks, one per region and phase (phases of a region side by side); it is served by the sum over
regions of the least of its phases. Shares are of the demand asked for; money in USD/h.
"""

from __future__ import annotations

from tasks.jit import kernel

WHOLE = 1e-12  # a model that lacks less lacks nothing


@kernel
def put(items, state, i, many):  # type: ignore[no-untyped-def]
    """Put so many instances of an item (below 0: take)."""
    state.x[i] += many
    state.many[items.block[i]] += many
    state.served[items.block[i]] += many * items.share[i]
    if items.firm[i]:
        state.firm[items.block[i]] += many * items.share[i]
    for j in range(items.node.shape[1]):
        if items.need[i, j] > 0:
            state.left[items.node[i, j]] -= many * items.need[i, j]


@kernel
def put_and_log(items, state, i, many):  # type: ignore[no-untyped-def]
    """Whether they were put: not where the log is full."""
    at = state.log[0, 0] + 1
    if at == len(state.log):
        return False
    put(items, state, i, many)
    state.log[0, 0] = at
    state.log[at, 0], state.log[at, 1] = i, many
    return True


@kernel
def undo(items, state):  # type: ignore[no-untyped-def]
    """Take back what is logged."""
    for at in range(1, state.log[0, 0] + 1):
        put(items, state, state.log[at, 0], -state.log[at, 1])


@kernel
def fits(items, state, i):  # type: ignore[no-untyped-def]
    """Whether there may be one more instance of an item, and there are nodes for it."""
    fits, j = state.x[i] < items.most[i], 0
    while fits and j < items.node.shape[1]:
        fits = items.need[i, j] == 0 or state.left[items.node[i, j]] >= items.need[i, j]
        j += 1
    return fits


@kernel
def largest_item(layout, state, block):  # type: ignore[no-untyped-def]
    """The first item in use of a block, of which none in use is larger; where there is none the block's end."""
    i, end = layout.start[block], layout.start[block + 1]
    while i < end and state.x[i] == 0:
        i += 1
    return i


@kernel
def without_loss(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a block serves, under N+1 what its largest instance leaves of it."""
    if not layout.spare[block]:
        return state.served[block]
    return state.served[block] - items.share[largest_item(layout, state, block)] if state.many[block] > 1 else 0.0


@kernel
def counted(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a block serves by the rules of its model."""
    if state.many[block] < layout.replicas[block]:
        return 0.0
    serves = without_loss(items, layout, state, block)
    return min(serves, state.firm[block] / layout.firm[block]) if layout.firm[block] > 0.0 else serves


@kernel
def least_served(items, layout, state, block):  # type: ignore[no-untyped-def]
    """Share that a region serves: the least of its phases, from ``block`` on."""
    least = counted(items, layout, state, block)
    for phase in range(1, layout.phases):
        least = min(least, counted(items, layout, state, block + phase))
    return least


@kernel
def lack(items, layout, state, m):  # type: ignore[no-untyped-def]
    """Share of model ``m``'s demand that nothing serves; below 0 where it has to spare."""
    total = 0.0
    for block in range(layout.first[m], layout.first[m + 1], layout.phases):
        total += least_served(items, layout, state, block)
    return 1.0 - total


@kernel
def penalty_of(items, layout, state, m):  # type: ignore[no-untyped-def]
    """What it costs that model ``m`` lacks something."""
    missing = lack(items, layout, state, m)
    return layout.weight[m] * (missing + layout.jump) if missing > WHOLE else 0.0
