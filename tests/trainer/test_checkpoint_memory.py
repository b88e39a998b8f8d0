"""Threads that write a checkpoint leave the processor to training."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from muster_components.trainer import checkpoint_memory
from muster_components.trainer.checkpoint_manifest import FileDigest
from muster_components.trainer.checkpoint_memory import SlotContent, SlotFile, write_files


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
@pytest.mark.parametrize("niceness", [0, 7])
def test_only_the_threads_that_write_have_a_lower_priority(
    niceness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    write = checkpoint_memory._write_file

    def recorded(folder: Path, memory: memoryview, start: int, file: SlotFile) -> FileDigest:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return write(folder, memory, start, file)

    monkeypatch.setattr(checkpoint_memory, "_write_file", recorded)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    content = SlotContent(1, 0, tuple(SlotFile(f"__0_{n}.distcp", n * 10, 10) for n in range(4)))
    write_files(tmp_path, memoryview(bytes(40)), content, 2, niceness)
    assert found == [min(19, own + niceness)] * 4
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
