"""The folder of checkpoints: complete ones, `latest`, and removal of old ones. Handles files only, no tensors.

    checkpoints/.step-00000040.attempt-1.tmp/    being written; never loaded
    checkpoints/step-00000040/                   complete: renamed once every rank has written its part
    checkpoints/step-00000040.2/                 the same step, reached again by a later attempt
    checkpoints/latest                           {"step", "attempt", "path", "at", "lineage"}
    checkpoints/lineage                          {"id"}: that of the checkpoints that count; absent: the id is empty

Folders are never replaced: a step that is reached again gets a new name, then `latest` is updated, then the older
folder is removed. So at any time the checkpoint named by `latest` exists and is complete.

A run that begins anew over the checkpoints of another one (`--resume never`) begins a lineage of its own: only its
checkpoints are candidates, and older ones stay as they are. Later attempts continue it. A process remembers its
lineage: a run that still writes when another begins anew in its folder saves nothing from then on.

A checkpoint contains `muster.json` with its attempt and lineage, and the fingerprint that a run must match to resume
from it. An attempt that was
superseded but still runs (on a partitioned node) must not move `latest` back: only an attempt at least as new as the
recorded one updates `latest` and removes old checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from muster_components.trainer.regular_files import encode_line, read_json

DESCRIPTION: Final = "muster.json"
LINEAGE: Final = "lineage"
_MAX_LATEST_BYTES: Final = 1 << 16
_MAX_DESCRIPTION_BYTES: Final = 64 << 20  # about 100 bytes per rank
_CHECKPOINT_NAME: Final = re.compile(r"step-(\d{8,})(?:\.([1-9]\d*))?")
_TEMPORARY_NAME: Final = re.compile(r"\.(?:step-\d{8,}(?:\.\d+)?|latest|lineage)\.attempt-(\d+)\.(?:tmp|old)")


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """The file `latest`: `path` is relative to the run folder."""

    step: int
    attempt: int
    path: str
    at: float
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    """A complete checkpoint from which a run may resume. `attempt` -1: unknown, since `muster.json` cannot be read."""

    step: int
    path: Path
    revision: int = 1  # 2 if its step was reached for the second time
    attempt: int = 0


@dataclass(slots=True)
class CheckpointStore:
    """The checkpoints of one run, for one attempt. `run`: an id that all attempts have in common, empty if unknown."""

    folder: Path
    attempt: int
    keep: int
    run: str = ""
    _lineage: str | None = field(default=None, init=False, repr=False, compare=False)  # None: not read yet

    def temporary_folder(self, step: int) -> Path:
        """The folder in which this attempt writes the checkpoint of `step`."""
        return self.folder / f".{_folder_name(step)}.attempt-{self.attempt}.tmp"

    def begin(self, step: int) -> Path | None:
        """Create an empty temporary folder, and remove incomplete checkpoints of earlier attempts. None if a newer
        attempt or another run owns the folder. Raises OSError, and ValueError as `lineage` does."""
        if not self._owns_folder():
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.remove_leftovers()
        temporary = self.temporary_folder(step)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return temporary

    def begin_lineage(self) -> None:
        """Ignore the present checkpoints from now on, in this and later attempts. Does nothing in a later attempt of
        the run that began the lineage. Raises OSError, and ValueError as `lineage` does."""
        if self.attempt > 0 and self.run in ("", self.lineage()):
            return
        own = self.run or secrets.token_hex(8)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace(LINEAGE, {"id": own})
        self._lineage = own

    def continue_lineage(self, lineage: str) -> None:
        """Continue this lineage, which ranks that have ended continued, even if the folder says another one by now."""
        self._lineage = lineage

    def lineage(self) -> str:
        """The id of the lineage that this process continues: what the folder said when it was first asked for. Raises
        ValueError if it cannot be read."""
        if self._lineage is None:
            self._lineage = self._recorded_lineage()
        return self._lineage

    def _recorded_lineage(self) -> str:
        try:
            return str(read_json(self.folder / LINEAGE, _MAX_LATEST_BYTES)["id"])
        except FileNotFoundError:
            return ""
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.folder / LINEAGE} cannot be read: {error}") from error

    def origin(self) -> dict[str, object]:
        """What a description says of the attempt that wrote it. Raises ValueError as `lineage` does."""
        return {"attempt": self.attempt, "lineage": self.lineage()}

    def publish(self, step: int, description: dict[str, object], at: float) -> bool:
        """Rename a complete checkpoint, update `latest`, remove old ones. False if a newer attempt or another run owns
        the folder. `description` contains `origin`.

        Raises OSError, and ValueError as `lineage` does; then `latest` is unchanged.
        """
        temporary, lineage = self.temporary_folder(step), self.lineage()
        if not self._owns_folder():
            shutil.rmtree(temporary, ignore_errors=True)
            return False
        _write_new(temporary / DESCRIPTION, json.dumps(description, indent=1).encode())
        _fsync(temporary)
        final = self._next_name(step)
        os.rename(temporary, final)
        _fsync(self.folder)
        latest = LatestCheckpoint(step, self.attempt, f"{self.folder.name}/{final.name}", at, lineage)
        self._replace("latest", asdict(latest))
        self.remove_leftovers()
        self._remove_old(step, lineage)
        return True

    def is_newer(self, step: int) -> bool:
        """Whether a checkpoint of `step` of this attempt is newer than `latest`. Raises ValueError, as `lineage`."""
        lineage = self.lineage()
        try:
            latest = self.latest()
        except ValueError:
            return True
        return latest is None or latest.lineage != lineage or (latest.attempt, latest.step) < (self.attempt, step)

    def discard(self, step: int) -> None:
        """Remove the incomplete checkpoint of `step`, to free space."""
        shutil.rmtree(self.temporary_folder(step), ignore_errors=True)

    def latest(self) -> LatestCheckpoint | None:
        """The content of `latest`; None if it is missing. Raises ValueError if it cannot be read."""
        try:
            value = read_json(self.folder / "latest", _MAX_LATEST_BYTES)
            return LatestCheckpoint(
                int(value["step"]),
                int(value["attempt"]),
                str(value["path"]),
                float(value["at"]),
                str(value.get("lineage", "")),
            )
        except FileNotFoundError:
            return None
        except (OSError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self.folder / 'latest'} cannot be read: {error}") from error

    def candidates(self) -> list[CheckpointCandidate]:
        """Complete checkpoints of the lineage in the order to try: that of `latest`, then those of the newest attempt,
        its newest first. Raises ValueError as `lineage` does."""
        found = self._complete_checkpoints(self.lineage())
        newest_first = sorted(found, key=lambda one: (one.attempt, *_age_key(one)), reverse=True)
        with contextlib.suppress(ValueError):
            latest = self.latest()
            if latest is not None:
                newest_first.sort(
                    key=lambda found: (found.path.name != Path(latest.path).name, found.step != latest.step)
                )
        return newest_first

    def remove_leftovers(self) -> None:
        """Remove incomplete folders and files of this and earlier attempts."""
        for entry in self._entries():
            match = _TEMPORARY_NAME.fullmatch(entry.name)
            if match and int(match[1]) <= self.attempt:
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    def _next_name(self, step: int) -> Path:
        """The folder of the next checkpoint of `step`: with a revision above all existing ones."""
        names = (_CHECKPOINT_NAME.fullmatch(entry.name) for entry in self._entries())
        revisions = [int(match[2] or 1) for match in names if match and int(match[1]) == step]
        return self.folder / (f"{_folder_name(step)}.{max(revisions) + 1}" if revisions else _folder_name(step))

    def _replace(self, name: str, content: Mapping[str, object]) -> None:
        """Replace a file durably, so that the checkpoint that `latest` named before may be removed. Raises OSError."""
        temporary = self.folder / f".{name}.attempt-{self.attempt}.tmp"
        try:
            _write_new(temporary, encode_line(content))
            os.replace(temporary, self.folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _fsync(self.folder)

    def _remove_old(self, newest: int, lineage: str) -> None:
        """Keep the last `keep` steps up to `newest` of the lineage, of each the last revision."""
        older = sorted((found for found in self._complete_checkpoints(lineage) if found.step <= newest), key=_age_key)
        last = {found.step: found for found in older}
        kept = list(last.values())[-self.keep :]
        for found in older:
            if found in kept:
                continue
            # Renamed first: a partly removed checkpoint must not look complete.
            renamed = self.folder / f".{found.path.name}.attempt-{self.attempt}.old"
            with contextlib.suppress(OSError):
                os.rename(found.path, renamed)
            shutil.rmtree(renamed, ignore_errors=True)

    def _owns_folder(self) -> bool:
        own = self.lineage()
        if self._recorded_lineage() != own:
            return False
        try:
            latest = self.latest()
        except ValueError:
            return True
        return latest is None or latest.lineage != own or latest.attempt <= self.attempt

    def _complete_checkpoints(self, lineage: str) -> list[CheckpointCandidate]:
        """Those of the lineage, and those of which it is not known."""
        found = []
        for entry in self._entries():
            match = _CHECKPOINT_NAME.fullmatch(entry.name)
            if match is None or not (entry / DESCRIPTION).exists():
                continue
            attempt, own = _origin(entry)
            if own in (lineage, None):
                found.append(CheckpointCandidate(int(match[1]), entry, int(match[2] or 1), attempt))
        return found

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def read_description(checkpoint: Path) -> dict[str, object]:
    """`muster.json` of a checkpoint. Raises OSError or ValueError."""
    described = read_json(checkpoint / DESCRIPTION, _MAX_DESCRIPTION_BYTES)
    if not isinstance(described, dict):
        raise ValueError("must be a JSON object")
    return described


def describe_mismatch(described: dict[str, object], expected: dict[str, object]) -> list[str]:
    """A phrase for each field in which the checkpoint and this run differ."""
    return [
        f"{field} was {described.get(field)!r}, is {value!r}"
        for field, value in expected.items()
        if described.get(field) != value
    ]


def _origin(checkpoint: Path) -> tuple[int, str | None]:
    """Attempt and lineage of a checkpoint; -1 and None if its description cannot be read."""
    try:
        described = read_description(checkpoint)
    except (OSError, ValueError):
        return -1, None
    attempt, lineage = described.get("attempt", 0), described.get("lineage", "")
    return (attempt if isinstance(attempt, int) else -1), (lineage if isinstance(lineage, str) else None)


def _age_key(found: CheckpointCandidate) -> tuple[int, int]:
    return found.step, found.revision


def _folder_name(step: int) -> str:
    return f"step-{step:08}"


def _write_new(path: Path, content: bytes) -> None:
    """Replace and sync a file without opening the existing one, since opening a FIFO would block. Raises OSError."""
    path.unlink(missing_ok=True)
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
