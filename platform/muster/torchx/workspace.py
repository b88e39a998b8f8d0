"""Code of a folder for the pods of a job, without an image build: an archive that each pod unpacks before its program
starts, in the folder which becomes its working directory."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from torchx.workspace.api import walk_workspace

from muster.cluster_client.submit import ARCHIVE, archive_name
from muster.text import format_bytes
from muster.torchx.errors import SubmissionRefused

MAX_ARCHIVE_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB."""
_IGNORED = frozenset((".git", "__pycache__", ".venv"))
_ARCHIVE_DIR, _WORKSPACE_DIR = "/muster/workspace-archive", "/muster/workspace"
_UNPACK = f'tar -xzf {_ARCHIVE_DIR}/{ARCHIVE} -C {_WORKSPACE_DIR} && cd {_WORKSPACE_DIR} && exec "$@"'


def pack_workspace(folder: str) -> bytes:
    """The regular files of a folder as a compressed archive, equal for equal files: without those that its
    `.torchxignore` names, .git, .venv and byte code. Raises SubmissionRefused for another path, and above 1 MB."""
    root = Path(folder).absolute()
    if not root.is_dir():
        raise SubmissionRefused(f"workspace: must be a folder; got {folder!r}")
    sizes: list[tuple[int, str]] = []
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(_files(root)):
            name = str(path.relative_to(root))
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
            sizes.append((entry.size, name))
    size = content.tell()
    if size > MAX_ARCHIVE_BYTES:
        largest = ", ".join(f"{name} ({format_bytes(bytes_)})" for bytes_, name in sorted(sizes, reverse=True)[:3])
        raise SubmissionRefused(
            f"workspace: {folder!r} must have at most 1 MB when compressed; got {format_bytes(size)}; largest files:"
            f" {largest}; name what the job does not need in .torchxignore"
        )
    return content.getvalue()


def _files(root: Path) -> Iterator[Path]:
    for folder, _, files in walk_workspace(fsspec.filesystem("file"), str(root)):
        if _IGNORED.isdisjoint(Path(folder).relative_to(root).parts):
            paths = (Path(folder) / file for file in files)
            yield from (path for path in paths if path.is_file() and not path.is_symlink())


def unpack_in_pod(pod: dict[str, Any], job: str) -> None:
    """Let the first container of a pod unpack the archive of its job, and start its program there."""
    container = pod["containers"][0]
    container["command"] = ["sh", "-c", _UNPACK, "sh", *container.get("command", ()), *container.pop("args", ())]
    pod["volumes"] = [
        *pod.get("volumes", ()),
        {"name": "workspace-archive", "configMap": {"name": archive_name(job)}},
        {"name": "workspace", "emptyDir": {}},
    ]
    container["volumeMounts"] = [
        *container.get("volumeMounts", ()),
        {"name": "workspace-archive", "mountPath": _ARCHIVE_DIR, "readOnly": True},
        {"name": "workspace", "mountPath": _WORKSPACE_DIR},
    ]
