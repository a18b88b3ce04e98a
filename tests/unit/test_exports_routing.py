"""Weights for a router and bounds for an autoscaler, by hand: what is delivered, and the rules that are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from export_cases import INSIDE, MIXED, MODEL, SHARED_STAGE, SIDE_BY_SIDE, UNEQUAL, crossing, launch, rules

from tasks.allocation.types import KvLink, SharedQuota
from tasks.exports.bounds import replica_bounds
from tasks.exports.export import export_of
from tasks.exports.routing import router_weights
from tasks.exports.types import Launch

IOWA = {"region": "gcp/us-central1"}


def test_router_weights_by_hand() -> None:
    """At headroom 0.8 prefill in Ohio serves 0.8 x 20,000 / 1,000 = 16 requests/s, decode 0.8 x 2 x 1,000 / 200 = 8; in Iowa
    nothing is prefilled."""
    document = router_weights(launch(SIDE_BY_SIDE, MIXED, INSIDE))
    (model,) = document["models"]
    assert model["model"] == MODEL
    weights = {row["region"]: (row["weight"], row["supplied_req_per_s"]) for row in model["regions"]}
    assert weights == {"aws/us-east-2": (1.0, 8.0), "gcp/us-central1": (0.0, 0.0)}
    decode = next(p for p in model["regions"][0]["phases"] if p["phase"] == "decode")["instances"]
    assert [row["weight"] for row in decode] == [0.5, 0.5]
    assert [n["node_config"] for stage in decode[0]["stages"] for n in stage["nodes"]] == [
        "L4x1",
        "L4x1",
        "A10Gx1",
        "L40Sx1",
    ]
    shares = router_weights(launch(SHARED_STAGE))["models"][0]["regions"][0]["phases"][0]["instances"][0]
    assert shares["is_launchable"] is False
    assert [[n["share"] for n in stage["nodes"]] for stage in shares["stages"]] == [[0.5, 0.5], [1.0]]


def test_a_router_weighs_by_what_is_delivered() -> None:
    """Spot that is down a fifth of the time gets 0.8 / 1.8 of the requests beside the same instance on demand. Ohio serves
    0.8 x 1,800 / 200 = 7.2 requests/s, Iowa 4: weights of 9 / 14 and 5 / 14."""
    one = MIXED | {"instances": 1}
    rows = (SIDE_BY_SIDE, one, one | {"market": "spot", "delivered_share": 0.8}, SIDE_BY_SIDE | IOWA, one | IOWA)
    regions = router_weights(launch(*rows))["models"][0]["regions"]
    assert [row["supplied_req_per_s"] for row in regions] == pytest.approx([7.2, 4.0])
    assert [row["weight"] for row in regions] == pytest.approx([9 / 14, 5 / 14])
    decode = regions[0]["phases"][1]["instances"]
    assert [row["weight"] for row in decode] == pytest.approx([1 / 1.8, 0.8 / 1.8])
    assert [row["delivered_share"] for row in decode] == [1.0, 0.8]


def test_a_router_knows_where_kv_goes() -> None:
    """4 of Ohio's 16 requests/s of prefill decode in Iowa (0.8 x 3 x 500 / 200 = 6), 8 in Ohio: all 12 begin in Ohio."""
    moved = launch(SIDE_BY_SIDE, MIXED, INSIDE, moves=(crossing(4.0),))
    ohio, iowa = router_weights(moved)["models"][0]["regions"]
    assert (ohio["weight"], iowa["weight"], iowa["decode_in"]) == (1.0, 0.0, [])
    assert ohio["supplied_req_per_s"] == pytest.approx(12.0)
    assert {end["region"]: end["weight"] for end in ohio["decode_in"]} == pytest.approx(
        {"aws/us-east-2": 2 / 3, "gcp/us-central1": 1 / 3}
    )
    assert any("decode in gcp/us-central1" in note for note in export_of(moved, ["vllm"]).notes)


