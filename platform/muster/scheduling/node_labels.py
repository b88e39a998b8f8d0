"""Which nodes have labels that match expressions.

Users write the expressions, thousands in one template, and there may be ten thousand nodes: an expression is evaluated
once for each value that its label has on some node, and one of a label that no node has for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from muster.model import MatchExpression, NodeInfo

IntArray = npt.NDArray[np.int64]
Rows: TypeAlias = "npt.NDArray[np.bool_] | bool"
"""For each node, or the same for all of them."""
_NAME = "metadata.name"  # the key of matchFields
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class _Column:
    """One label of all nodes: the index of each node's value, which is None without the label."""

    index: dict[str | None, int]  # by value
    rows: IntArray
    numbers: IntArray  # of the values; those that are no numbers are not `is_number`
    is_number: npt.NDArray[np.bool_]

    def equal(self, value: str | None) -> Rows:
        """The nodes with this value."""
        index = self.index.get(value)
        return False if index is None else self.rows == index

    def among(self, values: Sequence[str]) -> Rows:
        """The nodes with one of these values."""
        if len(values) == 1:
            return self.equal(values[0])
        known = [index for value in values if (index := self.index.get(value)) is not None]
        if not known:
            return False
        wanted = np.zeros(len(self.index), dtype=np.bool_)
        wanted[known] = True
        return wanted[self.rows]


@dataclass
class NodeLabels:
    """The labels of some nodes, read when an expression asks for them."""

    nodes: Sequence[NodeInfo]
    _columns: dict[str, _Column] = field(default_factory=dict)

    def matching(self, terms: Iterable[Sequence[MatchExpression]]) -> Rows:
        """Nodes for which all expressions of one of the terms hold."""
        found: Rows = False
        for term in terms:
            rows: Rows = True
            for line in term:
                rows = rows & self._matches(line)
                if rows is False:
                    break
            found = found | rows
        return found

    def having(self, selector: Iterable[tuple[str, str]]) -> Rows:
        """Nodes with all of these labels."""
        rows: Rows = True
        for key, value in selector:
            if key not in self._keys:
                return False
            rows = rows & self._column(key).equal(value)
        return rows

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset[str]().union(*(node.labels for node in self.nodes))

    def _column(self, key: str) -> _Column:
        column = self._columns.get(key)
        if column is None:
            texts = [node.name if key == _NAME else node.labels.get(key) for node in self.nodes]
            index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            rows = np.fromiter((index[text] for text in texts), np.int64, len(texts))
            numbers = [_integer(text) for text in index]
            column = self._columns[key] = _Column(
                index,
                rows,
                np.array([number or 0 for number in numbers], dtype=np.int64),
                np.array([number is not None for number in numbers], dtype=np.bool_),
            )
        return column

    def _matches(self, line: MatchExpression) -> Rows:
        """One expression, by Kubernetes' rules."""
        if line.key != _NAME and line.key not in self._keys:
            return line.operator in ("NotIn", "DoesNotExist")
        column = self._column(line.key)
        match line.operator:
            case "In":
                return column.among(line.values)
            case "NotIn":
                return _not(column.among(line.values))
            case "Exists":
                return _not(column.equal(None))
            case "DoesNotExist":
                return column.equal(None)
            case "Gt" | "Lt":
                bound = _integer(line.values[0]) if len(line.values) == 1 else None
                if bound is None:
                    return False
                holds = column.numbers > bound if line.operator == "Gt" else column.numbers < bound
                return (holds & column.is_number)[column.rows]


def _not(rows: Rows) -> Rows:
    return not rows if isinstance(rows, bool) else ~rows


def _integer(text: str | None) -> int | None:
    """A number as Kubernetes reads it: 64 bits."""
    if text is None or len(text) > 20 or not text.removeprefix("-").isdigit() or not text.isascii():
        return None
    number = int(text)
    return number if number in _INT64 else None
