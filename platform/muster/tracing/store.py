"""Where collected traces are kept beyond the pod: any place fsspec knows, with the same names as in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, cast

from fsspec.core import url_to_fs

from muster.tracing.publish import temporary_name

# Backends that write a file in place but rename it in one step. Object stores are the other way round: an object is
# visible only once it is complete, and their rename is a copy.
RENAMING = frozenset({"file", "local", "memory", "sftp", "ssh", "hdfs", "webhdfs", "smb", "arrow_hdfs"})


class Store:
    """A folder or bucket prefix given by URL: `s3://bucket/run`, `gs://...`, `file:///...` or a plain path.

    Credentials come from the environment, as fsspec's backends have it. The backend is only loaded by `Store(url)`;
    ValueError for an unknown protocol, ImportError for one whose package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        filesystem, root = url_to_fs(url)
        self._fs: Any = filesystem
        self._root: str = root.rstrip("/")
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._renames = bool(names & RENAMING)

    def put(self, local: Path, name: str) -> None:
        """Publish a local file under `name`; putting it again is harmless. OSError if it did not arrive whole.

        A reader never sees a part of it: where the backend writes in place, under a temporary name first.
        """
        target = self._path(name)
        self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        if self._renames:
            folder, _, last = target.rpartition("/")
            temporary = f"{folder}/{temporary_name(last, 'upload')}"
            self._fs.put_file(str(local), temporary)
            self._fs.mv(temporary, target)
        else:
            self._fs.put_file(str(local), target)
        expected, found = local.stat().st_size, self._fs.size(target)
        if found != expected:
            raise OSError(f"{self.url}: {name} has {found} bytes after the upload, {expected} were sent")

    def list(self) -> tuple[str, ...]:
        """All names, sorted; temporary ones left out."""
        if not self._fs.exists(self._root):
            return ()
        self._fs.invalidate_cache()
        names = (str(found)[len(self._root) :].lstrip("/") for found in self._fs.find(self._root))
        return tuple(sorted(name for name in names if not name.rpartition("/")[2].startswith(".")))

    def open(self, name: str) -> IO[bytes]:
        """Open for reading; FileNotFoundError if it is not there."""
        return cast(IO[bytes], self._fs.open(self._path(name), "rb"))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
