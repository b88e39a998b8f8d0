"""Which peers there are, and which of them have to be built first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.scale import muster_kinds
from benchmarks.scale.contender import Contender
from benchmarks.scale.peers import kai, kubernetes, kueue, volcano
from benchmarks.scale.peers.peer import Kind

HERE: Mapping[str, Contender] = {
    one.name: one
    for one in (
        *(kind.contender for kind in (kubernetes.ALONE, kubernetes.JOBS, kubernetes.NATIVE)),
        muster_kinds.JOBS,
        muster_kinds.JOB_SETS,
    )
}
BUILT: Mapping[str, tuple[Callable[[Path], Kind], tuple[str, ...]]] = {
    "volcano": (volcano.kind, volcano.NEEDS),
    "kai": (kai.kind, kai.NEEDS),
    "kueue": (kueue.kind, kueue.NEEDS),
    "kueue-job-sets": (kueue.kind_of_job_sets, kueue.NEEDS),
}
NAMES = (*HERE, *BUILT)
GANG_SCHEDULERS = (
    "native",
    "volcano",
    "kai",
    "kueue",
    "kueue-job-sets",
)  # those that promise to start all of a job or nothing


class Missing(Exception):
    """What a peer is started from is not there; the message names the option, the file and what it should be."""


def contender(name: str, path: Path | None) -> Contender:
    """A peer by its name. `path` is the folder of what was built of it, or a file in that. Raises Missing."""
    if name in HERE:
        return HERE[name]
    kind, needs = BUILT[name]
    if path is None:
        raise Missing(f"--beside {name} needs --{name} PATH: a folder with {', '.join(needs)}")
    folder = (path if path.is_dir() else path.parent).absolute()
    for need in needs:
        if not (folder / need).exists():
            raise Missing(f"--{name} {path}: there is no {need} in {folder}; it should hold {', '.join(needs)}")
    return kind(folder).contender
