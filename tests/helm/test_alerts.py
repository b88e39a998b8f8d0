"""The expressions of alerts, evaluated on what the operator exports when such a thing happens."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.helm.conftest import Render
from tests.operator.api_server import NOW, OperatorHarness, Server, serve

from muster.kube.async_client import AsyncKubeClient
from muster_operator.metrics import OperatorMetrics

LABELS = frozenset[tuple[str, str]]


def firing(expression: str, exposition: bytes) -> set[LABELS]:
    """The label sets for which `max|sum [by (LABEL)] (METRIC) < or > NUMBER` holds, of one scrape."""
    form = re.fullmatch(r"(max|sum) ?(?:by \((\w+)\) )?\((\w+)\) ([<>]) (\d+)", expression)
    assert form, f"not an expression that this function evaluates: {expression}"
    how, label, metric, sign, bound = form.groups()
    groups: dict[LABELS, list[float]] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples if family.name == metric else ():
            key = frozenset({(label, sample.labels[label])}) if label else frozenset()
            groups.setdefault(key, []).append(sample.value)
    values = {key: max(found) if how == "max" else sum(found) for key, found in groups.items()}
    return {key for key, value in values.items() if (value > float(bound) if sign == ">" else value < float(bound))}


@pytest.fixture(scope="module")
def expressions(render: Render) -> dict[str, str]:
    rules = [one for one in render("prometheusRule.enabled=true") if one["kind"] == "PrometheusRule"]
    return {alert["alert"]: alert["expr"] for alert in rules[0]["spec"]["groups"][0]["rules"]}


def test_nodes_that_all_jobs_avoid_raise_an_alert_as_long_as_they_do(expressions: dict[str, str]) -> None:
    expression = expressions["MusterNodesAvoided"]

    def rejected(name: str) -> dict[str, object]:
        blame = {"node": "n1", "at": NOW, "until": "2026-11-21T11:00:05Z", "reason": "PodRejected"}
        status = {"observedGeneration": 1, "phase": "Pending", "submittedAt": NOW, "rejections": 1}
        return {**status, "blamedNodes": [blame]}

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("a", 5, rejected("a"))
        await harness.run_cycle()
        assert firing(expression, harness.metrics.exposition()) == set()
        harness.submit("b", 6, rejected("b"))
        await harness.run_cycle()
        assert firing(expression, harness.metrics.exposition()) == {frozenset()}
        harness.leader._avoided_nodes.reset()
        assert firing(expression, harness.metrics.exposition()) == set()

    serve(Server(), scenario)


def test_refused_statuses_raise_an_alert_for_each_change_as_long_as_they_are_refused(
    expressions: dict[str, str],
) -> None:
    metrics, expression = OperatorMetrics(), expressions["MusterStatusRefused"]
    assert firing(expression, metrics.exposition()) == set()
    metrics.set_refused_statuses({"Eviction": 2, "Admission": 1})
    assert firing(expression, metrics.exposition()) == {
        frozenset({("change", "Eviction")}),
        frozenset({("change", "Admission")}),
    }
    metrics.set_refused_statuses({})
    assert firing(expression, metrics.exposition()) == set()


def test_the_evaluation_of_expressions_groups_and_compares() -> None:
    scrape = b'a{x="1",y="1"} 2\na{x="1",y="2"} 3\na{x="2",y="1"} 1\n'
    assert firing("sum by (x) (a) > 4", scrape) == {frozenset({("x", "1")})}
    assert firing("max(a) > 3", scrape) == set()
    assert firing("max(a) < 4", scrape) == {frozenset()}
