"""Traces of ranks on GPUs that send, receive and reduce as NCCL does: hosts launch ahead of their devices, and a kernel
of communication begins on each rank when its stream is ready, and ends when all ranks have begun.

A rank's program is a list of operations. Times are in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.tracing.kineto import Event, write_trace

MS = 1000.0
LAUNCH_MS = 0.005
TRANSFER_MS = 0.2
MESSAGE_BYTES = 8 << 20
COMPUTE, COMMUNICATION = 7, 20


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Host:
    """The host is busy in an annotation, or without a name outside of all."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Synchronise:
    """The host waits for its device."""


@dataclass(frozen=True, slots=True)
class Communicate:
    """One kernel of the communication stream, after the work launched before; later work waits for it.

    `keys` name what has to begin on all ranks that have the same key; `calls` are the transfers in it (direction,
    peer), empty for the collective `name`.
    """

    name: str
    keys: tuple[str, ...]
    ms: float = TRANSFER_MS
    calls: tuple[tuple[str, int], ...] = ()


Operation = Kernel | Host | Synchronise | Communicate


@dataclass(slots=True)
class _Rank:
    """`host` and `ready` (of each stream) are times in milliseconds."""

    program: list[Operation]
    host: float = 0.0
    ready: dict[int, float] = field(default_factory=lambda: {COMPUTE: 0.0, COMMUNICATION: 0.0})
    at: int = 0
    pending: Event | None = None
    events: list[Event] = field(default_factory=list)
    launches: int = 0

    def launch(self) -> int:
        self.launches += 1
        self.events.append(
            Event("cudaLaunchKernel", self.host * MS, LAUNCH_MS * MS, "cuda_runtime", 1, None, self.launches)
        )
        self.host += LAUNCH_MS
        return self.launches


def simulate(programs: Sequence[Sequence[Operation]]) -> list[list[Event]]:
    """The events of each rank; keys of communication are matched over all programs."""
    ranks = [_Rank(list(program)) for program in programs]
    members: dict[str, set[int]] = {}
    for i, rank in enumerate(ranks):
        for operation in rank.program:
            for key in operation.keys if isinstance(operation, Communicate) else ():
                members.setdefault(key, set()).add(i)
    begun: dict[tuple[str, int], float] = {}
    while any(rank.at < len(rank.program) for rank in ranks):
        before = [(rank.at, rank.pending) for rank in ranks]
        for i, rank in enumerate(ranks):
            while rank.at < len(rank.program) and _advance(i, rank, members, begun):
                rank.at += 1
        assert before != [(rank.at, rank.pending) for rank in ranks], "the ranks wait for each other"
    return [rank.events for rank in ranks]


def _advance(i: int, rank: _Rank, members: dict[str, set[int]], begun: dict[tuple[str, int], float]) -> bool:
    """Do the rank's next operation; False if it waits for other ranks."""
    operation = rank.program[rank.at]
    if isinstance(operation, Host):
        if operation.name:
            rank.events.append(Event(operation.name, rank.host * MS, operation.ms * MS, "user_annotation"))
        rank.host += operation.ms
    elif isinstance(operation, Synchronise):
        until = max(rank.host, *rank.ready.values())
        rank.events.append(Event("cudaDeviceSynchronize", rank.host * MS, (until - rank.host) * MS + 1, "cuda_runtime"))
        rank.host = until
    elif isinstance(operation, Kernel):
        correlation = rank.launch()
        start = max(rank.host, rank.ready[COMPUTE])
        rank.ready[COMPUTE] = start + operation.ms
        rank.events.append(_kernel(operation.name, start, operation.ms, COMPUTE, correlation))
    else:
        return _communicate(i, rank, operation, members, begun)
    return True


def _communicate(
    i: int, rank: _Rank, operation: Communicate, members: dict[str, set[int]], begun: dict[tuple[str, int], float]
) -> bool:
    if rank.pending is None:
        for direction, peer in operation.calls:
            of = (("Collective name", direction), ("Process Group Name", "pp"), ("Rank", peer))
            size = (("In msg nelems", MESSAGE_BYTES), ("Out msg nelems", MESSAGE_BYTES), ("dtype", "Byte"))
            rank.events.append(Event("record_param_comms", rank.host * MS, 1, args=(*of, *size)))
            rank.host += 0.001
        correlation = rank.launch()
        start = max(rank.host, *rank.ready.values())
        rank.pending = _kernel(operation.name, start, 0.0, COMMUNICATION, correlation)
        begun.update({(key, i): start for key in operation.keys})
    needed = [(key, member) for key in operation.keys for member in members[key]]
    if any(one not in begun for one in needed):
        return False
    end = max(begun[one] for one in needed) + operation.ms
    if operation.calls:
        done = replace(rank.pending, name="ncclDevKernel_SendRecv(x)")
    else:
        named = (("Collective name", operation.name), ("Process Group Name", "0"))
        done = replace(rank.pending, name=f"ncclDevKernel_{operation.name}", args=named)
    rank.events.append(replace(done, duration=end * MS - done.start))
    rank.ready = {COMPUTE: end, COMMUNICATION: end}
    rank.pending = None
    return True


