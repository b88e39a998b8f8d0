"""Which label of a node selector no node has, and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.model import NodeInfo
from muster.text.suggest import closest_match

_MAX_COMPARED = 200  # of a label's values: host names are as many as nodes
_MAX_SHOWN = 4


def selector_mismatch(selector: Iterable[tuple[str, str]], nodes: Sequence[NodeInfo]) -> str:
    """`no node of it has the label gpu=h20; did you mean gpu=h200?` without the beginning: what follows "has"; ""
    where a node has all labels of the selector."""
    wanted = list(selector)
    for key, value in wanted:
        values = _first_distinct(node.labels[key] for node in nodes if key in node.labels)
        if not values:
            known = _first_distinct(name for node in nodes[:_MAX_COMPARED] for name in node.labels)
            near = closest_match(key, known)
            return f"the label {key} of its nodeSelector" + (f"; did you mean {near!r}?" if near else "")
        if not any(node.labels.get(key) == value for node in nodes):
            near = closest_match(value, values)
            shown = ", ".join(sorted(values)[:_MAX_SHOWN]) + (", ..." if len(values) > _MAX_SHOWN else "")
            right = f"did you mean {near!r}?" if near else f"nodes have {shown}"
            return f"the label {key}={value} of its nodeSelector; {right}"
    if all(any(node.labels.get(key) != value for key, value in wanted) for node in nodes):
        return "all labels of its nodeSelector: " + ", ".join(f"{key}={value}" for key, value in wanted)
    return ""


def _first_distinct(names: Iterable[str]) -> list[str]:
    """The first distinct names, as many as are compared."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) == _MAX_COMPARED:
            break
    return list(found)
