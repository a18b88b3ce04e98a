"""Planning with rates that hold in a stated share of cases, given each rate's relative error.

A rate's ``rel_error`` is a mean absolute error (MAPE). Taken as normal, ``sigma = rel_error / sqrt(2 / pi)``, and the time
behind a rate stays below ``1 + z sigma`` of the expected one in the share ``p`` of cases, with ``z`` the normal quantile of
``p``: so ``rate / (1 + z(p) rel_error / sqrt(2 / pi))`` is kept in that share. p90: rate / (1 + 1.606 rel_error). An error
is one of a GPU's factors, common to all its nodes: more instances do not average it out, so every rate is lowered.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catalogs.types import Provenance

# Rates that rest on measurements, of the rate itself or of its GPU's factors.
MEASURED_GROUND = frozenset({Provenance.MEASURED.value, Provenance.FITTED.value})


def error_multiple(percentile: float) -> float:
    """How many mean absolute errors a normal error stays below in ``percentile`` (50..100) of cases: 0 at 50."""
    if not 50 <= percentile < 100:
        raise ValueError(f"percentile {percentile} is not in [50, 100)")
    return NormalDist().inv_cdf(percentile / 100) / math.sqrt(2 / math.pi)


def time_ratio(rel_error: float, percentile: float) -> float:
    """How many times the expected time a pass stays below in ``percentile`` of cases: what safe rates are divided by."""
    return 1 + error_multiple(percentile) * rel_error


def safe_rates(
    throughput_mtok_per_s: NDArray[np.int64], rel_error: NDArray[np.float64], percentile: float
) -> NDArray[np.int64]:
    """Rates that hold in ``percentile`` of cases, whole milli-tokens/s rounded down."""
    return np.floor(throughput_mtok_per_s / (1 + error_multiple(percentile) * rel_error)).astype(np.int64)


def with_safe_rates(templates: pa.Table, percentile: float | None) -> pa.Table:
    """Template rows (``throughput_mtok_per_s``, ``rel_error``) with lowered rates; as they are for None."""
    if percentile is None:
        return templates
    place = templates.column_names.index("throughput_mtok_per_s")
    rates = safe_rates(templates[place].to_numpy(), templates["rel_error"].to_numpy(), percentile)
    return templates.set_column(place, templates.schema.field(place), pa.array(rates))
