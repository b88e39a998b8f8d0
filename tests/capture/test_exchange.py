"""The collector's endpoint for captures, over real sockets: what it writes, returns and refuses."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.endpoints import ask, listening, signed
from tests.tracing.flight_recorder import dump, entry

from muster.capture.exchange import MAX_RESPONSE_BYTES, PodRanks, exchange
from muster.tracing.collect.heartbeat_server import MAX_BODY_BYTES
from muster.tracing.shared_folder import SharedFolder

REQUEST = {
    "id": "c", "proposal": 1, "attempt": 0, "start_step": 9, "end_step": 12, "ranks": [0], "options": ["shapes"],
    "cancelled": False,
}  # fmt: skip


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with listening(tmp_path) as number:
        yield number


def post(port: int, content: object, **how: Any) -> Any:
    return ask(port, "/capture", verb="POST", body=content if isinstance(content, str) else json.dumps(content), **how)


def write(run_dir: Path, name: str, content: object) -> None:
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_a_proposal_is_written_once_and_the_ranks_are_returned(port: int, tmp_path: Path) -> None:
    write(tmp_path, "heartbeats/rank-0.json", {"rank": 0, "world_size": 1, "attempt": 0, "step": 5, "at": time.time()})
    code, answer = post(port, {"id": "c", "request": REQUEST})
    assert (code, answer["pod"], [one["step"] for one in answer["reports"]]) == (200, "pod-0", [5])
    file = tmp_path / "capture" / "request.json"
    assert json.loads(file.read_text()) == REQUEST
    written = file.stat().st_ino
    for other in ({"id": "c", "proposal": 1}, {"id": "b", "proposal": 1}):
        number = 0 if other["id"] == "c" else 1
        write(tmp_path, f"capture/rank-{number}.json", {**other, "attempt": 0, "rank": number, "state": "armed"})
    code, answer = post(port, {"id": "c", "request": REQUEST})
    assert [one["rank"] for one in answer["answers"]] == [0]
    assert file.stat().st_ino == written


def test_without_a_proposal_nothing_is_written(port: int, tmp_path: Path) -> None:
    code, answer = post(port, {"id": "c"})
    assert (code, answer["reports"]) == (200, [])
    assert not (tmp_path / "capture").exists()


@pytest.mark.parametrize(
    "content",
    ["x", "[]", {"request": None}, {"id": "c", "request": {**REQUEST, "end_step": 9}},
     {"id": "c", "request": {**REQUEST, "end_step": 1010}}, {"id": "c", "request": {**REQUEST, "ranks": ["0"]}},
     {"id": "c", "request": {**REQUEST, "ranks": list(range(1025))}}],
)  # fmt: skip
def test_invalid_proposals_are_refused_and_not_written(port: int, tmp_path: Path, content: object) -> None:
    code, answer = post(port, content)
    assert code == 422
    assert answer["error"]
    assert not (tmp_path / "capture").exists()


def test_a_body_that_is_not_the_signed_one_gets_401(port: int, tmp_path: Path) -> None:
    body = json.dumps({"id": "c", "request": REQUEST})
    for authorization in (
        "",
        signed(path="/capture"),
        signed(path="/heartbeat", body=body),
        signed(path="/capture", body=body.replace("9", "8")),
    ):
        assert post(port, body, authorization=authorization)[0] == 401
    assert not (tmp_path / "capture").exists()
    assert ask(port, "/capture", authorization=signed(path="/capture"))[0] == 405  # GET


def test_a_body_above_the_limit_is_refused(port: int) -> None:
    assert post(port, "x" * (MAX_BODY_BYTES + 1))[0] == 413


def test_links_in_place_of_the_folder_or_the_request_are_not_followed(port: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "request.json").write_text("kept")
    (tmp_path / "capture").symlink_to(outside)
    assert post(port, {"id": "c", "request": REQUEST})[0] == 422
    (tmp_path / "capture").unlink()
    (tmp_path / "capture").mkdir()
    (tmp_path / "capture" / "request.json").symlink_to(outside / "request.json")
    assert post(port, {"id": "c", "request": REQUEST})[0] == 200
    assert (outside / "request.json").read_text() == "kept"
    assert json.loads((tmp_path / "capture" / "request.json").read_text()) == REQUEST


def test_of_a_large_folder_that_pods_share_each_collector_returns_the_ranks_of_its_pod(tmp_path: Path) -> None:
    reason = "r" * 500
    for rank in range(400):
        heartbeat = {"rank": rank, "world_size": 400, "attempt": 0, "step": 5, "at": 1.0}
        write(tmp_path, f"heartbeats/rank-{rank}.json", heartbeat)
        answer = {"id": "c", "proposal": 1, "attempt": 0, "rank": rank, "state": "failed", "reason": reason}
        write(tmp_path, f"capture/rank-{rank}.json", answer)

    def ranks(own: PodRanks) -> tuple[list[int], list[int]]:
        found = exchange(SharedFolder(tmp_path), b'{"id": "c"}', 2.0, "trainer-0", own)
        assert len(json.dumps(found)) < MAX_RESPONSE_BYTES
        return sorted(one["rank"] for one in found["reports"]), sorted(one["rank"] for one in found["answers"])

    assert ranks(PodRanks(index=1, replicas=50)) == (list(range(8, 16)), list(range(8, 16)))
    assert ranks(PodRanks(known={3, 7})) == ([3, 7], [3, 7])


def test_of_a_small_folder_all_ranks_are_returned_whatever_their_order(tmp_path: Path) -> None:
    write(tmp_path, "heartbeats/rank-3.json", {"rank": 3, "world_size": 4, "attempt": 0, "step": 5, "at": 1.0})
    found = exchange(SharedFolder(tmp_path), b'{"id": "c"}', 2.0, "trainer-0", PodRanks(index=0, replicas=2))
    assert [one["rank"] for one in found["reports"]] == [3]


def hung(run_dir: Path, rank: int, recorder: str, content: object) -> None:
    """What a launcher saves of a rank that hangs."""
    write(run_dir, f"capture/stacks-rank-{rank}.json", {
        "id": "c", "attempt": 0, "rank": rank, "frames": ["f (a.py:1)"], "recorder": recorder, "world_size": 2,
    })  # fmt: skip
    (run_dir / recorder).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / recorder).write_bytes(pickle.dumps(content))


def test_stacks_come_with_the_collectives_that_each_rank_waits_in(port: int, tmp_path: Path) -> None:
    groups = {"1": ("mesh_fsdp", "[0, 1]")}
    ahead = [entry(number, state="scheduled") for number in range(8, 2000)]
    waiting = dump(entry(7), *ahead, groups=groups)
    hung(tmp_path, 0, "flight-recorder/rank-0.attempt-0.c.pickle", waiting)
    hung(tmp_path, 1, "flight-recorder/rank-1.attempt-0.c.pickle", b"no dump")
    code, answer = post(port, {"id": "c", "stacks_of": 0})
    assert code == 200
    (group,) = answer["stacks"][0]["collectives"]["groups"]
    assert (group["description"], group["ranks"], group["entered"]) == ("mesh_fsdp", [0, 1], 1999)
    assert [one["sequence"] for one in group["operations"]] == [8]
    assert answer["stacks"][1]["collectives"] is None


def test_dumps_outside_the_folder_of_flight_recorders_and_links_are_not_read(port: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside.pickle"
    outside.write_bytes(pickle.dumps(dump(entry(7))))
    hung(tmp_path, 0, "other/rank-0.attempt-0.c.pickle", dump(entry(7)))
    hung(tmp_path, 1, "flight-recorder/rank-1.attempt-0.c.pickle", dump(entry(7)))
    link = tmp_path / "flight-recorder" / "rank-1.attempt-0.c.pickle"
    link.unlink()
    link.symlink_to(outside)
    _, answer = post(port, {"id": "c", "stacks_of": 0})
    assert [one["collectives"] for one in answer["stacks"]] == [None, None]


def test_collectives_that_make_an_answer_too_large_are_left_out_and_stacks_stay(tmp_path: Path) -> None:
    members = str(list(range(4000)))
    groups = {str(number): ("group", members) for number in range(60)}
    for rank in (0, 1):
        hung(tmp_path, rank, f"flight-recorder/rank-{rank}.attempt-0.c.pickle", dump(entry(1), groups=groups))
    found = exchange(SharedFolder(tmp_path), b'{"id": "c", "stacks_of": 0}', 2.0, "trainer-0", PodRanks(known={0, 1}))
    assert len(json.dumps(found)) < MAX_RESPONSE_BYTES
    assert [(one["frames"], one["collectives"]) for one in found["stacks"]] == [(("f (a.py:1)",), None)] * 2
