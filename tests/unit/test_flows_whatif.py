"""What `coral whatif` changes in a scenario, and every way its options can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from flows_cases import write_scenario

from catalogs.demand import planned_rate
from catalogs.errors import CoralError, InputError
from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Basis, Phase
from flows.whatif_changes import Changed, WhatIf, apply_changes

REGION = "aws/us-east-2"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedScenario:
    return load_scenario(write_scenario(tmp_path_factory.mktemp("scenario")))


def changed(loaded: LoadedScenario, **asked: Any) -> Changed:
    return apply_changes(loaded, WhatIf(**{name: (text,) for name, text in asked.items()}))


def price(loaded: LoadedScenario, config: str) -> float:
    return loaded.best[REGION, config].price_usd_per_h


@pytest.mark.parametrize("name", ["phi-4", "PHI4", "microsoft/phi-4"])
@pytest.mark.parametrize(("amount", "stated"), [("+30%", 2.6), ("-50%", 1.0), ("7", 7.0), ("0", 0.0)])
def test_demand_is_planned_as_the_scenarios_own(loaded: LoadedScenario, name: str, amount: str, stated: float) -> None:
    found = {d.alias: d for d in changed(loaded, demand=f"{name}={amount}").loaded.model_demands}
    assert found["phi-4"].stated_req_per_s == pytest.approx(stated)
    assert found["phi-4"].planned_req_per_s == pytest.approx(planned_rate(stated, 95.0))
    assert found["gpt-oss-20b"].stated_req_per_s == 2.0


def test_prices_change_where_the_pattern_says(loaded: LoadedScenario) -> None:
    l4, l40s = price(loaded, "L4x1"), price(loaded, "L40Sx1")
    by_gpu = changed(loaded, price="L4:*=+10%").loaded
    assert price(by_gpu, "L4x1") == pytest.approx(1.1 * l4)
    assert price(by_gpu, "L4x4") == pytest.approx(1.1 * price(loaded, "L4x4"))
    assert price(by_gpu, "L40Sx1") == l40s
    by_pattern = changed(loaded, price="l4*:us-east-2=-10%").loaded  # a pattern: L40S too
    assert price(by_pattern, "L40Sx1") == pytest.approx(0.9 * l40s)
    assert price(changed(loaded, price="L4x1=0.5").loaded, "L4x1") == 0.5
    assert list(by_gpu.offers) == sorted(by_gpu.offers, key=lambda o: (o.price_usd_per_h, o.offer_id))


def test_without_a_gpu_or_one_size_of_it(loaded: LoadedScenario) -> None:
    configs = {config for _, config in loaded.best}
    assert {"L4x1", "L4x4", "L4x8"} <= configs
    assert {c for _, c in changed(loaded, without="L4").loaded.best} == configs - {"L4x1", "L4x4", "L4x8"}
    assert {c for _, c in changed(loaded, without="L4x4").loaded.best} == configs - {"L4x4"}
    absent = changed(loaded, without="H100")
    assert {c for _, c in absent.loaded.best} == configs
    assert absent.notes == ("H100-SXM is not on offer in small: being without it changes nothing",)


def test_supply_is_what_is_said(loaded: LoadedScenario) -> None:
    now = changed(loaded, supply="us-east-2:L4x1=3").loaded
    assert now.capacity(REGION, "L4x1") == (3, Basis.FEED)
    assert now.capacity(REGION, "L4x4") == (16, Basis.ASSUMED)
    none = changed(loaded, supply="*:L4*=0").loaded
    assert [none.capacity(REGION, c)[0] for c in ("L4x1", "L40Sx8", "A10Gx1")] == [0, 0, 16]


def test_an_slo_makes_a_workload_of_its_own(loaded: LoadedScenario) -> None:
    found = changed(loaded, slo="phi4.decode=50", demand="phi4=3")
    old = next(w for w in loaded.workloads if w.alias == "phi-4/decode")
    new = next(w for w in found.loaded.workloads if w.alias == "phi-4/decode")
    assert (old.slo_ms, new.slo_ms, new.phase) == (60, 50, Phase.DECODE)
    assert new.workload_id != old.workload_id
    demand = next(d for d in found.loaded.model_demands if d.alias == "phi-4")
    assert new.workload_id in demand.workload_ids
    assert old.workload_id not in demand.workload_ids
    assert found.slo_changes == ("phi-4.decode=50",)
    # The library is made for the SLO, whatever the demand.
    assert next(d for d in found.for_library.model_demands if d.alias == "phi-4").stated_req_per_s == 2.0
    assert changed(loaded, slo="phi-4.tpot=60").slo_changes == ()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"demand": "phi-5=3"}, "did you mean phi-4?"),
        ({"demand": "phi-4"}, "is not of the form asked for"),
        ({"demand": "phi-4=-3"}, "is no amount of 0 or more"),
        ({"demand": "phi-4=nan"}, "is no amount of 0 or more"),
        ({"demand": "phi-4.decode=3"}, "names a phase, and a model's requests go through both"),
        ({"slo": "phi-4=50"}, "names no phase"),
        ({"demand": "phi-4=1e300"}, "out of range (got 'phi-4=1e300'). To fix: give 0 or from 0.0001 to 1000000"),
        ({"demand": "phi-4=0.00001"}, "makes 1e-05, which is out of range"),
        ({"slo": "phi-4.decode=0"}, "out of range (got 'phi-4.decode=0'). To fix: give from 0.001 to 60000"),
        ({"slo": "phi-4.prefill=+99999999%"}, "out of range"),
        ({"price": "L4:*=1e9"}, "makes 1e+09, which is out of range"),
        ({"price": "L5:*=+3%"}, "did you mean L4"),
        ({"price": "L4:us-east-3=+3%"}, "did you mean us-east-2"),
        ({"without": "L41"}, "did you mean L4"),
        ({"without_region": "us-east-3"}, "did you mean us-east-2"),
        ({"without_region": "us-east-2"}, "phi-4 may be served nowhere else"),
        ({"supply": "us-east-2:L4x1=some"}, "is no number of nodes"),
        ({"supply": "us-east-2:L4x1=1.5"}, "is no number of nodes"),
    ],
)
def test_faults_name_the_option_and_what_to_do(loaded: LoadedScenario, asked: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(loaded, **asked)
    option = "--" + next(iter(asked)).replace("_", "-")
    assert any(f.file == option and said in f.line() for f in caught.value.findings)


def test_all_faults_come_at_once(loaded: LoadedScenario) -> None:
    with pytest.raises(InputError) as caught:
        apply_changes(loaded, WhatIf(demand=("phi-5=3", "phi-4=x"), without=("L41",)))
    assert len(caught.value.findings) == 3
    with pytest.raises(CoralError, match="no change is asked for"):
        apply_changes(loaded, WhatIf())


def test_nothing_left_to_rent_is_said(loaded: LoadedScenario) -> None:
    gpus = ("L4", "L40S", "A10G")
    with pytest.raises(InputError, match="nothing is left to rent"):
        apply_changes(loaded, WhatIf(without=gpus))


def test_the_scenario_given_stays_as_it_is(loaded: LoadedScenario) -> None:
    before = (loaded.offers, loaded.model_demands, dict(loaded.supply.feed))
    apply_changes(loaded, WhatIf(demand=("phi-4=9",), price=("*=+5%",), supply=("*:*=1",)))
    assert (loaded.offers, loaded.model_demands, dict(loaded.supply.feed)) == before


def test_kv_may_cross_regions_or_not(loaded: LoadedScenario) -> None:
    asked = changed(loaded, cross_region_kv="0.02,10")
    terms = asked.loaded.scenario.policy.cross_region_kv
    assert terms is not None
    assert (terms.usd_per_gb, terms.gbit_per_s) == (0.02, 10)
    assert asked.texts == ("KV may cross regions at 0.02 USD/GB, 10 Gbit/s at most from one to another",)
    assert changed(asked.loaded, cross_region_kv="off").loaded.scenario.policy.cross_region_kv is None
    with pytest.raises(InputError) as caught:
        changed(loaded, cross_region_kv="cheap")
    assert "USD" in caught.value.findings[0].remedy
