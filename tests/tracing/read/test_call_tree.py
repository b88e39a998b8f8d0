"""The call tree of a thread is built a part at a time, and is the same in any parts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.tracing.kineto import Event, write_trace

import muster.tracing.read.events
from muster.tracing.read.events import CallTree, build_call_tree
from muster.tracing.reader import read_trace


def random_calls(folder: Path) -> Path:
    """Nested calls, some of which end after their parent, and some at the instant at which the next one begins."""
    choose = random.Random(7)
    events = []
    for root in range(300):
        at = 100.0 * root
        events.append(Event("root", at, choose.choice((60, 100, 100))))
        for _ in range(choose.randrange(6)):
            begin = at + choose.randrange(60)
            events.append(Event("call", begin, choose.randrange(1, 50)))
    return write_trace(folder / "0.json", events)


def columns(tree: CallTree) -> list[list[int]]:
    found = (tree.order, tree.parent, tree.segments.start, tree.segments.end, tree.innermost)
    return [column.tolist() for column in found]


def test_the_tree_does_not_depend_on_the_size_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = read_trace(random_calls(tmp_path)).events
    monkeypatch.setattr(muster.tracing.read.events, "TREE_PART", 1 << 30)
    whole = build_call_tree(events)
    for size in (1, 7, 100):
        monkeypatch.setattr(muster.tracing.read.events, "TREE_PART", size)
        assert columns(build_call_tree(events)) == columns(whole)
    assert (np.diff(whole.segments.start) >= 0).all()
    busy = whole.segments.end - whole.segments.start
    assert whole.self_time().sum() == busy[whole.innermost >= 0].sum()


def test_no_events_have_an_empty_tree(tmp_path: Path) -> None:
    trace = read_trace(random_calls(tmp_path))
    tree = build_call_tree(trace.events[trace.events.start < 0])
    assert len(tree.order) == len(tree.segments) == len(tree.innermost) == 0
