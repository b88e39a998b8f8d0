"""Writes the newest checkpoint that is in the memory of this pod's ranks to the volume, after they have ended.

Ranks that are killed may leave a checkpoint in the memory that the launcher owns that is newer than that on the volume,
from which a restart would begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankProcess
from muster_components.trainer.checkpoint_manifest import METADATA, FileDigest, with_digests
from muster_components.trainer.checkpoint_memory import (
    SlotContent,
    newest_common_step,
    read_memory,
    whole_slots,
    write_files,
)
from muster_components.trainer.checkpoint_store import CheckpointStore


def write_kept_checkpoint(
    ranks: Mapping[int, RankProcess], layout: RankLayout, environ: Mapping[str, str], log: Callable[[str], None]
) -> None:
    """Write the newest checkpoint that is whole in the memory of all ranks, unless the volume has one as new. Only for
    jobs of one pod: other pods may have other steps. A failure is logged, and the checkpoints before remain."""
    memories = {rank: memory for rank, one in ranks.items() if (memory := _memory(one)) is not None}
    run_dir = environ.get("MUSTER_RUN_DIR", "")
    if layout.replicas > 1 or len(memories) < len(ranks) or not run_dir:
        return
    slots = {rank: whole_slots(memory) for rank, memory in memories.items()}
    step = newest_common_step(list(slots.values()))
    if step is None:
        return
    whole = {rank: next(content for content in found if content.step == step) for rank, found in slots.items()}
    # Of how many checkpoints to keep only the ranks know: none is removed here.
    store = CheckpointStore(Path(run_dir) / "checkpoints", layout.attempt, 0, environ.get("MUSTER_JOB_UID", ""))
    started_s = time.monotonic()
    try:
        if not store.is_newer(step):
            return
        files = _write(store, step, {rank: (memories[rank], content) for rank, content in whole.items()})
        if store.publish(step, with_digests(whole[0].description, files), time.time()):
            log(f"checkpoint of step {step} written from memory, in {time.monotonic() - started_s:.1f} s")
    except (OSError, ValueError) as error:
        store.discard(step)
        log(f"the checkpoint of step {step} in memory is lost: {error}")


def _memory(rank: RankProcess) -> memoryview | None:
    return None if rank.memory is None else read_memory(rank.memory)


def _write(store: CheckpointStore, step: int, ranks: Mapping[int, tuple[memoryview, SlotContent]]) -> list[FileDigest]:
    folder = store.begin(step)
    with ThreadPoolExecutor(max_workers=len(ranks)) as pool:
        written: Iterable[tuple[FileDigest, ...]] = pool.map(
            lambda one: write_files(folder, one[0], one[1], len(one[1].files)), ranks.values()
        )
        return sorted((file for files in written for file in files), key=lambda file: file.name == METADATA)
