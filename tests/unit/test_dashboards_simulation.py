"""The report of a simulation as a file: what it shows, and that nothing in it makes a browser load anything."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_cases import simulation_document

from dashboards.page import page
from dashboards.simulation_charts import _round_values, floor_percent
from dashboards.simulation_report import report


class Elements(HTMLParser):
    """(tag, attributes) of every element, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def text() -> str:
    return report(simulation_document())


def specs(text: str) -> dict[str, Any]:
    return json.loads(Elements(text).scripts[0])


def test_nothing_refers_to_another_file_or_host(text: str) -> None:
    loads = [
        (tag, name, value)
        for tag, attributes in Elements(text).found
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "data", "action", "poster"}
    ]
    assert {value for _, _, value in loads} <= {"data:,", "#stream0", "#stream1"}
    policy = next(a for tag, a in Elements(text).found if tag == "meta" and "http-equiv" in a)["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"https?:", policy)
    # What is drawn holds its data, and names no address.
    assert "http" not in json.dumps(specs(text))
    assert '"url"' not in json.dumps(specs(text))


def test_every_chart_has_its_place_and_every_place_its_chart(text: str) -> None:
    places = {a["id"] for tag, a in Elements(text).found if tag == "div" and a.get("class") == "chart"}
    assert places == set(specs(text))
    # Per stream: 2 models x (2 latencies, queue, goodput), and the nodes.
    assert len(places) == 2 * (2 * 4 + 1)


def test_slo_percentile_and_verdict_are_in_words_not_in_colour_alone(text: str) -> None:
    charts = specs(text)
    assert charts["s0m0prefill"]["title"]["subtitle"] == "SLO 1,200 ms: 97.00 % within (99 %), MISSED"
    assert charts["s0m0decode"]["title"]["subtitle"] == "SLO 60 ms: 100.00 % within (99 %), kept"
    assert "✕ missed" in text
    assert "✓ kept" in text
    assert "1 of 4 workloads miss their SLO" in text


def test_the_curve_ends_at_the_share_that_ever_got_through(text: str) -> None:
    points = specs(text)["s0m0prefill"]["layer"][2]["data"]["values"]
    assert points[-1]["share"] == pytest.approx(0.97)
    at_slo = [point["share"] for point in points if point["ms"] == pytest.approx(1200)]
    assert at_slo == [pytest.approx(0.97)]


def test_text_of_a_name_cannot_become_markup() -> None:
    document = simulation_document()
    document["scenario_id"] = "</script><script>alert(1)</script>"
    for stream in document["streams"]:
        stream["nodes"][0]["instance"] = "</script><img src=x onerror=alert(1)>"
    made = Elements(report(document))
    assert len(made.scripts) == 3
    assert not [attributes for tag, attributes in made.found if tag == "img"]


def test_a_model_without_requests_and_idle_nodes_are_drawn_all_the_same() -> None:
    document = simulation_document()
    for row in document["streams"][0]["workloads"][2:]:
        row.update(requests=0, met=0, attained=None, is_met=None, latency_ms={"p50": None, "p95": None, "p99": None})
    document["streams"][0]["models"][1].update(requests=0, met=0, attained=None, attained_worst=None)
    text = report(document)
    assert "no requests" in text
    assert set(specs(text)) >= {"s0m1queue", "s0m1good"}
    assert "s0m1prefill" not in specs(text)


def test_scripts_of_a_page_cannot_be_ended_by_their_data() -> None:
    made = Elements(page("t", "", {"a": {"title": "</script>"}}))
    assert json.loads(made.scripts[0]) == {"a": {"title": "</script>"}}


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(40, 2500, [100, 1000]), (100, 1100, [100, 200, 500, 1000]), (25, 70, [30, 40, 50, 60]), (1, 1e6, [1, 10, 100])],
)
def test_ticks_are_round_and_few(low: float, high: float, values: list[float]) -> None:
    made = _round_values(low, high)
    assert set(values) <= set(made)
    assert all(low <= value <= high for value in made)
    assert len(made) <= 7


def test_a_share_is_rounded_down() -> None:
    assert [floor_percent(value) for value in (1.0, 0.99999, 0.0)] == ["100.00 %", "99.99 %", "0.00 %"]


def test_a_change_of_plans_is_told_with_the_share_in_time_during_it() -> None:
    document = simulation_document()
    document["change"] = {
        "from_plan_version": 0, "from_cost_usd_per_h": 40.0, "switch_minute": 3.0, "startup_minutes": 5.0,
        "settle_minutes": 2.0,
    }  # fmt: skip
    stream = document["streams"][0]
    stream["change"] = [{**stream["models"][0], "requests": 50, "attained": 0.5}]
    text = report(document)
    assert "plan 1 is asked for at minute 3, its new instances are up 5 minutes later" in text
    assert text.count("; 50.00 % of 50 during the change") == 1
