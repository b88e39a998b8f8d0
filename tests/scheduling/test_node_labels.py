"""Which nodes match the expressions of a pod: as one by one, and without reading each node for each expression."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.snapshots import rack

from muster.model import MatchExpression, NodeInfo
from muster.scheduling.node_labels import NodeLabels

KEYS = ("zone", "size", "gone", "metadata.name")
VALUES = ("a", "b", "7", "07", "-3", "1_0", "12345678901234567890", "r1-0")


def labelled(draw: Random, count: int) -> list[NodeInfo]:
    def labels() -> dict[str, str]:
        return {key: draw.choice(VALUES) for key in ("zone", "size") if draw.random() < 0.7}

    return [replace(node, labels=labels()) for node in rack("r1", count)]


def expression(draw: Random) -> MatchExpression:
    operator: Any = draw.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    values = tuple(draw.choices(VALUES, k=1 if operator in ("Gt", "Lt") else draw.randint(1, 3)))
    return MatchExpression(draw.choice(KEYS), operator, values)


def number(text: str | None) -> int | None:
    if text is None or "_" in text or not text.lstrip("-").isdigit():
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def holds(node: NodeInfo, line: MatchExpression) -> bool:
    """Kubernetes' rules, for one node and one expression."""
    value = node.name if line.key == "metadata.name" else node.labels.get(line.key)
    match line.operator:
        case "In":
            return value in line.values
        case "NotIn":
            return value not in line.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    have, bound = number(value), number(line.values[0])
    if have is None or bound is None:
        return False
    return have > bound if line.operator == "Gt" else have < bound


@given(st.integers(0, 1 << 32))
def test_a_node_matches_if_all_expressions_of_one_term_hold(seed: int) -> None:
    draw = Random(seed)
    nodes = labelled(draw, draw.randint(1, 6))
    terms = [[expression(draw) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 3))]
    selector = [(draw.choice(KEYS[:3]), draw.choice(VALUES)) for _ in range(draw.randint(0, 2))]
    labels = NodeLabels(nodes)
    expected = [any(all(holds(node, line) for line in term) for term in terms) for node in nodes]
    found = labels.matching(terms)
    assert [bool(found)] * len(nodes) == expected if isinstance(found, bool) else list(found) == expected
    selected = labels.having(selector)
    wanted = [all(node.labels.get(key) == value for key, value in selector) for node in nodes]
    assert [bool(selected)] * len(nodes) == wanted if isinstance(selected, bool) else list(selected) == wanted


class CountedLabels(dict[str, str]):
    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        CountedLabels.reads += 1
        return super().get(key, default)


def test_the_labels_of_a_node_are_read_once_for_thousands_of_expressions() -> None:
    """One template may have so many: read each, a hundred jobs of one tenant took a plan minutes."""
    nodes = [replace(node, labels=CountedLabels(zone="a")) for node in rack("r1", 50)]
    CountedLabels.reads = 0
    labels = NodeLabels(nodes)
    absent = [[MatchExpression(f"key-{number}", "In", ("x",))] for number in range(2000)]
    present = [[MatchExpression("zone", "In", (f"v{number}",))] for number in range(2000)]
    for terms in (absent, present, [[MatchExpression("zone", "Gt", (str(number),))] for number in range(2000)]):
        found = labels.matching(terms)
        assert not (found if isinstance(found, bool) else found.any())
    assert CountedLabels.reads == len(nodes)
