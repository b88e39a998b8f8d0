"""Code of a folder for the pods of a job, without an image build: an archive that each pod unpacks before its program
starts, in the folder which becomes its working directory."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from muster.cluster_client.submit import ARCHIVE, archive_name
from muster.errors import InvalidSpec
from muster.text import format_bytes

MAX_ARCHIVE_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB."""
_MAX_UNPACKED_BYTES = 110_000_000  # more than the code of a run may have
_ARCHIVE_DIR, WORKSPACE_DIR = "/muster/workspace-archive", "/muster/workspace"


def pack_files(root: Path, files: Iterable[Path], ignore_file: str, more: Mapping[str, bytes] | None = None) -> bytes:
    """Files below a folder, and `more` by name, as a compressed archive, equal for equal files. Raises `InvalidSpec`
    above 1 MB, which names the largest and the file that can exclude them."""
    sizes: list[tuple[int, str]] = []
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(files):
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            entry.size, entry.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
            sizes.append((entry.size, entry.name))
        for name, data in sorted((more or {}).items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    size = content.tell()
    if size > MAX_ARCHIVE_BYTES:
        largest = ", ".join(f"{name} ({format_bytes(bytes_)})" for bytes_, name in sorted(sizes, reverse=True)[:3])
        raise InvalidSpec(
            f"workspace: {str(root)!r} must have at most 1 MB when compressed; got {format_bytes(size)}; largest files:"
            f" {largest}; name what the job does not need in {ignore_file}",
            field="workspace",
        )
    return content.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Unpack an archive into a folder. Raises `InvalidSpec` if it is none, or too large."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(archive)) as packed:
            content = packed.read(_MAX_UNPACKED_BYTES + 1)
        if len(content) > _MAX_UNPACKED_BYTES:
            raise InvalidSpec(f"workspace: must have at most {format_bytes(_MAX_UNPACKED_BYTES)}", field="workspace")
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            files.extractall(folder, filter="data")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InvalidSpec(f"workspace: cannot be unpacked: {error}", field="workspace") from error


def unpack_in_pod(pod: dict[str, Any], job: str, folder: str = ".") -> None:
    """Let the first container of a pod unpack the archive of its job, and start its program in a folder of it."""
    container = pod["containers"][0]
    enter = f"cd {WORKSPACE_DIR}" if folder == "." else f'cd "{WORKSPACE_DIR}/$0"'
    unpack = f'tar -xzf {_ARCHIVE_DIR}/{ARCHIVE} -C {WORKSPACE_DIR} && {enter} && exec "$@"'
    name = "sh" if folder == "." else folder
    container["command"] = ["sh", "-c", unpack, name, *container.get("command", ()), *container.pop("args", ())]
    pod["volumes"] = [
        *pod.get("volumes", ()),
        {"name": "workspace-archive", "configMap": {"name": archive_name(job)}},
        {"name": "workspace", "emptyDir": {}},
    ]
    container["volumeMounts"] = [
        *container.get("volumeMounts", ()),
        {"name": "workspace-archive", "mountPath": _ARCHIVE_DIR, "readOnly": True},
        {"name": "workspace", "mountPath": WORKSPACE_DIR},
    ]
