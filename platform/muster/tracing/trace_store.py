"""Where collected traces are kept beyond the pod: any place fsspec knows, with the same names as in the run folder."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from fsspec.core import url_to_fs
from fsspec.spec import AbstractBufferedFile

from muster.tracing.shared_folder import SharedFolder

# Backends that write a file in place but rename it in one step. Object stores are the other way round: an object is
# visible only once it is complete, and their rename is a copy.
RENAME_PROTOCOLS = frozenset({"file", "local", "memory", "sftp", "ssh", "hdfs", "webhdfs", "smb", "arrow_hdfs"})
_PART_BYTES = 16 << 20  # of what is sent at once: S3 takes 10,000 parts of at least 5 MiB
_UPLOAD_SUFFIX = ".upload.tmp"


class TraceStore:
    """A folder or bucket prefix given by URL: `s3://bucket/run`, `gs://...`, `file:///...` or a plain path.

    Credentials come from the environment, as fsspec's backends have it. The backend is only loaded by `Store(url)`;
    ValueError for an unknown protocol, ImportError for one whose package is not installed. `options` are the backend's.
    """

    def __init__(self, url: str, **options: object) -> None:
        self.url = url
        filesystem, root = url_to_fs(url, **options)
        self._fs: Any = filesystem
        self._root: str = root.rstrip("/")
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._uses_rename = bool(names & RENAME_PROTOCOLS)
        self._cleaned_targets: set[str] = set()  # paths of which a killed upload has left nothing

    def put_file(self, source: IO[bytes], name: str) -> None:
        """Publish the content of an open file under `name`; doing it again is harmless. OSError if it did not arrive
        whole.

        A reader never sees a part of it: where the backend writes in place, under a temporary name first.
        """
        target = self._path(name)
        self._make_folder(target)
        self._publish(target, lambda place: self._upload_stream(source, place))
        self._verify_size(name, source.tell())

    def put_bytes(self, name: str, data: bytes) -> None:
        """Publish these bytes under `name`, as `put` does."""
        target = self._path(name)
        self._make_folder(target)
        self._publish(target, lambda place: self._fs.pipe_file(place, data))
        self._verify_size(name, len(data))

    def _upload_stream(self, source: IO[bytes], place: str) -> None:
        source.seek(0)
        out = self._fs.open(place, "wb", block_size=_PART_BYTES)
        try:
            shutil.copyfileobj(source, out, _PART_BYTES)
        except BaseException:
            if isinstance(out, AbstractBufferedFile):  # to close it would publish the part that was sent
                with suppress(Exception):
                    out.discard()
                out.closed = True
            else:
                out.close()
            raise
        out.close()

    def _make_folder(self, target: str) -> None:
        """Whoever may write below a prefix alone may not even ask for the bucket; the upload tells whether it may."""
        with suppress(PermissionError):
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)

    def _publish(self, target: str, send: Callable[[str], object]) -> None:
        if not self._uses_rename:
            send(target)
            return
        folder, _, last = target.rpartition("/")
        if target not in self._cleaned_targets:  # to list a large folder at each upload takes long
            self._remove_leftovers(folder, last)
        self._cleaned_targets.discard(target)
        temporary = f"{folder}/.{last}.{secrets.token_hex(8)}{_UPLOAD_SUFFIX}"
        send(temporary)
        self._fs.mv(temporary, target)
        self._cleaned_targets.add(target)

    def _remove_leftovers(self, folder: str, last: str) -> None:
        """What an upload of the same file left that was killed: one collector at a time has a file."""
        for found in self._fs.ls(folder, detail=False):
            name = str(found).rpartition("/")[2]
            if name.startswith(f".{last}.") and name.endswith(_UPLOAD_SUFFIX):
                self._fs.rm_file(found)

    def _verify_size(self, name: str, expected: int) -> None:
        self._fs.invalidate_cache()
        found = self._fs.size(self._path(name))
        if found != expected:
            raise OSError(f"{self.url}: {name} has {found} bytes after the upload, {expected} were sent")

    def list(self) -> tuple[str, ...]:
        """All names, sorted; temporary ones left out."""
        return tuple(self.sizes())

    def sizes(self) -> dict[str, int]:
        """All names, sorted, and how many bytes each has; temporary ones left out."""
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return {}
        found = self._fs.find(self._root, detail=True)
        named = {str(path)[len(self._root) :].lstrip("/"): about for path, about in found.items()}
        kept = sorted(name for name in named if not name.rpartition("/")[2].startswith("."))
        return {name: int(named[name]["size"] or 0) for name in kept}

    def fetch(self, name: str, local: Path, max_bytes: int) -> None:
        """Copy one file here, whole or not at all. FileNotFoundError if it is not there, OSError if it is larger."""
        local.parent.mkdir(parents=True, exist_ok=True)
        with SharedFolder(local.parent).new_file(local.name, owner="download") as new, self.open(name) as source:
            left = max_bytes
            while block := source.read(min(left + 1, _PART_BYTES)):
                if len(block) > left:
                    raise OSError(f"{self.url}: {name} has grown beyond {max_bytes} bytes")
                new.file.write(block)
                left -= len(block)
            new.publish()

    def open(self, name: str) -> IO[bytes]:
        """Open for reading; FileNotFoundError if it is not there."""
        return cast(IO[bytes], self._fs.open(self._path(name), "rb"))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
