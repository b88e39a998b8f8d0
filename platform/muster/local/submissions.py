"""What stays with a run that `muster run` submits: the folder `submission/` of its run folder.

The client fills a staging folder in Muster's home; the daemon renames it when it accepts the job. So no replica starts
before its code is there, and a command that is killed leaves only a staging folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.api.spec import TrainingJob
from muster.errors import InvalidSpec
from muster.local.code_copy import Code, copy_code
from muster.local.environment import STAGED_ANNOTATION
from muster.local.home import Home
from muster.tracing.shared_folder import SharedFolder

FOLDER = "submission"
CODE, RECORD, DIFF, STDIN = "code", "run.json", "changes.diff", "stdin"
ARCHIVED_RECORD, ARCHIVED_STDIN = ".muster-run.json", ".muster-stdin"
"""Names in the archive of a run in a cluster."""
_MAX_STAGED_S = 3600.0  # an older staging folder was left by a command that was killed
_MAX_RECORD_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class RunSubmission:
    """What a run is started with. `code` None: nothing is copied. `stdin`: the script from stdin. `image`: that of the
    pods in a cluster."""

    command: tuple[str, ...]
    folder: Path
    code: Code | None
    environment_names: tuple[str, ...]
    stdin: str | None = None
    image: str | None = None

    def record(self) -> dict[str, Any]:
        """The content of run.json. In a cluster the versions are those of the client, not of the image."""
        code = self.code
        return {
            "command": list(self.command),
            "folder": str(self.folder),
            "code": None if code is None else code.label,
            "commit": "" if code is None else code.commit,
            "root": None if code is None else str(code.root),
            "files": [] if code is None else list(code.files),
            "environment": sorted(self.environment_names),
            **({"versions": _versions()} if self.image is None else {"submitterVersions": _versions()}),
            "submittedAt": time.time(),
        }


def stage(home: Home, submission: RunSubmission) -> str:
    """Write the staging folder and return its id. Raises OSError."""
    home.submissions_dir.mkdir(mode=0o700, exist_ok=True)
    _remove_old(home)
    staged = secrets.token_hex(8)
    folder = home.submissions_dir / staged
    folder.mkdir(mode=0o700)
    if submission.code is not None:
        copy_code(submission.code, folder / CODE)
        if submission.code.diff:
            (folder / DIFF).write_text(submission.code.diff, errors="surrogateescape")
    if submission.stdin is not None:
        (folder / STDIN).write_text(submission.stdin)
    (folder / RECORD).write_text(json.dumps(submission.record(), indent=1))
    return staged


def discard(home: Home, staged: str) -> None:
    """Remove the staging folder of a job that was not accepted."""
    shutil.rmtree(home.submissions_dir / staged, ignore_errors=True)


def move_submission(home: Home, job: TrainingJob) -> None:
    """Move the staging folder of a job that is accepted into its run folder. Raises `InvalidSpec` without one."""
    staged = job.metadata.annotations.get(STAGED_ANNOTATION)
    if staged is None:
        return
    field = f"metadata.annotations[{STAGED_ANNOTATION}]"
    source = home.submissions_dir / Path(staged).name
    if staged != source.name or not source.is_dir():
        message = "must be omitted, as `muster run` sets it for its own copy of the code"
        raise InvalidSpec(f"{field}: {message}; got {staged!r}", field=field)
    run_dir = home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.rename(source, run_dir / FOLDER)


def read_record(run_dir: Path) -> dict[str, Any]:
    """The content of run.json; empty without one."""
    return _read_json(run_dir / FOLDER, RECORD)


def read_archived_record(folder: Path) -> dict[str, Any]:
    """The record of a run in a cluster, whose archive is unpacked in a folder; empty without one."""
    return _read_json(folder, ARCHIVED_RECORD)


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(SharedFolder(folder).read(name, _MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _versions() -> dict[str, str]:
    """The packages of this interpreter, which on one host is that of the run, by name; and Python."""
    found: Iterable[tuple[str, str]] = (
        (str(one.metadata["Name"]).lower(), one.version) for one in importlib.metadata.distributions()
    )
    versions: Mapping[str, str] = {"python": platform.python_version(), **dict(found)}
    return dict(sorted(versions.items()))


def _remove_old(home: Home) -> None:
    for folder in home.submissions_dir.iterdir():
        if time.time() - folder.lstat().st_mtime > _MAX_STAGED_S:
            shutil.rmtree(folder, ignore_errors=True)