def test_with_n_plus_one_a_region_is_sent_what_it_serves_without_its_largest_instance() -> None:
    """Decode of 2 and of 3 instances of 4 requests/s: 4 and 8 are left, so a third and two thirds (not 2 and 3 fifths)."""
    rows = [row | {"instances": n} for row, n in ((SIDE_BY_SIDE, 2), (MIXED, 2))]
    rows += [row | IOWA | {"instances": n} for row, n in ((SIDE_BY_SIDE, 2), (MIXED, 3))]
    regions = router_weights(launch(*rows, rules=rules(survives_loss=True)))["models"][0]["regions"]
    assert [row["weight"] for row in regions] == pytest.approx([1 / 3, 2 / 3])


def least(*rows: dict[str, Any], **changes: Any) -> list[int]:
    return [row["min"] for row in replica_bounds(launch(*rows, **changes))]


def test_replica_bounds_by_hand() -> None:
    """In Ohio decode serves 0.8 x 2 x 1,000 / 200 = 8 requests/s, 4 an instance; prefill 16, with one. 5 more of each machine
    can be had: a mixed instance takes two L4x1, so two more of them. In Iowa nothing is prefilled: one will do."""
    bounds = replica_bounds(launch(SIDE_BY_SIDE, MIXED, INSIDE))
    assert [(row["planned"], row["min"], row["max"]) for row in bounds] == [(1, 1, 6), (2, 1, 4), (3, 1, 8)]
    assert [row["target_tok_per_s"] for row in bounds] == [16_000.0, 800.0, 400.0]
    assert least(SIDE_BY_SIDE, MIXED | {"instances": 6}, rules=rules(11.9)) == [1, 3]  # 3 of 4 requests/s
    assert least(SIDE_BY_SIDE, MIXED | {"instances": 6}, rules=rules(12.1)) == [1, 4]


def test_the_fewest_replicas_keep_the_rules() -> None:
    two, many = SIDE_BY_SIDE | {"instances": 2}, MIXED | {"instances": 5}
    assert least(two, many) == [1, 1]
    # N+1 at 4 requests/s: one of prefill is left of two, one of decode of two.
    assert least(two, many, rules=rules(survives_loss=True)) == [2, 2]
    assert least(two, many, rules=rules(min_replicas=2)) == [2, 2]
    # Half of 10 requests/s must be firm: 2 instances of 4; 3 in all serve 10, so one on spot may go.
    spot = MIXED | {"instances": 2, "market": "spot"}
    assert least(two, MIXED, spot, rules=rules(10.0, max_spot_share=0.5)) == [1, 2, 1]
    assert least(two, MIXED, spot, rules=rules(10.0)) == [1, 1, 1]
    # Of two regions, none may stop serving: 2 x 4 requests/s here, 4 there.
    assert least(two, MIXED, SIDE_BY_SIDE | IOWA, MIXED | IOWA, rules=rules(min_regions=2)) == [1, 1, 1, 1]
    # What is not known is not undercut.
    assert least(two, many, rules=None) == [2, 5]


def test_where_kv_crosses_every_phase_stays_in_as_many_regions_as_asked_for() -> None:
    """N+1, two regions. Prefill: 3 instances of 16 requests/s in Ohio count as 32, 2 in Iowa as 16, one as nothing. Decode: 3
    of 4 requests/s in Ohio count as 8, 5 of 2 in Iowa as 8. 4 requests/s cross from Ohio to Iowa, which leaves 8 and 4 + 4.

    Of 8 that are asked for, Ohio's decode and what crosses would do without prefill in Iowa, were it not for two regions."""
    rows = (SIDE_BY_SIDE | {"instances": 3}, MIXED | {"instances": 3})
    rows += (SIDE_BY_SIDE | IOWA | {"instances": 2}, INSIDE | {"instances": 5})
    least_of = {"survives_loss": True, "kv_gb_per_request": 0.1}
    moves = {"moves": (crossing(4.0),)}
    assert least(*rows, rules=rules(8.0, **least_of), **moves) == [2, 1, 1, 3]
    assert least(*rows, rules=rules(8.0, min_regions=2, **least_of), **moves) == [2, 2, 2, 3]
    assert least(*rows, rules=rules(12.1, min_regions=2, **least_of), **moves) == [2, 3, 2, 4]


