"""Why a build has nothing for a workload, in words that say what would help."""

from __future__ import annotations

from collections.abc import Sequence

from catalogs.errors import NothingFitsError
from catalogs.wording import counted
from flows.build_inputs import BuildInputs, WorkloadInputs
from tasks.profiling.explain import explain_infeasible
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import ModelShape
from tasks.profiling.tightest import Combinations
from tasks.templates.combinations import memory_limit_mib

_REMEDY = {
    Infeasible.MEMORY: "offer larger node configurations, allow more nodes (library.n_max), or use a smaller weight_dtype",
    Infeasible.KV_CACHE: "offer larger node configurations, allow more nodes (library.n_max), or shorten the requests",
    Infeasible.SLO: "relax the SLO to what is reachable, or offer faster node configurations",
    Infeasible.LAYOUT: "offer node configurations with a GPU count that divides the model's heads",
    Infeasible.UNPROFILED: "offer configurations whose GPU has efficiency factors, or add measured profiles",
}
_BY_LIBRARY = "raise library.n_max or library.rho"


def nothing_fits(
    inputs: BuildInputs, items: Sequence[WorkloadInputs], found: Sequence[NothingFitsError] = ()
) -> NothingFitsError:
    """One error for all workloads that no combination serves.

    The explanation is computed for each from what its regions sell; where that finds none (limits of the library, not
    the hardware, are the reason), the error ``found`` while planning is what is said.
    """
    texts, remedies = [], []
    for number, item in enumerate(items):
        sold = {name for some in item.sold_sets for name in some}
        configs = [config for config in inputs.node_configs if config.node_config in sold]
        shape = ModelShape(item.workload.model, item.workload.weight_dtype, item.workload.kv_dtype)
        why = explain_infeasible(
            item.workload,
            configs,
            inputs.gpus,
            inputs.efficiencies,
            inputs.settings_of(item),
            inputs.n_max,
            inputs.mode,
            Combinations(item.sold_sets, memory_limit_mib(int(shape.weight_bytes), inputs.rho)),
        )
        if why is not None and not (why.is_by_library and number < len(found)):
            texts.append(why.text)
            remedies.append(_BY_LIBRARY if why.is_by_library else _REMEDY[why.reason])
        elif number < len(found):
            texts.append(found[number].message)
            remedies.append(found[number].remedy)
        else:
            texts.append(
                f"{item.workload.alias}: no combination of up to {counted(inputs.n_max, 'node')} "
                f"within {inputs.rho:g} x the weights' "
                f"memory meets {item.workload.slo_ms:g} ms"
            )
            remedies.append(f"{_BY_LIBRARY}, or relax the SLO")
    return NothingFitsError("; ".join(texts), remedy="; ".join(dict.fromkeys(text for text in remedies if text)))
