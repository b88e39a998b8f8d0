"""Finds the label of a nodeSelector that no node has, and the closest existing one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.model import NodeInfo
from muster.text.suggest import closest_match

_MAX_COMPARED = 200  # values of a label; a host name label has as many as there are nodes
_MAX_SHOWN = 4


def selector_mismatch(selector: Iterable[tuple[str, str]], nodes: Sequence[NodeInfo]) -> str:
    """The end of a message that begins with "no node has": `the label gpu=h20 of its nodeSelector; did you mean
    'h200'?`. "" if a node has all labels of the selector."""
    wanted = list(selector)
    for key, value in wanted:
        values = _first_distinct(node.labels[key] for node in nodes if key in node.labels)
        if not values:
            candidates = _first_distinct(name for node in nodes[:_MAX_COMPARED] for name in node.labels)
            closest = closest_match(key, candidates)
            return f"the label {key} of its nodeSelector" + (f"; did you mean {closest!r}?" if closest else "")
        if not any(node.labels.get(key) == value for node in nodes):
            closest = closest_match(value, values)
            shown = ", ".join(sorted(values)[:_MAX_SHOWN]) + (", ..." if len(values) > _MAX_SHOWN else "")
            hint = f"did you mean {closest!r}?" if closest else f"nodes have {shown}"
            return f"the label {key}={value} of its nodeSelector; {hint}"
    if all(any(node.labels.get(key) != value for key, value in wanted) for node in nodes):
        return "all labels of its nodeSelector: " + ", ".join(f"{key}={value}" for key, value in wanted)
    return ""


def _first_distinct(names: Iterable[str]) -> list[str]:
    """The first _MAX_COMPARED distinct names."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) == _MAX_COMPARED:
            break
    return list(found)
