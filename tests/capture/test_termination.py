"""Ranks that did not stop in the termination message of a collector: they fit, and any text is read safely."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path

import pytest

from muster.capture.exchange import MAX_ENCODED, PodRanks, bounded_ranks, decode_ranks, encode_ranks, stopped_ranks
from muster.capture.protocol import HungRank
from muster.tracing.flight_recorder import GroupProgress, Operation, RankCollectives
from muster.tracing.shared_folder import SharedFolder


def hung(rank: int, group_size: int = 8, frames: int = 3) -> HungRank:
    inside = Operation(7, "_all_gather_base", has_started=True)
    group = GroupProgress("1", "mesh_fsdp", "nccl", tuple(range(group_size)), 7, (inside,))
    places = tuple(f"wait (/a/folder/{rank}/with/a/name/train.py:{line})" for line in range(frames))
    return HungRank(rank, places, collectives=RankCollectives(rank, (group,)))


def test_the_ranks_of_a_pod_are_the_same_after_the_message_with_pod_and_node() -> None:
    ranks = [hung(rank) for rank in range(8)]
    text = encode_ranks(ranks)
    assert len(text) <= MAX_ENCODED
    found = list(bounded_ranks(decode_ranks(text), "p-0", "n1", {}))
    assert [(one.rank, one.frames, one.collectives) for one in found] == [
        (one.rank, one.frames, one.collectives) for one in ranks
    ]
    assert {(one.pod, one.node) for one in found} == {("p-0", "n1")}


def test_what_does_not_fit_is_left_out_collectives_first() -> None:
    some = decode_ranks(encode_ranks([hung(0, group_size=5000)]))
    assert [(one.rank, one.collectives) for one in some] == [(0, None)]
    noise = [HungRank(rank, (hashlib.sha512(str(rank).encode()).hexdigest(),) * 3) for rank in range(1000)]
    few = decode_ranks(encode_ranks(noise))
    assert 0 < len(few) <= 64
    assert encode_ranks([]) == ""


@pytest.mark.parametrize(
    "text",
    ["", "x", "not base85 \x00", base64.b85encode(b"not zlib").decode(),
     base64.b85encode(zlib.compress(b'[{"rank": "x"}]')).decode(), base64.b85encode(zlib.compress(b"[")).decode(),
     base64.b85encode(zlib.compress(b"[" * 10_000_000)).decode(),
     base64.b85encode(zlib.compress(b'[{"rank": -1}, {"rank": 99999999}]')).decode()],
)  # fmt: skip
def test_other_text_has_no_ranks(text: str) -> None:
    assert list(bounded_ranks(decode_ranks(text), "p", "n", {})) == []


def test_only_ranks_of_this_pod_and_attempt_that_did_not_stop_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    for rank, (request, attempt) in enumerate((("stop", 1), ("stop", 1), ("stop", 0), ("other", 1))):
        answer = {"id": request, "attempt": attempt, "rank": rank, "frames": ["f (a.py:1)"], "world_size": 4}
        (folder / f"stacks-rank-{rank}.json").write_text(json.dumps(answer))
    run = SharedFolder(tmp_path)

    def reported(own: PodRanks) -> list[int]:
        return [one.rank for one in decode_ranks(stopped_ranks(run, 1, own))]

    assert (reported(PodRanks()), reported(PodRanks(index=0, replicas=4)), reported(PodRanks(index=3, replicas=4))) == (
        [0, 1],
        [0],
        [],
    )
