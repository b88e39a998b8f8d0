"""What torch.compile made, kept for restarts and for other replicas: Inductor's and Triton's files in one archive.

Who can write to the location can run code in the job (docs/operations/security.md): on a file system, an entry of
another user, or one that others may write, is not loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import torch

from muster_components.trainer.compilation.cache import CompileCache
from muster_components.trainer.compilation.monitor import environment_key
from muster_components.trainer.compilation.records import CompileRecorder
from muster_components.trainer.data.cache_folder import cache_root


class CompiledCode:
    """The compiled code of this rank. Make it before the first compilation: Inductor and Triton use its folder from
    then on. Call `save` after the first step, and later if other code may have been compiled."""

    def __init__(
        self,
        location: str,
        key: Mapping[str, object],
        *,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """`location`: a folder, or a URL of fsspec. `key`: JSON values that decide what is compiled, such as the model
        and its sharding; versions of torch, CUDA, Triton and Python and the kind of device are added. `warn` gets a
        line for an entry that is not used, and for one that cannot be written; the job then compiles."""
        on_gpu, local_rank = torch.cuda.is_available(), os.environ.get("LOCAL_RANK", "0")
        part = f"gpu-{local_rank}" if on_gpu else "cpu"  # code for a GPU contains its index in the host
        first = os.environ.get("GROUP_RANK", "0") == "0" if on_gpu else os.environ.get("RANK", "0") == "0"
        folder = (cache_root(os.environ) / "inductor").absolute()
        self._cache = CompileCache(
            location, {**environment_key(os.environ), **key}, part, folder, writes=first, warn=warn
        )
        self.loaded: bool = self._cache.load()
        """Whether there was an entry that could be used."""
        self._cache.use_folder(os.environ)
        self._recorder = CompileRecorder()
        self._is_saved = self.loaded

    def save(self) -> bool:
        """Write the entry if something was compiled that it lacks, on the ranks of the first host; whether it was
        written."""
        misses = sum(record.cache_misses for record in self._recorder.read())
        if not self._cache.writes or (self._is_saved and not misses):
            return False
        self._is_saved = self._cache.save()
        return self._is_saved