def test_regions_are_counted_by_phase_where_kv_may_cross() -> None:
    """Prefill in Ohio and Iowa, decode in Ohio and Oregon, nothing crosses: each phase is in two regions, both in one alone."""
    rows = (SIDE_BY_SIDE | {"instances": 2}, MIXED, SIDE_BY_SIDE | IOWA, MIXED | {"region": "aws/us-west-2"})
    ways = (KvLink("aws/us-east-2", "gcp/us-central1", 0.02),)
    may = {"min_regions": 2, "kv_gb_per_request": 0.1}
    assert least(*rows, rules=rules(4.0, links=ways, **may)) == [1, 1, 1, 1]
    assert least(*rows, rules=rules(4.0, **may)) == [2, 2, 1, 2]
    assert least(*rows, rules=rules(4.0, links=ways, min_regions=2)) == [2, 2, 1, 2]


def test_what_cannot_be_launched_at_an_end_of_crossing_kv_is_said() -> None:
    def said(*rows: dict[str, Any]) -> list[str]:
        notes = export_of(launch(*rows, moves=(crossing(4.0),)), ["vllm"]).notes
        return [note for note in notes if "lacks its" in note]

    assert said(SIDE_BY_SIDE, MIXED, INSIDE) == []
    (note,) = said(SIDE_BY_SIDE, UNEQUAL, INSIDE)
    assert note == f"{MODEL} in aws/us-east-2 lacks its decode instances: at most what crosses regions is served there"
    nothing = "of the KV from aws/us-east-2 to gcp/us-central1 nothing is served"
    assert said(SIDE_BY_SIDE, MIXED, UNEQUAL | IOWA) == [
        f"{MODEL}: {nothing}: gcp/us-central1 lacks its decode instances"
    ]
    assert said(SHARED_STAGE, MIXED, INSIDE) == [
        f"{MODEL} in aws/us-east-2 lacks its prefill instances: nothing is served there",
        f"{MODEL}: {nothing}: aws/us-east-2 lacks its prefill instances",
    ]


def test_the_most_replicas_keep_quotas_and_budget() -> None:
    """5 more of the one machine can be had; the quota has 20 - 2 x 4 = 12 vCPUs left, 4 a machine, the budget 8 USD/h, 4 an
    instance."""
    row = SIDE_BY_SIDE | {"instances": 2}
    quota = SharedQuota("G vcpu", row["region"], {"L40Sx4": 4}, 20)

    def most(made: Launch) -> int:
        return replica_bounds(made)[0]["max"]

    assert most(launch(row)) == 7
    assert most(launch(row, rules=rules(quotas=(quota,)))) == 5
    assert most(launch(row, rules=rules(quotas=(replace(quota, region="aws/us-west-2"),)))) == 7
    assert most(launch(row | {"market": "owned"}, rules=rules(quotas=(quota,)))) == 7
    assert most(launch(row, rules=rules(quotas=(quota,), budget=48.0))) == 4


@pytest.mark.parametrize("spare_spot", [0, 5])
def test_what_another_market_has_to_spare_makes_no_replicas(spare_spot: int) -> None:
    held = launch(INSIDE, INSIDE | {"market": "on_demand"})
    spare = {"spot": spare_spot, "on_demand": 2}
    offers = tuple(o.model_copy(update={"availability_nodes": o.nodes + spare[o.market]}) for o in held.plan.offers)
    bounds = replica_bounds(replace(held, plan=held.plan.model_copy(update={"offers": offers})))
    assert [row["max"] for row in bounds] == [3 + spare[group.row.market] for group in held.groups]
