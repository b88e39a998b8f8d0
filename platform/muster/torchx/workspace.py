"""The files of a TorchX workspace, as the archive that each pod unpacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
from torchx.workspace.api import walk_workspace

from muster.cluster_client.workspace import MAX_ARCHIVE_BYTES, pack_files, unpack_in_pod
from muster.errors import InvalidSpec
from muster.torchx.errors import SubmissionRefused

_IGNORED = frozenset((".git", "__pycache__", ".venv"))


def pack_workspace(folder: str) -> bytes:
    """The regular files of a folder as a compressed archive, equal for equal files: without those that its
    `.torchxignore` names, .git, .venv and byte code. Raises SubmissionRefused for another path, and above 1 MB."""
    root = Path(folder).absolute()
    if not root.is_dir():
        raise SubmissionRefused(f"workspace: must be a folder; got {folder!r}")
    try:
        return pack_files(root, _files(root), ".torchxignore")
    except InvalidSpec as error:
        raise SubmissionRefused(str(error)) from error


def _files(root: Path) -> Iterator[Path]:
    for folder, _, files in walk_workspace(fsspec.filesystem("file"), str(root)):
        if _IGNORED.isdisjoint(Path(folder).relative_to(root).parts):
            paths = (Path(folder) / file for file in files)
            yield from (path for path in paths if path.is_file() and not path.is_symlink())


__all__ = ["MAX_ARCHIVE_BYTES", "pack_workspace", "unpack_in_pod"]
