"""Ranks that did not stop in the termination message of a collector: they fit, and any text is read safely."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import zlib
from pathlib import Path
from typing import IO

import pytest
from tests.tracing.flight_recorder import dump, entry

from muster.capture import stacks
from muster.capture.exchange import MAX_ENCODED, PodRanks, bounded_ranks, decode_ranks, encode_ranks, stopped_ranks
from muster.capture.protocol import HungRank
from muster.capture.stacks import read_stacks
from muster.tracing import collector
from muster.tracing.collect.spool_collector import CollectorOptions
from muster.tracing.collector import CollectorState
from muster.tracing.read.flight_recorder import GroupProgress, Operation, RankCollectives
from muster.tracing.shared_folder import SharedFolder

REAL_OPEN = SharedFolder.open


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
        return [one.rank for one in decode_ranks(stopped_ranks(run, 1, own).get("hung", ""))]

    assert (reported(PodRanks()), reported(PodRanks(index=0, replicas=4)), reported(PodRanks(index=3, replicas=4))) == (
        [0, 1],
        [0],
        [],
    )


def with_dumps(folder: Path, ranks: int) -> SharedFolder:
    """Answers of the launchers of ranks that did not stop, and their dumps."""
    (folder / "capture").mkdir()
    (folder / "flight-recorder").mkdir()
    for rank in range(ranks):
        name = f"flight-recorder/rank-{rank}.attempt-1.stop.pickle"
        answer = {"id": "stop", "attempt": 1, "rank": rank, "frames": ["f (a.py:1)"], "world_size": ranks}
        (folder / f"capture/stacks-rank-{rank}.json").write_text(json.dumps(answer | {"recorder": name}))
        (folder / name).write_bytes(pickle.dumps(dump(entry(1, state="started"))))
    return SharedFolder(folder)


def test_a_collector_reads_the_dumps_of_its_own_ranks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, opened = with_dumps(tmp_path, 4), list[str]()

    def recorded(self: SharedFolder, name: str) -> IO[bytes]:
        opened.append(name)
        return REAL_OPEN(self, name)

    monkeypatch.setattr(SharedFolder, "open", recorded)
    assert len(decode_ranks(stopped_ranks(run, 1, PodRanks(index=1, replicas=2))["hung"])) == 2
    assert [name for name in opened if name.endswith(".pickle")] == [
        f"flight-recorder/rank-{rank}.attempt-1.stop.pickle" for rank in (2, 3)
    ]


def test_dumps_that_take_long_are_left_out_and_the_stacks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_dumps(tmp_path, 2)
    assert [one.collectives is None for one in read_stacks(run, "stop", 1)] == [False, False]
    monkeypatch.setattr(stacks, "DUMPS_CPU_S", 0.0)
    assert [(one.collectives, one.frames) for one in read_stacks(run, "stop", 1)] == [(None, ("f (a.py:1)",))] * 2


def test_a_collector_writes_its_message_before_it_reads_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = tmp_path / "message"
    before: list[str] = []

    def read(*arguments: object) -> dict[str, str]:
        before.append(message.read_text())
        return {"hung": "x"}

    monkeypatch.setattr(collector, "stopped_ranks", read)
    state = CollectorState(CollectorOptions(tmp_path, "trainer", 0), message)
    for _ in range(3):
        state.write_message()
    assert [json.loads(text) for text in before] == [{"traces": 0, "checkpoint": None}]
    assert json.loads(message.read_text()) == {"traces": 0, "checkpoint": None, "hung": "x"}


def test_where_ranks_were_at_sigterm_is_reported_only_if_they_did_stop(tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    message = tmp_path / "message"
    for request, key in (("sigterm", "signalled"), ("stop", "hung")):
        answer = {"id": request, "attempt": 0, "rank": 0, "frames": ["f (a.py:1)"], "world_size": 1}
        (tmp_path / "capture/stacks-rank-0.json").write_text(json.dumps(answer))
        CollectorState(CollectorOptions(tmp_path, "trainer", 0), message).write_message()
        written = json.loads(message.read_text())
        assert written.keys() == {"traces", "checkpoint", key}
        assert [one.frames for one in decode_ranks(written[key])] == [("f (a.py:1)",)]
