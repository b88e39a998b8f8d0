"""The files of a capture in a run folder, which untrusted programs write to (`muster.tracing.shared_folder`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from muster.capture.protocol import (
    MAX_WORLD_SIZE,
    CaptureObservation,
    CaptureRequest,
    RankAnswer,
    StoredTrace,
    parse_answer,
    parse_report,
)
from muster.tracing.collect.heartbeat_server import read_json_object
from muster.tracing.runs.trace_files import read_manifests
from muster.tracing.shared_folder import SharedFolder

CAPTURE = "capture"
REQUEST = f"{CAPTURE}/request.json"
_RANK_FILE = re.compile(r"(?P<prefix>[a-z]*-?)rank-(?P<rank>\d{1,6})\.json")


def observe(run: SharedFolder, now: float) -> CaptureObservation:
    """What the run folder contains at this time of the ranks' clock. Files that cannot be read are left out."""
    reports = tuple(
        report for fields in rank_objects(run, "heartbeats") if (report := parse_report(fields, now)) is not None
    )
    return CaptureObservation(reports=reports, answers=read_answers(run), traces=stored_traces(run))


def read_answers(run: SharedFolder) -> tuple[RankAnswer, ...]:
    """The newest answer of each rank."""
    return tuple(answer for fields in rank_objects(run, CAPTURE) if (answer := parse_answer(fields)) is not None)


def stored_traces(run: SharedFolder) -> tuple[StoredTrace, ...]:
    """The traces and memory snapshots in the manifests of all collectors."""
    return tuple(
        StoredTrace(
            file=entry.file,
            rank=entry.rank,
            attempt=entry.attempt,
            start_step=entry.start_step,
            end_step=entry.end_step,
            is_valid=entry.status != "corrupt",
            reason=(entry.reason or "")[:500],
            is_snapshot=is_snapshot,
        )
        for manifest in read_manifests(run)
        for is_snapshot, entries in ((False, manifest.traces), (True, manifest.snapshots))
        for entry in entries
    )


def write_request(run: SharedFolder, request: CaptureRequest, owner: str) -> bool:
    """Replace the request, unless the file has it already; returns whether it was written. Raises OSError."""
    return write_if_changed(run, REQUEST, msgspec.json.encode(request), owner)


def write_if_changed(run: SharedFolder, name: str, content: bytes, owner: str) -> bool:
    """Replace a file of the folder of captures, unless it has this content; returns whether it was written. Raises
    OSError."""
    try:
        with run.open(name) as file:
            if file.read(len(content) + 1) == content:
                return False
    except FileNotFoundError:
        run.make_folder(CAPTURE)
    except OSError:
        run.remove(name)  # not a regular file
    run.write(name, content, owner=owner)
    return True


def rank_objects(run: SharedFolder, folder: str, prefix: str = "") -> Iterator[dict[str, Any]]:
    """The JSON objects of the files `<prefix>rank-<r>.json` of a folder, whose rank is that of the name."""
    try:
        names = run.file_names(folder)
    except OSError:
        return
    for name in names:
        match = _RANK_FILE.fullmatch(name)
        if match is None or match["prefix"] != prefix or int(match["rank"]) >= MAX_WORLD_SIZE:
            continue
        fields = read_json_object(run, f"{folder}/{name}", [])
        if fields is not None and fields.get("rank") == int(match["rank"]):
            yield fields