def _kernel(name: str, start: float, ms: float, stream: int, correlation: int) -> Event:
    return Event(name, start * MS, ms * MS, "kernel", 1, stream, correlation)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline: the time of a micro-batch's forward pass (backward takes twice as long), kernels besides
    in each step, what its host does at the start of each step, and the time of its transfers to the next stage."""

    forward_ms: float = 3.0
    extra: int = 0
    host: Host | None = None
    transfer_ms: float = TRANSFER_MS


STEPS = 4


def one_f_one_b(folder: Path, stages: Sequence[Stage], *, micro_batches: int = 8, layers: int = 4) -> Path:
    """Traces of pipeline ranks with the schedule 1F1B; forward passes are `layers` kernels."""
    programs = [
        [op for number in range(STEPS) for op in _pipeline_step(stages, rank, micro_batches, layers, number)]
        for rank in range(len(stages))
    ]
    return write_ranks(folder, programs, ("pp", tuple(range(len(stages)))))


def _pipeline_step(
    stages: Sequence[Stage], rank: int, micro_batches: int, layers: int, number: int
) -> Iterator[Operation]:
    stage, last = stages[rank], len(stages) - 1
    yield Host(f"ProfilerStep#{10 + number}", 0.0)
    if stage.host is not None:
        yield stage.host
    yield from (Kernel("extra_gemm", 3.0) for _ in range(stage.extra))
    warm = min(last - rank, micro_batches)
    order = [("F", i) for i in range(warm)]
    for i in range(micro_batches - warm):
        order += [("F", warm + i), ("B", i)]
    order += [("B", i) for i in range(micro_batches - warm, micro_batches)]
    waiting: list[tuple[str, str, int]] = []  # a send waits for the receive that follows: both are one kernel
    for kind, i in order:
        source, target = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
        if 0 <= source <= last:
            waiting.append((f"{number}.{kind}{i}.{min(rank, source)}", "recv", source))
        if waiting:
            yield _transfers(waiting, stages, rank)
            waiting = []
        ms = stage.forward_ms * (1 if kind == "F" else 2) / layers
        yield from (Kernel(f"gemm_{kind}", ms) for _ in range(layers))
        if 0 <= target <= last:
            waiting.append((f"{number}.{kind}{i}.{min(rank, target)}", "send", target))
            following = order.index((kind, i)) + 1
            # Only a pair that the other rank has in one kernel, too, can be batched.
            if following >= len(order) or order[following][0] == kind:
                yield _transfers(waiting, stages, rank)
                waiting = []
    if waiting:
        yield _transfers(waiting, stages, rank)
    yield Kernel("adam", 1.0)
    yield Synchronise()


def _transfers(waiting: Sequence[tuple[str, str, int]], stages: Sequence[Stage], rank: int) -> Communicate:
    slowest = max(stages[min(rank, peer)].transfer_ms for _, _, peer in waiting)
    return Communicate(
        "p2p", tuple(key for key, _, _ in waiting), slowest, tuple((kind, to) for _, kind, to in waiting)
    )


def write_ranks(folder: Path, programs: Sequence[Sequence[Operation]], group: tuple[str, tuple[int, ...]]) -> Path:
    """Traces with a process group; annotations of steps reach to the next one's beginning."""
    for rank, events in enumerate(simulate(programs)):
        begins = [event.start for event in events if event.name.startswith("ProfilerStep")]
        ends = [*begins[1:], max(event.start + event.duration for event in events)]
        until = dict(zip(begins, ends, strict=True))
        for i, event in enumerate(events):
            if event.start in until and event.name.startswith("ProfilerStep"):
                events[i] = replace(event, duration=until[event.start] - event.start)
        path = write_trace(folder / f"{rank}.json", events, rank=rank, world_size=len(programs))
        document = json.loads(path.read_text())
        groups = [("0", list(range(len(programs)))), (group[0], list(group[1]))]
        document["distributedInfo"]["pg_config"] = [
            {"pg_name": name, "pg_desc": f"mesh_{name}", "ranks": ranks} for name, ranks in groups
        ]
        path.write_text(json.dumps(document))
    return folder
