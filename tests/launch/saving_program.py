"""A program whose ranks save to the launcher's memory as fast as they can, and what it has saved."""

from __future__ import annotations

import re
from pathlib import Path

from .conftest import Pod

SAVES = """
import mmap
from muster_components.trainer.checkpoint_memory import (
    HEADER_BYTES, MEMORY_VARIABLE, SlotContent, SlotFile, clear_slot, mark_whole)

SIZE = 1 << 20
handle, folder = int(os.environ[MEMORY_VARIABLE]), os.environ["MUSTER_RUN_DIR"]
os.ftruncate(handle, HEADER_BYTES + 2 * SIZE)
memory = memoryview(mmap.mmap(handle, HEADER_BYTES + 2 * SIZE))
for step in range(1, 1_000_000):
    slot = step % 2
    start = HEADER_BYTES + slot * SIZE
    clear_slot(memory, slot)
    for at in range(0, SIZE, SIZE // 8):
        memory[start + at : start + at + SIZE // 8] = step.to_bytes(8, "little") * (SIZE // 64)
    described = {"step": step, "attempt": 0, "lineage": ""} if rank == 0 else {}
    file = SlotFile(f"__{rank}_0.distcp", 0, SIZE)
    mark_whole(memory, slot, SlotContent(step, start, (file,), described))
    with open(f"{folder}/step-of-{rank}.tmp", "w") as saved:
        saved.write(str(step))
    os.replace(f"{folder}/step-of-{rank}.tmp", f"{folder}/step-of-{rank}")
    while not all(peer(folder, other) >= step for other in range(int(os.environ["WORLD_SIZE"]))):
        if os.path.exists(folder + "/ended"):
            sys.exit(1)
    print("pid", rank, os.getpid(), flush=True) if step == 1 else None
"""
PEER = """
def peer(folder, other):
    try:
        return int(open(f"{folder}/step-of-{other}").read() or 0)
    except OSError:
        return 0
"""


def pids(pod: Pod) -> dict[int, int]:
    """Of the ranks that have printed theirs."""
    return {int(rank): int(pid) for rank, pid in re.findall(r"^(?:\[r\d+\] )?pid (\d+) (\d+)$", pod.log_text(), re.M)}


def saved_by_all(run_dir: Path, ranks: int = 2) -> int:
    return min(int((run_dir / f"step-of-{rank}").read_text()) for rank in range(ranks))
