"""How large a library would be, told before it is built, and refused where that would take a day by mistake."""

from __future__ import annotations

from catalogs.errors import CoralError
from catalogs.wording import counted
from flows.build_inputs import BuildInputs
from flows.settings import BuildSettings, Progress

# The paper's full grid (6 models x 20 configurations, n_max 6, rho 12) has 1.1 million combinations.
MAX_COMBINATIONS = 4_000_000
MAX_WORK_S = 1_800.0


def estimated_size(inputs: BuildInputs) -> tuple[int, float]:
    """About (combinations, seconds of one core) of the whole library, without enumerating them. Takes milliseconds."""
    from tasks.profiling.shapes import ModelShape
    from tasks.templates.shards import LibraryLimits, estimate_library

    memory_gib = {config.node_config: config.memory_gib for config in inputs.node_configs}
    limits = LibraryLimits(inputs.n_max, inputs.rho, inputs.mode, inputs.solver)
    combinations, work_s = 0, 0.0
    for item in inputs.workloads:
        workload = item.workload
        shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
        count, seconds = estimate_library(memory_gib, item.sold_sets, int(shape.weight_bytes), limits)
        combinations, work_s = combinations + count, work_s + seconds
    return combinations, work_s


def check_size(settings: BuildSettings, inputs: BuildInputs, progress: Progress) -> None:
    """Tell the size of the library. Raises CoralError for one beyond the limits, unless ``settings.accept_large``."""
    combinations, work_s = estimated_size(inputs)
    size = f"about {counted(combinations, 'combination')}, {_duration(work_s)} of one core"
    on_top = "profiles, checks and, the first time, the compilation of the kernels come on top"
    progress.message(f"{inputs.library_key}: {size}; {on_top}")
    if settings.accept_large or (combinations <= MAX_COMBINATIONS and work_s <= MAX_WORK_S):
        return
    limits = f"library.n_max ({inputs.n_max}) or library.rho ({inputs.rho:g})"
    smaller = f"lower {limits}" + (
        ", or use --solver exact" if inputs.solver == "ilp" else ", or offer fewer configurations"
    )
    raise CoralError(
        f"the library of {inputs.library_key} would have {size}; without being told to, coral builds up to "
        f"{MAX_COMBINATIONS:,} combinations and {_duration(MAX_WORK_S)}",
        remedy=f"{smaller}; or give --yes to build it all the same",
    )


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 1 else "under a second"
