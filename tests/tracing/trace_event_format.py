"""Checks a file against the Trace Event Format as Perfetto's importer and chrome://tracing read it, strictly.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and Perfetto's
`src/trace_processor/plugins/json_importer`.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NoReturn

_SCOPES = {"g", "p", "t"}
_METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
_MAX_EXACT = 1 << 53  # of a number in JavaScript


def read_valid_events(path: Path) -> list[dict[str, Any]]:
    """The events of a file; AssertionError for what a viewer would refuse, drop or draw at the wrong place."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_constant=_refuse)
    assert document.keys() == {"displayTimeUnit", "traceEvents"}
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        _check_fields(event)
    _check_flows(events)
    return events


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def _check_fields(event: dict[str, Any]) -> None:
    assert all(_is_number(event[key], above) for key, above in (("pid", 1), ("tid", 0))), event
    assert isinstance(event.get("args", {}), dict), event
    if event["ph"] == "M":
        assert isinstance(event["args"][_METADATA[event["name"]]], str | int), event
        return
    assert _is_number(event["ts"], -_MAX_EXACT), event
    if event["ph"] == "X":
        assert all((event["name"], _is_number(event["dur"], 0))), event
    elif event["ph"] == "i":
        assert event.get("s", "t") in _SCOPES, event
    elif event["ph"] in "stf":
        assert all((isinstance(event["id"], int), _is_number(event["id"], 0), event["cat"], event["name"])), event
    else:
        assert event["ph"] in "CBE", event


def _is_number(value: object, lowest: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and lowest <= value < _MAX_EXACT


def _check_flows(events: list[dict[str, Any]]) -> None:
    """Each flow begins once, then goes on, then ends, forward in time; those between ranks are within an event that
    stands before them in the file, the others within a rank."""
    slices: dict[tuple[int, int, float], dict[str, Any]] = {}
    flows: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"], event["ts"]] = event
        elif event["ph"] in ("s", "t", "f"):
            flows[event["cat"], event["name"], event["id"]].append(event)
            if event["cat"] == "collective":
                assert (event["pid"], event["tid"], event["ts"]) in slices, event
    for (category, _, _), members in flows.items():
        ranks = {(member["pid"] - 1) // 1000 for member in members}
        if category != "collective":
            assert len(ranks) == 1, members
            continue
        phases = "".join(
            member["ph"] for member in sorted(members, key=lambda one: (one["ts"], "stf".index(one["ph"])))
        )
        assert phases == "s" + "t" * (len(members) - 2) + "f", members
        assert len(ranks) == len(members), members
        assert all(member.get("bp") == "e" for member in members if member["ph"] == "f"), members


def arrows(events: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    """By name of a flow between ranks, the ranks in the order of its arrows."""
    found: dict[tuple[str, int], list[tuple[float, str, int]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "collective":
            found[event["name"], event["id"]].append((event["ts"], event["ph"], (event["pid"] - 1) // 1000))
    by_name: dict[str, list[list[int]]] = defaultdict(list)
    for (name, _), members in sorted(found.items()):
        ordered = sorted(members, key=lambda one: (one[0], "stf".index(one[1])))
        by_name[name].append([rank for _, _, rank in ordered])
    return dict(by_name)
