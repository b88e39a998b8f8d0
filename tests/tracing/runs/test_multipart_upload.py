"""Who writes the run folder does not decide which uploads a collector continues or aborts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.tracing.collect.spool_collector import Collector, CollectorOptions, start_collector
from muster.tracing.runs.multipart_upload import PART_BYTES, UploadState, UploadStates, upload_in_parts
from muster.tracing.shared_folder import SharedFolder

NAME, PLACE = "traces/rank-0.json.gz", "bucket/team-a/job/traces/rank-0.json.gz"


class S3:
    """The calls of s3fs that an upload makes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **arguments: Any) -> dict[str, Any]:
        self.calls.append((method, arguments))
        return {"UploadId": "new", "ETag": "e"}


def upload(states: UploadStates) -> list[tuple[str, Any]]:
    store = S3()
    upload_in_parts(store, PLACE, io.BytesIO(b"x"), states, NAME, sha256="s")
    return [(method, arguments.get("UploadId")) for method, arguments in store.calls]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (PLACE, [("abort_multipart_upload", "theirs")]),  # of another content of the same file
        ("bucket/team-b/job/traces/rank-0.json.gz", []),
    ],
)
def test_only_uploads_of_the_same_file_are_aborted(tmp_path: Path, place: str, expected: list[tuple[str, str]]) -> None:
    states = UploadStates(SharedFolder(tmp_path), "o")
    states.save(NAME, UploadState(place, "theirs", "another", PART_BYTES))
    begun = [("create_multipart_upload", None), ("upload_part", "new"), ("complete_multipart_upload", "new")]
    assert upload(states) == [*expected, *begun]
    assert not list(tmp_path.iterdir())


def started(tmp_path: Path, state_dir: Path | None) -> Collector:
    options = CollectorOptions(tmp_path / "run", "trainer", 0, store="memory://store", state_dir=state_dir)
    return start_collector(options, 0.0)


def test_records_of_uploads_in_the_run_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "run" / "traces").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    forged = msgspec.json.encode(UploadState(PLACE, "theirs", "another", PART_BYTES))
    (tmp_path / "run" / "traces" / ".rank-0.json.gz.upload").write_bytes(forged)
    (tmp_path / "run" / "traces.rank-0.json.gz.upload").write_bytes(forged)
    assert started(tmp_path, None)._open_store()._states is None
    states = started(tmp_path, tmp_path / "state")._open_store()._states
    assert states is not None
    assert "abort_multipart_upload" not in [method for method, _ in upload(states)]
