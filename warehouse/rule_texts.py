"""The rules of a kept explanation (folder ``why/`` of a lake) in words, for whoever shows one."""

from __future__ import annotations

_TEXTS = {
    ("headroom", True): "without headroom: instances used to their whole rate",
    ("co-location", True): "with prefill and decode in different regions, KV moving for nothing",
    ("co-location", False): "with prefill and decode of a model together in every region, no KV crossing",
    ("min_regions", True): "with every model in one region only",
    ("min_replicas", True): "without least counts of instances",
    ("n_plus_one", True): "without N+1: a phase's largest instance may not be lost",
    ("max_spot_share", True): "with any share on spot",
    ("node_configs", True): "with every configuration for every model",
    ("launchable_only", True): "with templates that no stock engine launches as well",
    ("launchable_only", False): "with templates alone that stock engines launch (classes A and B1)",
    ("measured_only", True): "with rates that are not measured or fitted as well",
    ("safety_percentile", True): "with expected rates instead of safe ones",
}


def rule_text(rule: str, is_on: bool) -> str:
    """What the plan is compared with: without ``rule`` where it ``is_on``, with it where it is not."""
    without = "without" if is_on else "with"
    return _TEXTS.get((rule, is_on), f"{without} the rule {rule.replace('_', ' ')}")
