"""Shards into tasks: a task on Dask costs about 170 ms, so it must be worth tens of seconds, and there may be few."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TypeVar

TARGET_TASK_S = 20.0
MAX_TASKS = 200
MIN_TASK_S = 1.0
_TASKS_PER_SLOT = 4

Item = TypeVar("Item")


def batch_by_work(
    items: Sequence[Item],
    work_s: Sequence[float],
    *,
    slots: int,
    target_s: float = TARGET_TASK_S,
    max_batches: int = MAX_TASKS,
) -> list[tuple[Item, ...]]:
    """Split ``items`` into batches of about equal estimated work, the heaviest batch first.

    ``work_s`` is the estimated work of each item in seconds. As many batches as bring each to ``target_s``; below that
    enough for each of ``slots`` parallel slots to have several (so that they end together), as long as a batch keeps
    ``MIN_TASK_S``; never more than ``max_batches`` or than there are items. Longest item first into the lightest batch:
    deterministic, and no batch exceeds the mean by more than one item. Raises ValueError for work that is negative or
    no number.
    """
    if len(items) != len(work_s):
        raise ValueError(f"{len(items)} items but {len(work_s)} estimates")
    if not all(math.isfinite(work) and work >= 0 for work in work_s):
        raise ValueError("estimated work must be finite and not negative")
    if not items:
        return []
    total_s = sum(work_s)
    wanted = max(math.ceil(total_s / target_s), min(_TASKS_PER_SLOT * slots, int(total_s / MIN_TASK_S)))
    count = max(1, min(wanted, max_batches, len(items)))
    batches: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, 0, batch) for batch in range(count)]
    for index in sorted(range(len(items)), key=lambda i: (-work_s[i], i)):
        # Ties go to the batch with fewer items, so that items of no work spread as well.
        load, size, batch = heapq.heappop(loads)
        batches[batch].append(index)
        heapq.heappush(loads, (load + work_s[index], size + 1, batch))
    batches.sort(key=lambda batch: (-sum(work_s[i] for i in batch), batch))
    return [tuple(items[i] for i in batch) for batch in batches]
