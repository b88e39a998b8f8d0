"""Rows put together: medians of repetitions, and tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_DETAILS = (
    ("bound, s", "create_to_bound_s"),
    ("Ready, s", "create_to_ready_s"),
    ("own CPU, s", "operator_cpu_s"),
    ("own memory, MiB", "operator_rss_mib"),
    ("own writes a pod", "writes_per_pod"),
    ("partial gangs", "partial_gangs"),
)


def medians(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each case and scheduler, in the order of their first rows.

    Of each number the median; of what is not a number, what the last row says. Failed rows are only counted.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["scheduler"]), []).append(row)
    return [_merged(some) for some in groups.values()]


def failed(row: Row) -> bool:
    """Whether there is an error in place of a measurement."""
    return "error" in row.get("notes", {})


def figure(row: Row) -> str:
    """What a case is about, in one cell."""
    if failed(row):
        return "failed"
    notes = row.get("notes", {})
    if row["case"] == "first-decision":
        return _number(notes.get("decision_s"))
    if row["case"] == "wait":
        partly = f" ({notes['pods_bound']:g} pods bound)" if notes.get("pods_bound") else ""
        return f"{_number(row['operator_cpu_s'])} CPU{partly}"
    return _number(row["create_to_bound_s"])


def overview(rows: Sequence[Row], gang_schedulers: Collection[str] = ()) -> str:
    """A case a line, a scheduler a column; seconds. With Muster's share of the best of the gang schedulers."""
    cases, schedulers = (list(dict.fromkeys(row[key] for row in rows)) for key in ("case", "scheduler"))
    found = {(row["case"], row["scheduler"]): row for row in rows}
    compared = "muster" in schedulers and any(name in gang_schedulers for name in schedulers)
    head = ["case", *schedulers, *(["muster : best gang scheduler"] if compared else ())]
    lines = []
    for case in cases:
        cells = [figure(found[case, name]) if (case, name) in found else "" for name in schedulers]
        if compared:
            cells.append(_share([found[case, name] for name in schedulers if (case, name) in found], gang_schedulers))
        lines.append([case, *cells])
    return _markdown(head, lines)


def details(rows: Sequence[Row]) -> str:
    """A line for each case and scheduler, with what it cost. Own: without kube-scheduler, unless it is that itself."""
    head = ["case", "scheduler", *(name for name, _ in _DETAILS), "all programs' CPU, s", "rate", "message"]
    lines = []
    for row in rows:
        if failed(row):
            lines.append([row["case"], row["scheduler"], *([""] * (len(head) - 3)), f"failed: {row['notes']['error']}"])
            continue
        cells = [_number(row[key]) for _, key in _DETAILS]
        together = _number(sum(row["cpu_s"].values()))
        message = str(row["notes"].get("message", ""))
        lines.append([row["case"], row["scheduler"], *cells, together, f"{row['qps']}/{row['burst']}", message])
    return _markdown(head, lines)


def _merged(rows: Sequence[Row]) -> dict[str, Any]:
    good = [row for row in rows if not failed(row)]
    counts = {"repetitions": len(good), "failed": len(rows) - len(good)}
    return _median(good or rows[-1:]) | counts


def _median(values: Sequence[Row]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, last in values[-1].items():
        every = [one[key] for one in values if key in one]
        numbers = [value for value in every if isinstance(value, int | float) and not isinstance(value, bool)]
        if isinstance(last, Mapping):
            merged[key] = _median([value for value in every if isinstance(value, Mapping)])
        elif numbers:
            middle = statistics.median(numbers)
            whole = middle == int(middle) and all(isinstance(value, int) for value in numbers)
            merged[key] = int(middle) if whole else round(middle, 3)
        else:
            merged[key] = last
    return merged


def _share(rows: Sequence[Row], gang_schedulers: Collection[str]) -> str:
    muster_s = [_seconds(row) for row in rows if row["scheduler"] == "muster"]
    others_s = [_seconds(row) for row in rows if row["scheduler"] in gang_schedulers]
    best = min((value for value in others_s if value is not None), default=None)
    if not muster_s or muster_s[0] is None or not best:
        return ""
    return f"{muster_s[0] / best:.2f}"


def _seconds(row: Row) -> float | None:
    if failed(row):
        return None
    if row["case"] == "wait":
        return float(row["operator_cpu_s"])
    found = row["notes"].get("decision_s") if row["case"] == "first-decision" else row["create_to_bound_s"]
    return None if found is None else float(found)


def _number(value: float | None) -> str:
    """Three digits that count, and no more than two behind the point."""
    if value is None:
        return ""
    if value == int(value):
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
