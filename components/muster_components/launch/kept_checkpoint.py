"""Writes the newest checkpoint that is in the memory of a job's ranks to the volume, after they have ended.

Ranks that are killed may leave a checkpoint in the memory that the launcher owns that is newer than that on the volume,
from which a restart would begin. The launchers of several pods agree on a step through the run folder:

    launches/attempt-2/pod-1.json       the steps that are whole on all ranks of this pod
    launches/attempt-2/written-1.json   the digests of the files that it wrote; null if it could not

Pod 0 publishes once all pods have written. A pod that says nothing in time was lost, and its memory with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankProcess
from muster_components.trainer.checkpoint_manifest import METADATA, FileDigest, with_digests
from muster_components.trainer.checkpoint_memory import SlotContent, read_memory, whole_slots, write_files
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.regular_files import read_json

PEERS_TIMEOUT_S: Final = 15.0
"""For the other pods to end: their ranks end soon after one that they communicate with."""
_WRITTEN_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.1
_MAX_BYTES: Final = 16 << 20


class _NotKept(Exception):
    """The checkpoint in memory cannot be written; the text says why."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the ranks of this pod left: their memory, and by step what is whole in it on each of them."""

    memories: Mapping[int, memoryview]
    steps: Mapping[int, Mapping[int, SlotContent]]


def write_kept_checkpoint(
    ranks: Mapping[int, RankProcess], layout: RankLayout, environ: Mapping[str, str], log: Callable[[str], None]
) -> None:
    """Write the newest checkpoint that is whole in the memory of all ranks, unless the volume has one as new. A failure
    is logged, and the checkpoints before remain."""
    kept, run_dir = _kept(ranks), environ.get("MUSTER_RUN_DIR", "")
    if kept is None or not run_dir:
        return
    # Of how many checkpoints to keep only the ranks know: none is removed here.
    store = CheckpointStore(Path(run_dir) / "checkpoints", layout.attempt, 0, environ.get("MUSTER_JOB_UID", ""))
    peers = _Peers(Path(run_dir) / "launches" / f"attempt-{layout.attempt}", layout)
    started_s = time.monotonic()
    step = None
    try:
        if layout.replica == 0 and kept.steps:
            store.continue_lineage(str(next(iter(kept.steps.values()))[0].description.get("lineage", "")))
        step = peers.newest_common([step for step in kept.steps if store.is_newer(step)])
        if step is None:
            return
        files = _write(kept, step, store, peers)
        if layout.replica == 0 and store.publish(
            step, with_digests(kept.steps[step][0].description, files), time.time()
        ):
            log(f"checkpoint of step {step} written from memory, in {time.monotonic() - started_s:.1f} s")
    except (OSError, ValueError, _NotKept) as error:
        if step is not None and layout.replica == 0:
            store.discard(step)
        log(f"the checkpoint in memory is lost: {error}")


def _kept(ranks: Mapping[int, RankProcess]) -> _Kept | None:
    """None if a rank has saved nothing in its memory."""
    memories: dict[int, memoryview] = {}
    for rank, process in ranks.items():
        memory = None if process.memory is None else read_memory(process.memory)
        if memory is None:
            return None
        memories[rank] = memory
    slots = {rank: {content.step: content for content in whole_slots(memory)} for rank, memory in memories.items()}
    common = set.intersection(*(set(found) for found in slots.values()))
    return _Kept(memories, {step: {rank: slots[rank][step] for rank in ranks} for step in common})


def _write(kept: _Kept, step: int, store: CheckpointStore, peers: _Peers) -> list[FileDigest]:
    """Write the files of this pod; on pod 0, returns those of all. Raises OSError, _NotKept."""
    written: list[FileDigest] = []
    try:
        folder = store.begin(step) if peers.is_first else store.temporary_folder(step)
        if folder is None:
            raise _NotKept("a newer attempt, or a run that began anew, owns the folder")
        peers.wait(folder.is_dir, PEERS_TIMEOUT_S, "pod 0 created no folder")
        with ThreadPoolExecutor(max_workers=len(kept.memories)) as pool:
            for files in pool.map(
                lambda rank: write_files(folder, kept.memories[rank], kept.steps[step][rank], threads=4), kept.memories
            ):
                written += files
    except BaseException:
        peers.say("written", None)
        raise
    peers.say("written", [[file.name, file.size, file.sha256] for file in written])
    if not peers.is_first:
        return []
    found = peers.all_of("written", _WRITTEN_TIMEOUT_S)
    if any(files is None for files in found):
        raise _NotKept("a pod could not write its part")
    return sorted((FileDigest(*file) for files in found for file in files), key=lambda file: file.name == METADATA)


class _Peers:
    """The launchers of the job's pods."""

    def __init__(self, folder: Path, layout: RankLayout) -> None:
        self._folder, self._layout = folder, layout
        self._own: Any = None

    @property
    def is_first(self) -> bool:
        return self._layout.replica == 0

    def newest_common(self, steps: list[int]) -> int | None:
        """The newest step that all pods have; None if there is none. Raises _NotKept if a pod does not answer."""
        self.say("pod", steps)
        found = self.all_of("pod", PEERS_TIMEOUT_S)
        return max(set.intersection(*(set(of_pod) for of_pod in found)), default=None)

    def say(self, what: str, value: Any) -> None:
        """Say something to the others. Raises OSError."""
        if self._layout.replicas == 1:
            self._own = value
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{what}-{self._layout.replica}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(value))
        os.replace(temporary, path)

    def all_of(self, what: str, timeout_s: float) -> list[Any]:
        """What each pod says. Raises OSError, ValueError, _NotKept."""
        if self._layout.replicas == 1:
            return [self._own]
        paths = [self._folder / f"{what}-{replica}.json" for replica in range(self._layout.replicas)]
        self.wait(lambda: all(path.exists() for path in paths), timeout_s, "another pod has not ended in time")
        return [read_json(path, _MAX_BYTES) for path in paths]

    def wait(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        """Wait for a condition. Raises _NotKept with the failure."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise _NotKept(failure)
            time.sleep(_POLL_S)
