"""How each framework marks a complete checkpoint, and where its step can be read. Nothing is unpickled.

torch.distributed.checkpoint, TorchTitan   `.metadata`, which its coordinator writes last
Transformers                               `checkpoint-N/trainer_state.json`, complete JSON
Lightning                                  `*.ckpt`: a ZIP archive with its end; or a folder, as the two around it
DeepSpeed                                  `latest` names a folder, after all ranks have written
Megatron                                   `latest_checkpointed_iteration.txt` names a folder, likewise
Accelerate                                 `random_states_R.pkl` of every rank, and the folder does not change
"""

from __future__ import annotations

import json
import math
import os
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from muster_components.launch.checkpoints.folder import Folder

MAX_STATE_BYTES = 16 << 20
"""Of a `trainer_state.json`, which has a line for each time that something was logged."""
_MAX_STEP = 2**53
_HEAD_BYTES = 4096
_ZIP_END_BYTES = 22
_INCOMPLETE = "checkpoint-is-incomplete.txt"  # of Transformers, while it saves on SIGTERM
_STEP = re.compile(r"(?:step|iteration|iter|checkpoint|ckpt)[-_=]?(\d{1,15})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_STEP_ONLY = re.compile(r"step[-_=]?(\d{1,15})", re.ASCII)
_TRAINER_FOLDER = re.compile(r"checkpoint-(\d{1,15})", re.ASCII)
_LEAF = re.compile(r"(?:global_?step|step|iter|checkpoint)[-_]?\d{1,15}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_.=+-]{1,200}")
_RANDOM_STATE = re.compile(r"random_states_(\d{1,7})\.pkl", re.ASCII)
_CUSTOM_STATE = re.compile(r"custom_checkpoint_\d{1,4}\.pkl", re.ASCII)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A complete checkpoint. `path`: its file or folder, relative to the folder that is searched; `at`: when it was
    completed, in Unix seconds by the file system; `step`, `steps` (the last one) and `loss` are None if unknown."""

    format: str
    path: str
    at: float
    step: int | None = None
    steps: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """What seems to be a checkpoint. `read` takes most of the time, and has the same result while `stamp` is the same;
    it returns None if the checkpoint is incomplete. `must_rest`: it is complete once `stamp` is the same twice."""

    path: str
    stamp: tuple[object, ...]
    at: float
    read: Callable[[], FoundCheckpoint | None]
    must_rest: bool = False


def is_leaf(name: str) -> bool:
    """Whether a folder of this name is a checkpoint itself, so that those in it are parts of it."""
    return _LEAF.fullmatch(name) is not None


def candidates(folder: Folder, world_size: int) -> list[CheckpointMark]:
    """The checkpoints that this folder is, or names, or that are files in it."""
    found = [
        _megatron(folder),
        _deepspeed(folder),
        _trainer(folder),
        _distributed(folder),
        _accelerate(folder, world_size),
        *(_lightning(folder, name) for name in folder.files if name.endswith(".ckpt")),
    ]
    return [candidate for candidate in found if candidate is not None]


def _megatron(folder: Folder) -> CheckpointMark | None:
    def read() -> FoundCheckpoint | None:
        text = folder.read(mark, _HEAD_BYTES).decode(errors="replace").strip()
        if not _NUMBER.fullmatch(text):  # "release" is a converted model
            return None
        names = (f"iter_{int(text):07d}", f"global_step_{int(text)}")  # Megatron's, verl's
        name = next((name for name in names if name in folder.folders), None)
        return None if name is None else FoundCheckpoint("Megatron", _join(folder, name), at, int(text))

    mark = "latest_checkpointed_iteration.txt"
    if (status := folder.stat(mark)) is None:
        return None
    at = status.st_mtime
    return CheckpointMark(_join(folder, mark), _stamp(status), at, read)


def _deepspeed(folder: Folder) -> CheckpointMark | None:
    def read() -> FoundCheckpoint | None:
        tag = folder.read("latest", _HEAD_BYTES).decode(errors="replace").strip()
        if not _TAG.fullmatch(tag) or tag not in folder.folders:
            return None
        step = step_of(tag)
        return FoundCheckpoint("DeepSpeed", _join(folder, tag), at, step_of(folder.name) if step is None else step)

    if (status := folder.stat("latest")) is None:
        return None
    at = status.st_mtime
    return CheckpointMark(_join(folder, "latest"), _stamp(status), at, read)


def _trainer(folder: Folder) -> CheckpointMark | None:
    def read() -> FoundCheckpoint | None:
        text = folder.read("trainer_state.json", MAX_STATE_BYTES + 1)
        if len(text) > MAX_STATE_BYTES:
            is_closed = folder.read("trainer_state.json", 64, from_end=True).rstrip().endswith(b"}")
            return found() if is_closed else None
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(state, dict):
            return None
        return found(_count(state.get("global_step")), _count(state.get("max_steps")), _last_loss(state))

    def found(step: int | None = None, steps: int | None = None, loss: float | None = None) -> FoundCheckpoint:
        own = int(named[1]) if named is not None else None
        return FoundCheckpoint("Transformers", folder.path, at, own if step is None else step, steps or None, loss)

    named = _TRAINER_FOLDER.fullmatch(folder.name)
    status = folder.stat("trainer_state.json") if named is not None and _INCOMPLETE not in folder.files else None
    if status is None:
        return None
    at = status.st_mtime
    return CheckpointMark(folder.path, _stamp(status), at, read)


def _distributed(folder: Folder) -> CheckpointMark | None:
    status = folder.stat(".metadata")
    if status is None or status.st_size == 0 or _TRAINER_FOLDER.fullmatch(folder.name):
        return None
    found = FoundCheckpoint("torch.distributed.checkpoint", folder.path or ".", status.st_mtime, step_of(folder.name))
    return CheckpointMark(_join(folder, ".metadata"), _stamp(status), found.at, lambda: found)


def _lightning(folder: Folder, name: str) -> CheckpointMark | None:
    def read() -> FoundCheckpoint | None:
        if not _is_whole_archive(folder, name):
            return None
        step = pickled_count(folder.read(name, _HEAD_BYTES), frozenset({"global_step"}))
        return FoundCheckpoint("Lightning", _join(folder, name), at, step_of(name) if step is None else step)

    if (status := folder.stat(name)) is None:
        return None
    at = status.st_mtime
    return CheckpointMark(_join(folder, name), _stamp(status), at, read)


def _accelerate(folder: Folder, world_size: int) -> CheckpointMark | None:
    def read() -> FoundCheckpoint | None:
        pickles = sorted(name for name in statuses if name.endswith(".pkl"))
        if not all(_is_whole_archive(folder, name) for name in pickles):
            return None
        states = (folder.read(name, _HEAD_BYTES) for name in pickles if _CUSTOM_STATE.fullmatch(name))
        steps = (pickled_count(state, frozenset({"step", "global_step", "completed_steps"})) for state in states)
        named = _STEP_ONLY.fullmatch(folder.name)  # Accelerate's own names, checkpoint_N, count checkpoints
        step = int(named[1]) if named is not None else next((step for step in steps if step is not None), None)
        return FoundCheckpoint("Accelerate", folder.path or ".", at, step)

    ranks = {int(match[1]) for name in folder.files if (match := _RANDOM_STATE.fullmatch(name))}
    if not ranks.issuperset(range(world_size)):
        return None
    statuses = {name: status for name in folder.files if (status := folder.stat(name)) is not None}
    at = max(status.st_mtime for status in statuses.values())
    stamp = tuple((name, *_stamp(status)) for name, status in sorted(statuses.items()))
    return CheckpointMark(folder.path or ".", stamp, at, read, must_rest=True)


def step_of(name: str) -> int | None:
    """The step in a name such as `step-100`, `global_step100`, `iter_0000100`, `epoch=0-step=100.ckpt` or `100`."""
    match = _STEP_ONLY.search(name) or _STEP.search(name)
    text = match[1] if match is not None else name
    return int(text) if _NUMBER.fullmatch(text) else None


def pickled_count(archive: bytes, keys: frozenset[str]) -> int | None:
    """The integer of one of these keys in the first bytes of what torch.save wrote, read as a list of opcodes: nothing
    is unpickled. None if there is none."""
    if archive[:4] != b"PK\x03\x04" or len(archive) < 30:
        return None
    method, (name_bytes, extra_bytes) = struct.unpack_from("<H", archive, 8)[0], struct.unpack_from("<HH", archive, 26)
    name = archive[30 : 30 + name_bytes]
    if method != 0 or not name.endswith(b"data.pkl"):
        return None
    is_value = False
    try:
        for opcode, argument, _ in pickletools.genops(archive[30 + name_bytes + extra_bytes :]):
            if opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
                continue
            if is_value and isinstance(argument, int):
                return _count(argument)
            is_value = isinstance(argument, str) and "UNICODE" in opcode.name and argument in keys
    except (ValueError, IndexError, KeyError):  # the bytes end in the middle of it
        pass
    return None


def _is_whole_archive(folder: Folder, name: str) -> bool:
    """Whether a file begins and ends as what torch.save wrote."""
    end = folder.read(name, _ZIP_END_BYTES, from_end=True)
    return folder.read(name, 4) == b"PK\x03\x04" and end[:4] == b"PK\x05\x06" and len(end) == _ZIP_END_BYTES


def _last_loss(state: dict[str, Any]) -> float | None:
    """The newest training loss that Transformers logged."""
    history = state.get("log_history")
    for line in reversed(history if isinstance(history, list) else []):
        loss = line.get("loss") if isinstance(line, dict) else None
        if isinstance(loss, int | float) and not isinstance(loss, bool) and math.isfinite(loss):
            return float(loss)
    return None


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_STEP
    return value if is_count and isinstance(value, int) else None


def _join(folder: Folder, name: str) -> str:
    return f"{folder.path}/{name}" if folder.path else name


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino
