"""Captures of stacks: when they are finished, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tracing.endpoints import ask, listening

from muster.api.spec import TraceCaptureStatus
from muster.api.spec.captures import CapturedRank
from muster.capture.protocol import CaptureObservation, HungRank, RankReport
from muster.capture.stacks import STACKS_WITHIN_S, advance_stacks, describe_stacks, with_comparison
from muster.capture.status_changes import MAX_RANKS_BYTES, ranks_within
from muster.tracing.read.flight_recorder import GroupProgress, Operation, RankCollectives

REPORTS = tuple(RankReport(rank=rank, world_size=3, attempt=2, step=5, age_s=600.0) for rank in range(3))
WAITS = ("wait (/usr/lib/python3.11/threading.py:10)", "step (/home/me/train.py:7)")


def advance(status: TraceCaptureStatus, seen: CaptureObservation, attempt: int, now: float) -> TraceCaptureStatus:
    """With the comparison of the stacks, as the operator does it in another process."""
    progress = advance_stacks(status, seen, attempt, now)
    if not progress.is_complete:
        return progress.status
    return with_comparison(progress.status, describe_stacks([*seen.stacks, *progress.missing]), now)


def begun() -> TraceCaptureStatus:
    return advance(TraceCaptureStatus(), CaptureObservation(), 2, 1000.0)


def test_stacks_of_all_ranks_end_the_capture_and_the_message_begins_with_the_rank_that_differs() -> None:
    status = begun()
    assert (status.phase, status.attempt, status.proposal) == ("Pending", 2, 1)
    stacks = [HungRank(0, WAITS, pod="p-0"), HungRank(1, ("sleep (/home/me/data.py:3)",), pod="p-1")]
    seen = CaptureObservation(reports=REPORTS, stacks=tuple(stacks))
    assert advance(status, seen, 2, 1001.0) == status  # rank 2 has not answered
    seen = CaptureObservation(reports=REPORTS, stacks=(*stacks, HungRank(2, WAITS, file="stacks/2.txt", pod="p-2")))
    ended = advance(status, seen, 2, 1002.0)
    assert (ended.phase, ended.reason) == ("Succeeded", "StacksSaved")
    assert (
        ended.message
        == f"rank 1 in pod p-1 is in sleep (/home/me/data.py:3); ranks 0, 2 are in {WAITS[0]}, called from {WAITS[1]}"
    )
    assert (ended.ranks[2].frames, ended.ranks[2].file) == (list(WAITS), "stacks/2.txt")
    assert advance(ended, seen, 3, 2000.0) == ended


def test_the_message_begins_with_the_rank_that_the_others_wait_for_and_its_node() -> None:
    inside = Operation(8, "_all_gather_base", has_started=True)
    group = GroupProgress("1", "mesh_fsdp", "nccl", (0, 1), 8, (inside,))
    missing = GroupProgress("1", "mesh_fsdp", "nccl", (0, 1), 7)
    stacks = [
        HungRank(0, WAITS, pod="p-0", node="a", collectives=RankCollectives(0, (group,))),
        HungRank(1, WAITS, pod="p-1", node="b", collectives=RankCollectives(1, (missing,))),
    ]
    blamed = "rank 1 in pod p-1 on node b never entered all-gather 8 of group fsdp; rank 0 waits in it"
    assert describe_stacks(stacks).startswith(f"{blamed}; ranks 0, 1 are all in ")


def test_the_message_names_a_member_whose_collectives_are_unknown_with_its_pod() -> None:
    inside = Operation(8, "_all_gather_base", has_started=True)
    group = GroupProgress("1", "mesh_fsdp", "nccl", (0, 1), 8, (inside,))
    stacks = [HungRank(0, WAITS, collectives=RankCollectives(0, (group,))), HungRank(1, pod="p-1", reason="no answer")]
    blamed = "rank 1 in pod p-1 has no dump: it may have ended or be the cause"
    assert describe_stacks(stacks).startswith(f"{blamed}; rank 0 waits in all-gather 8 of group fsdp; ")


def test_a_rank_whose_launcher_does_not_answer_is_named_and_without_any_answer_the_capture_fails() -> None:
    some = CaptureObservation(reports=REPORTS, stacks=(HungRank(0, WAITS),))
    ended = advance(begun(), some, 2, 1000.0 + STACKS_WITHIN_S)
    assert (ended.phase, [one.state for one in ended.ranks]) == ("Succeeded", ["collected", "failed", "failed"])
    none = CaptureObservation(reports=REPORTS, stacks=(HungRank(0, reason="no handler"),))
    ended = advance(begun(), none, 2, 1000.0 + STACKS_WITHIN_S)
    assert (ended.phase, ended.reason) == ("Failed", "NoStacks")
    assert "no handler; no answer from a launcher" in ended.message


def test_before_the_first_heartbeat_the_launchers_say_how_many_ranks_there_are() -> None:
    first = CaptureObservation(stacks=(HungRank(0, WAITS, world_size=2),))
    assert advance(begun(), first, 2, 1001.0).phase == "Pending"
    both = CaptureObservation(stacks=tuple(HungRank(rank, WAITS, world_size=2) for rank in range(2)))
    assert len(advance(begun(), both, 2, 1001.0).ranks) == 2


def test_stacks_of_many_ranks_fit_into_an_object() -> None:
    frames = tuple(f"function (/a/folder/with/a/long/name/file.py:{line})" for line in range(32))
    reports = tuple(RankReport(rank=rank, world_size=1024, attempt=2, step=5, age_s=0.0) for rank in range(1024))
    seen = CaptureObservation(reports=reports, stacks=tuple(HungRank(rank, frames) for rank in range(1024)))
    ended = advance(begun(), seen, 2, 1001.0)
    assert len(ended.model_dump_json()) < 1_000_000


def test_ranks_are_grouped_by_where_they_are_whatever_the_line() -> None:
    ranks = [HungRank(rank, (f"wait (/usr/lib/python3.11/threading.py:{rank})", WAITS[1])) for rank in range(3)]
    assert describe_stacks(ranks) == (
        "ranks 0, 1, 2 are all in wait (/usr/lib/python3.11/threading.py:0), called from step (/home/me/train.py:7)"
    )
    assert describe_stacks(ranks[:1]).startswith("rank 0 is in wait")
    assert describe_stacks([HungRank(0)]) == "no stacks"


def test_a_collector_passes_the_request_and_the_answers_on(tmp_path: Path) -> None:
    body = json.dumps({"id": "c", "stacks_of": 2})
    with listening(tmp_path) as port:
        assert ask(port, "/capture", verb="POST", body=body)[1]["stacks"] == []
        assert json.loads((tmp_path / "capture" / "stacks-request.json").read_text()) == {"id": "c", "attempt": 2}
        for rank, request in ((0, "c"), (1, "earlier")):
            answer = {
                "id": request,
                "attempt": 2,
                "rank": rank,
                "frames": ["f (a.py:1)", 7],
                "reason": None,
                "file": "x",
            }
            (tmp_path / "capture" / f"stacks-rank-{rank}.json").write_text(json.dumps(answer))
        (found,) = ask(port, "/capture", verb="POST", body=body)[1]["stacks"]
        assert (found["rank"], found["frames"], found["reason"], found["file"]) == (0, ["f (a.py:1)"], "", "x")


def test_collectors_that_do_not_answer_are_the_reason_and_are_counted() -> None:
    silent = tuple(f"p-{number}: no answer" for number in range(5))
    for reports in ((), REPORTS):
        seen = CaptureObservation(reports=reports, unreachable=silent)
        ended = advance(begun(), seen, 2, 1000.0 + STACKS_WITHIN_S)
        assert (ended.phase, ended.reason) == ("Failed", "CollectorUnreachable")
        assert "5 collectors did not answer: p-0: no answer" in ended.message


def test_the_ranks_of_a_status_are_cut_to_their_limit_in_bytes() -> None:
    few = [CapturedRank(rank=0, reason="r" * 1024, frames=["f" * 512] * 16)]
    assert ranks_within(few, MAX_RANKS_BYTES) == few
    many = [
        CapturedRank(rank=rank, state="failed", reason="\x00" * 1024, file="ä" * 256, frames=["f" * 512] * 16)
        for rank in range(1024)
    ]
    cut = ranks_within(many, MAX_RANKS_BYTES)
    assert [(one.rank, one.state) for one in cut] == [(rank, "failed") for rank in range(1024)]
    assert sum(len(one.model_dump_json(by_alias=True).encode()) for one in cut) <= MAX_RANKS_BYTES
