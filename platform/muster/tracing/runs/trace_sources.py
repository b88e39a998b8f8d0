"""The traces that a path stands for: a file, a folder, a zip or tar archive, or a pattern such as `runs/*/rank*.json`.

Files are recognised by their content where their names do not tell.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

from muster.errors import InvalidTrace
from muster.tracing.read.archives import archive_members, open_trace
from muster.tracing.read.json_stream import unpack

MAX_FILES = 1024
MAX_UNNAMED_FILES = 4096
"""Files of a folder without `.json` in their name that are looked into."""
_HEAD_BYTES = 256 << 10
_TRACE_NAME = re.compile(r".*\.json(\.gz)?$")
_ARCHIVE_NAME = re.compile(r".*\.(zip|tar|tar\.gz|tgz)$")
_DOCUMENT = re.compile(rb'\s*\{.*"traceEvents"\s*:\s*\[', re.DOTALL)
_ARRAY = re.compile(rb'\s*\[\s*\{[^{}]*"ph"\s*:')


def expand(paths: Iterable[Path]) -> list[Path]:
    """The files that some paths name: patterns are replaced by what matches them, sorted.

    Raises InvalidTrace if nothing matches a pattern.
    """
    found: list[Path] = []
    for path in paths:
        if path.exists() or not glob.has_magic(str(path)):
            found.append(path)
            continue
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise InvalidTrace(f"{path}: no file matches this pattern")
        found += [Path(match) for match in matches]
    return found


def traces_of(path: Path) -> tuple[Path, ...]:
    """The traces of a folder or an archive, of any other file itself. Raises InvalidTrace if there are none, or if the
    path does not exist or is a damaged archive; OSError."""
    if path.is_dir():
        found = folder_traces(path)
        if not found:
            raise InvalidTrace(f"{path}: must contain a trace (.json, .json.gz, .zip, .tar or .tar.gz)")
        return found
    if not path.is_file():
        reason = "must be a file or a folder; a pipe is read as -" if path.exists() else "no such file or folder"
        raise InvalidTrace(f"{path}: {reason}")
    members = archive_members(path)
    if members is None:
        return (path,)
    return _named_as_traces(members) or tuple(member for member in members if _is_trace(member)) or members


def folder_traces(folder: Path) -> tuple[Path, ...]:
    """The traces below a folder, also in archives, at most `MAX_FILES`; without hidden files and folders."""
    found: list[Path] = []
    unnamed = 0
    for file in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in file.relative_to(folder).parts) or not file.is_file():
            continue
        if _TRACE_NAME.fullmatch(file.name):
            found.append(file)
        elif _ARCHIVE_NAME.fullmatch(file.name):
            try:
                found += _named_as_traces(archive_members(file) or ())
            except (InvalidTrace, OSError):
                continue  # of something else, as other files of the folder
        elif unnamed < MAX_UNNAMED_FILES:
            unnamed += 1
            if _is_trace(file):
                found.append(file)
        if len(found) >= MAX_FILES:
            break
    return tuple(found[:MAX_FILES])


def _named_as_traces(members: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(member for member in members if _TRACE_NAME.fullmatch(member.name))


def _is_trace(file: Path) -> bool:
    """Whether the first bytes are those of a trace."""
    try:
        with open_trace(file) as opened:
            head = unpack(opened).read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
    except (InvalidTrace, OSError, EOFError, ValueError):
        return False
    return head.lstrip()[:1] in (b"{", b"[") and bool(_DOCUMENT.match(head) or _ARRAY.match(head))
