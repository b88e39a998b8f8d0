"""The compiled code of a run, for restarts and for other replicas: the files of Inductor and Triton in one archive.

    FOLDER/<key>/<part>          one line of JSON (key, part, bytes, sha256), then the archive

The key is a digest of everything that decides which code is compiled. Ranks that compile the same code have the same
part: the first of them writes it, all of them unpack it before they compile. A file is replaced as a whole.

torch.compiler.save_cache_artifacts would keep less: of C++ kernels the source, and no Triton kernel that Inductor did
not write.

They are executable code. The digest detects damage, not forgery: who can write to the folder can run code in the job
(docs/operations/security.md). On a file system, a file of another user, or one that others can write, is not loaded. In
the run folder the group may write: Kubernetes gives volumes with fsGroup that permission at each mount.
"""

from __future__ import annotations

import functools
import hashlib
import json
import stat
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch._inductor.codecache
import torch._inductor.config

from muster_components.trainer.compilation.archive import pack, unpack
from muster_components.trainer.compilation.store import UnusableEntry, mark_used, read, remove_oldest, write

MAX_TOTAL_BYTES: Final = 20 << 30
"""Of all entries of a namespace or a run folder."""
_MAX_HEADER: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CompileCache:
    """This rank's entry in the cache at `location`: a folder, or a URL of fsspec.

    `compiled_code`: below it, Inductor and Triton keep what they compile on this host. `writes`: whether this rank
    saves it. `warn` gets a line for each entry that is not used, and for failed writes. `in_run_folder`: who may write
    it is trusted as with checkpoints.
    """

    location: str
    key: Mapping[str, object]
    part: str
    compiled_code: Path
    writes: bool
    warn: Callable[[str], None]
    in_run_folder: bool = False

    @property
    def path(self) -> str:
        return "/".join((self.location.rstrip("/"), self._key_digest, self.part))

    @property
    def folder(self) -> Path:
        """That of Inductor and Triton for this entry: separate, so that an entry has no code of other runs."""
        return self.compiled_code / self._key_digest / self.part

    @property
    def _key_digest(self) -> str:
        return _digest(_canonical(self.key))[:32]

    def use_folder(self, environ: MutableMapping[str, str]) -> None:
        """Let Inductor and Triton use this entry's folder from now on. Call it after `load`."""
        if torch.cuda.is_available():
            torch._inductor.config.cpp_cache_precompile_headers = False
        else:
            has_kernels = any(self.folder.rglob("*.so"))
            torch._inductor.codecache._precompile_header = _no_header if has_kernels else _header_or_none  # type: ignore[assignment]
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder)
        environ["TRITON_CACHE_DIR"] = str(self.folder / "triton")

    def load(self) -> bool:
        """Unpack the entry into its folder; False if there is none that can be used."""
        try:
            content = read(self.path, stat.S_IWOTH if self.in_run_folder else stat.S_IWGRP | stat.S_IWOTH)
            if content is None:
                return False
            unpack(self._archive(content), self.folder)
            mark_used(self.path)
        except Exception as error:  # stores raise errors of their own; the run can compile instead
            self.warn(f"compile cache {self.path} is not used: {_reason(error)}")
            return False
        return True

    def save(self) -> bool:
        """Write what is in the folder, and remove the entries that have not been used for longest if there are too
        many; False if writing fails."""
        try:
            archive = pack(self.folder)
            header = {"key": self.key, "part": self.part, "bytes": len(archive), "sha256": _digest(archive)}
            write(self.path, json.dumps(header, sort_keys=True).encode() + b"\n" + archive)
        except Exception as error:  # see load
            self.warn(f"compile cache {self.path} cannot be written: {_reason(error)}")
            return False
        try:
            remove_oldest(self.location, self.path, MAX_TOTAL_BYTES)
        except Exception as error:
            self.warn(f"compile cache {self.location}: old entries cannot be removed: {_reason(error)}")
        return True

    def _archive(self, content: bytes) -> bytes:
        """The archive in a file. Raises UnusableEntry if it is damaged, or an entry of another key."""
        end = content.find(b"\n", 0, _MAX_HEADER)
        line, archive = content[: max(0, end)], content[end + 1 :]
        try:
            header: dict[str, Any] = json.loads(line)
            expected = (header["bytes"], header["sha256"], header["key"], header["part"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnusableEntry("its first line must be JSON with key, part, bytes and sha256") from error
        if len(archive) != expected[0]:
            raise UnusableEntry(f"must have {expected[0]} bytes after the first line; got {len(archive)}")
        if _digest(archive) != expected[1]:
            raise UnusableEntry(f"must have sha256 {expected[1]}; got {_digest(archive)}")
        if _canonical(expected[2]) != _canonical(self.key) or expected[3] != self.part:
            raise UnusableEntry(f"it is an entry of another run: part {expected[3]}, key {_canonical(expected[2])!r}")
        return archive


def _no_header(*_: object, **__: object) -> None:
    """Instead of a precompiled header, which torch keeps outside of the folder.

    It saves two thirds of the time of a C++ kernel, and takes as long as four. torch makes it, or at least runs the
    preprocessor, even if all kernels are there. The setting cpp_cache_precompile_headers would do the same, but is part
    of the key of each kernel. Programs for GPUs have few C++ kernels.
    """


_TORCHS_HEADER: Final = torch._inductor.codecache._precompile_header


@functools.cache
def _header_or_none(*header: Any, **options: Any) -> str | None:
    """The precompiled header, or None where it cannot be made: it takes `openssl` and 150 MB of temporary space."""
    try:
        return _TORCHS_HEADER(*header, **options)
    except Exception:  # of the compiler, of openssl, of the file system; kernels do not need it
        return None


def _canonical(key: object) -> bytes:
    return json.dumps(key, sort_keys=True, default=str).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
