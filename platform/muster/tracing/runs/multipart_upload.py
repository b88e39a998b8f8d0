"""Uploads of large files to S3 in parts, which a restarted collector continues.

What has been uploaded is recorded after each part, so that credentials that may only put and get objects are enough. A
part that was sent and not recorded is sent again under its number, and replaces the first one. The record is in a
folder of the collector alone: who writes it decides which uploads the collector continues and aborts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from muster.tracing.shared_folder import SharedFolder

PART_BYTES = 16 << 20  # S3 allows 10,000 parts of at least 5 MiB
_MAX_STATE_BYTES = 1 << 20


class UploadState(msgspec.Struct, frozen=True):
    """An upload that has begun: its target, S3's id, the content's SHA-256, and the tags of the parts."""

    place: str
    upload_id: str
    sha256: str
    part_bytes: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadStates:
    """The states of uploads in a folder, by the name of the file in its run folder. Without one, an upload begins
    anew."""

    folder: SharedFolder
    owner: str

    def load(self, name: str) -> UploadState | None:
        """None also for a file that cannot be read."""
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(self.folder.read(_state_file(name), _MAX_STATE_BYTES), type=UploadState)
        return None

    def save(self, name: str, state: UploadState) -> None:
        """Best effort: on a full disk the upload goes on."""
        with suppress(OSError):
            self.folder.write(_state_file(name), msgspec.json.encode(state), owner=self.owner)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self.folder.remove(_state_file(name))


def _state_file(name: str) -> str:
    return f"{name.replace('/', '.')}.upload"


def upload_in_parts(
    filesystem: Any, place: str, source: IO[bytes], states: UploadStates, name: str, *, sha256: str
) -> None:
    """Upload an open file with this SHA-256 to `place` on an s3fs file system, or continue an upload of it.

    The object appears when it is complete. `name` is the file's in the run folder. Raises the errors of s3fs.
    """
    state = states.load(name)
    if state is not None and (state.place, state.sha256, state.part_bytes) == (place, sha256, PART_BYTES):
        try:
            _send(filesystem, source, state, states, name)
            return
        except FileNotFoundError:
            pass  # S3 has deleted the upload, or it was completed before this process was killed
    elif state is not None and state.place == place:
        with suppress(Exception):
            filesystem.call_s3("abort_multipart_upload", **_target(filesystem, state), UploadId=state.upload_id)
    bucket, key, _ = filesystem.split_path(place)
    begun = filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    state = UploadState(place, begun["UploadId"], sha256, PART_BYTES)
    states.save(name, state)
    _send(filesystem, source, state, states, name)


def _send(filesystem: Any, source: IO[bytes], state: UploadState, states: UploadStates, name: str) -> None:
    """Send the parts that are missing, then complete the upload. Raises FileNotFoundError for an unknown upload."""
    source.seek(len(state.tags) * state.part_bytes)
    where = {**_target(filesystem, state), "UploadId": state.upload_id}
    while block := source.read(state.part_bytes):
        sent = filesystem.call_s3("upload_part", **where, PartNumber=len(state.tags) + 1, Body=block)
        state = msgspec.structs.replace(state, tags=(*state.tags, sent["ETag"]))
        states.save(name, state)
    parts = [{"PartNumber": i, "ETag": tag} for i, tag in enumerate(state.tags, start=1)]
    filesystem.call_s3("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
    states.remove(name)


def _target(filesystem: Any, state: UploadState) -> dict[str, str]:
    bucket, key, _ = filesystem.split_path(state.place)
    return {"Bucket": bucket, "Key": key}
