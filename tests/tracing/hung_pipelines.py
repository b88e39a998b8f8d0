"""Dumps of a pipeline (1F1B) in which one rank stops, with the entries that torch's ProcessGroupNCCL records.

Of a batch (`batch_isend_irecv`), each send and receive has an entry whose state never changes. After them the batch has
an entry `nccl:coalesced` with the state of all, and `is_p2p` False (torch 2.11). Without TORCH_NCCL_ENABLE_TIMING no
entry is ever "started".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.tracing.flight_recorder import CALLED_NS, dump

PIPELINE, WORLD = ("2", "mesh_pp"), ("0", "default_pg")


@dataclass(frozen=True)
class Launch:
    """What a rank calls at once: sends and receives (by direction and the other stage), or a collective."""

    transfers: tuple[tuple[str, int], ...] = ()
    collective: str = ""


@dataclass
class Rank:
    """`calls`: in order; each waits for the one before. `delivered`: of the oldest call that has not ended."""

    calls: list[Launch]
    ended: int = 0
    delivered: set[tuple[str, int]] = field(default_factory=set)

    @property
    def head(self) -> Launch | None:
        return self.calls[self.ended] if self.ended < len(self.calls) else None


def schedule_1f1b(stage: int, stages: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """The batches of one step, in the order of torch.distributed.pipelining.Schedule1F1B."""
    from_before = [("recv", stage - 1)] if stage else []
    to_before = [("send", stage - 1)] if stage else []
    to_next, from_next = ([("send", stage + 1)], [("recv", stage + 1)]) if stage + 1 < stages else ([], [])
    warmup = min(micro_batches, stages - stage)
    batches = [from_before]
    for _ in range(warmup - 1):
        batches += [to_next, from_before]
    for _ in range(micro_batches - warmup):
        batches += [to_next + from_next, to_before + from_before]
    batches += [to_next + from_next, to_before]
    for _ in range(warmup - 1):
        batches += [from_next, to_before]
    return [batch for batch in batches if batch]


def launches(stage: int, stages: int, batched: bool, steps: int = 2, micro_batches: int = 5) -> list[Launch]:
    """Steps of a pipeline, each ended by an all-reduce of all ranks. Without batches an even stage sends first, an odd
    one receives first."""
    calls: list[Launch] = []
    for _ in range(steps):
        for batch in schedule_1f1b(stage, stages, micro_batches):
            if batched:
                calls.append(Launch(tuple(batch)))
            else:
                first = "send" if stage % 2 == 0 else "recv"
                calls += [Launch((one,)) for one in sorted(batch, key=lambda one: one[0] != first)]
        calls.append(Launch(collective="nccl:all_reduce"))
    return calls


def run(ranks: Sequence[Rank]) -> None:
    """Until no call ends."""
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            head = rank.head
            if head is None:
                continue
            if head.collective:
                if all(other.head == head for other in ranks):
                    for other in ranks:
                        other.ended += 1
                    moved = True
                continue
            for direction, peer in head.transfers:
                other, reverse = ranks[peer], ("recv" if direction == "send" else "send", number)
                if (
                    (direction, peer) not in rank.delivered
                    and other.head is not None
                    and reverse in other.head.transfers
                    and reverse not in other.delivered
                ):
                    rank.delivered.add((direction, peer))
                    other.delivered.add(reverse)
            for one in ranks:
                if one.head is not None and one.head.transfers and one.delivered >= set(one.head.transfers):
                    one.ended, one.delivered, moved = one.ended + 1, set(), True


def entries(rank: Rank, number: int, batched: bool, called: int) -> list[dict[str, Any]]:
    """What torch has recorded of the calls of a rank, of which `called` were made."""
    found: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()

    def record(name: str, group: tuple[str, str], is_p2p: bool, ended: bool, sizes: list[list[int]]) -> None:
        found.append({
            "record_id": len(found), "pg_id": int(group[0]), "process_group": group, "thread_name": "python",
            "thread_id": "1", "collective_seq_id": counts["all_reduce"] if group == WORLD else 0,
            "p2p_seq_id": counts["p2p"] if group == PIPELINE else 0, "op_id": counts[group[0]],
            "profiling_name": name, "time_created_ns": CALLED_NS + len(found) * 1_000_000,
            "input_sizes": sizes, "input_dtypes": ["Float"] * len(sizes), "output_sizes": sizes,
            "output_dtypes": ["Float"] * len(sizes), "state": "completed" if ended else "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": 2 if ended else None,
            "retired": ended, "timeout_ms": 600_000, "is_p2p": is_p2p,
        })  # fmt: skip

    for index, call in enumerate(rank.calls[:called]):
        ended = index < rank.ended
        if call.collective:
            counts["all_reduce"] += 1
            counts[WORLD[0]] += 1
            record(call.collective, WORLD, False, ended, [[4]])
            continue
        counts["p2p"] += 1
        for direction, peer in call.transfers:
            counts[PIPELINE[0]] += 1
            name = f"nccl:{direction} {number}{'->' if direction == 'send' else '<-'}{peer}"
            record(name, PIPELINE, True, ended and not batched, [[16, 8]])
        if batched:
            record("nccl:coalesced", PIPELINE, False, ended, [])
    return found


def hung_pipeline(
    stuck: int, calls: int, batched: bool, stages: int = 4, ahead: int = 1000
) -> dict[int, dict[str, Any]]:
    """The dumps of a pipeline whose rank `stuck` stops after so many calls. `ahead`: how many calls the other ranks
    make before the oldest has ended."""
    ranks = [Rank(launches(stage, stages, batched)) for stage in range(stages)]
    ranks[stuck].calls = ranks[stuck].calls[:calls]
    run(ranks)
    listed = str(list(range(stages)))
    groups = {PIPELINE[0]: (PIPELINE[1], listed), WORLD[0]: (WORLD[1], listed)}
    return {
        number: dump(*entries(rank, number, batched, rank.ended + ahead), groups=groups)
        for number, rank in enumerate(ranks)
    }
