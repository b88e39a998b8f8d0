"""Sends and receives between ranks: their peers, the critical path over them, and the clocks that they compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.tracing.kineto import DATA, Event, kernel, launch, step, write_trace

from muster.tracing.account.rank_record import RankRecord
from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_file
from muster.tracing.ranks.critical_path import CriticalPath
from muster.tracing.reader import read_trace
from muster.tracing.report import Report, build

MS = 1000.0
STEPS = 4


def write_stage(folder: Path, rank: int, events: Sequence[Event], groups: Sequence[tuple[str, Sequence[int]]]) -> None:
    """The trace of a rank that knows these process groups."""
    path = write_trace(folder / f"{rank}.json", events, rank=rank, world_size=3)
    document = json.loads(path.read_text())
    document["distributedInfo"]["pg_config"] = [
        {"pg_name": name, "pg_desc": f"mesh_{name}", "ranks": list(ranks)} for name, ranks in groups
    ]
    path.write_text(json.dumps(document))


def gloo(kind: str, at: float, until: float, peer: int | None) -> list[Event]:
    """A transfer with gloo: the operator that posts it, whose inputs are recorded or not, and the annotation."""
    inputs = () if peer is None else (("Concrete Inputs", ["", "", str(peer), "0"]),)
    operator = {"send": "c10d::send", "recv": "c10d::recv_"}[kind]
    return [
        Event(operator, at, 5, args=inputs),
        Event(f"gloo:{kind}", at + 1, until - at - 1, "user_annotation"),
    ]


def mm(at: float, ms: float) -> Event:
    return Event("aten::mm", at, ms * MS)


def forward(
    folder: Path, work_ms: Sequence[float], *, peers: bool = True, group: Sequence[int] = (0, 1, 2), ahead_us: float = 0
) -> Path:
    """A forward pass through stages that compute this long; a transfer takes 1 ms. Later clocks are ahead."""
    for rank, ms in enumerate(work_ms):
        events = []
        for number in range(STEPS):
            begin = 1e6 + number * 200 * MS + rank * ahead_us
            at = begin + sum(work_ms[:rank]) * MS + rank * MS
            events.append(step(number, begin, at + ms * MS + 200 * (rank < len(work_ms) - 1) - begin))
            if rank:
                events += gloo("recv", begin + 10, at, rank - 1 if peers else None)
            events.append(mm(at, ms))
            if rank < len(work_ms) - 1:
                events += gloo("send", at + ms * MS, at + ms * MS + 100, rank + 1 if peers else None)
        write_stage(folder, rank, events, [("pp", group)])
    return folder


def path_of(report: Report) -> CriticalPath:
    assert report.critical_path is not None
    return report.critical_path


def long_parts(path: CriticalPath) -> dict[tuple[str, str, int | None], float]:
    """Those of at least 0.1 ms, to a tenth."""
    return {(part.kind, part.name, part.rank): round(part.ms, 1) for part in path.parts if part.ms >= 0.1}


def record_of(path: Path) -> RankRecord:
    (analysed,) = summarise_trace_file(path)
    assert isinstance(analysed, AnalysedTrace)
    assert analysed.record is not None
    return analysed.record


def test_the_path_follows_receives_to_the_stages_that_send(tmp_path: Path) -> None:
    path = path_of(build(forward(tmp_path, (10, 30, 5)), with_critical_path=True))
    assert long_parts(path) == {
        ("operator", "aten::mm", 0): 10.0,
        ("operator", "aten::mm", 1): 30.0,
        ("operator", "aten::mm", 2): 5.0,
        ("transfer", "receive", 1): 1.0,
        ("transfer", "receive", 2): 1.0,
    }
    assert path.step_ms == pytest.approx(47.0)


def test_without_recorded_peers_a_group_of_two_ranks_is_enough(tmp_path: Path) -> None:
    path = path_of(build(forward(tmp_path, (10, 30), peers=False, group=(0, 1)), with_critical_path=True))
    assert long_parts(path)["operator", "aten::mm", 0] == 10.0


def test_without_peers_in_a_larger_group_transfers_are_not_followed(tmp_path: Path) -> None:
    path = path_of(build(forward(tmp_path, (10, 30, 5), peers=False), with_critical_path=True))
    assert long_parts(path)["communication", "send/receive", 2] == 42.0
    assert not any(part.rank == 0 for part in path.parts)


def test_a_receive_that_was_complete_before_the_wait_for_it_is_no_part_of_the_path(tmp_path: Path) -> None:
    """Rank 1 posts its receive early, computes 40 ms, and waits then; rank 0 sent after 5 ms."""
    for rank in range(2):
        events = []
        for number in range(STEPS):
            begin = number * 100 * MS
            events.append(step(number, begin, (50 + 11 * rank) * MS))
            if rank == 0:
                events += [mm(begin, 5), *gloo("send", begin + 5 * MS, begin + 5.1 * MS, 1)]
            else:
                events += gloo("recv", begin + 10, begin + 41 * MS, 0)
                events += [mm(begin + 1 * MS, 39), mm(begin + 41 * MS, 20)]
        write_stage(tmp_path, rank, events, [("pp", (0, 1))])
    path = path_of(build(tmp_path, with_critical_path=True))
    found = long_parts(path)
    assert found["operator", "aten::mm", 1] == 59.0
    assert found["transfer", "receive", 1] == 1.0
    assert not any(part.rank == 0 for part in path.parts)


def test_transfers_are_matched_by_their_order_between_two_ranks_in_a_step(tmp_path: Path) -> None:
    """Rank 0 sends twice; rank 1 waits only for the second one, which comes after 30 ms of work."""
    for rank in range(2):
        events = []
        for number in range(STEPS):
            begin = number * 100 * MS
            events.append(step(number, begin, (50 + 10 * rank) * MS))
            if rank == 0:
                events += [mm(begin, 1), *gloo("send", begin + 1 * MS, begin + 1.1 * MS, 1)]
                events += [mm(begin + 2 * MS, 30), *gloo("send", begin + 32 * MS, begin + 32.1 * MS, 1)]
            else:
                events += [mm(begin, 4), *gloo("recv", begin + 4 * MS, begin + 4.1 * MS, 0), mm(begin + 4.1 * MS, 1)]
                events += [*gloo("recv", begin + 6 * MS, begin + 33 * MS, 0), mm(begin + 33 * MS, 27)]
        write_stage(tmp_path, rank, events, [("pp", (0, 1))])
    found = long_parts(path_of(build(tmp_path, with_critical_path=True)))
    assert found["operator", "aten::mm", 0] == 31.0
    assert found["operator", "aten::mm", 1] == 27.0


def test_ranks_that_disagree_about_the_number_of_transfers_are_not_matched(tmp_path: Path) -> None:
    folder = forward(tmp_path, (10, 30), group=(0, 1))
    document = json.loads((folder / "0.json").read_text())
    document["traceEvents"] += [event.as_json() for event in gloo("send", 1e6 + 10.1 * MS, 1e6 + 10.15 * MS, 1)]
    (folder / "0.json").write_text(json.dumps(document))
    found = long_parts(path_of(build(folder, with_critical_path=True)))
    assert found["communication", "send/receive", 1] == pytest.approx(11.0 / STEPS, abs=0.1)
    assert found["operator", "aten::mm", 0] == pytest.approx(10.0 * (STEPS - 1) / STEPS)


def test_in_a_recorded_pipeline_the_path_goes_through_the_data_loader_of_the_other_stage(tmp_path: Path) -> None:
    """Each step waits for 100 ms of data on rank 1."""
    report = build([DATA / f"pipeline_{rank}.json.gz" for rank in range(2)], tmp_path, with_critical_path=True)
    path = path_of(report)
    first = path.parts[0]
    assert (first.kind, first.rank) == ("host", 1)
    assert first.name.startswith("enumerate(DataLoader)")
    assert 80 <= first.ms <= path.step_ms
    assert not any(part.kind == "communication" for part in path.parts)


def nccl(kinds: Sequence[str], number: int, called: float, start: float, until: float, peer: int) -> list[Event]:
    """Transfers in one kernel, as batch_isend_irecv makes them: the kernel says nothing about them."""
    of = (("Process Group Name", "pp"), ("Process Group Ranks", "[]"), ("Rank", peer))
    calls = [
        Event("record_param_comms", called + i, 1, args=(("Collective name", kind), *of))
        for i, kind in enumerate(kinds)
    ]
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return [*calls, launch(number, called + 8), kernel(name, start, until - start, stream=20, launch=number)]


def nccl_pipeline(folder: Path, last: Sequence[Event] = ()) -> Path:
    """Two stages on devices: 10 ms of forward, 30 on the second stage, then 15 of backward on the first."""
    for rank in range(2):
        events = []
        for number in range(STEPS):
            at, first = number * 100 * MS, 100 * number
            events += [step(number, at, 57 * MS), *(launch(first + 50 + i, at + 90 + i) for i in range(2))]
            if rank == 0:
                events += [
                    kernel("forward", at + 100, 10 * MS, launch=first + 50),
                    *nccl(["send", "recv"], first, at + 200, at + 10.1 * MS, at + 42 * MS, 1),
                    kernel("backward", at + 42 * MS, 15 * MS, launch=first + 51),
                ]
            else:
                events += [
                    *nccl(["recv"], first, at + 100, at + 200, at + 11 * MS, 0),
                    kernel("both", at + 11 * MS, 30 * MS, launch=first + 51),
                    *nccl(["send"], first + 1, at + 300, at + 41 * MS, at + 42 * MS, 0),
                ]
        write_stage(folder, rank, [*events, *last], [("0", (0, 1)), ("pp", (0, 1))])
    return folder


def test_transfers_in_one_nccl_kernel_are_found_by_the_calls_before_its_launch(tmp_path: Path) -> None:
    """The kernel of rank 0 sends and receives: it waits for the last send of rank 1, which waits for its first."""
    report = build(nccl_pipeline(tmp_path), with_critical_path=True)
    path = path_of(report)
    assert long_parts(path) == {
        ("kernel", "forward", 0): 10.0,
        ("kernel", "both", 1): 30.0,
        ("kernel", "backward", 0): 15.0,
        ("transfer", "receive", 1): 0.9,
        ("transfer", "send/receive", 0): 1.0,
    }
    assert [record_of(tmp_path / f"{rank}.json").stage for rank in (0, 1)] == [0, 1]


def test_a_kernel_recorded_on_a_gpu_carries_the_send_and_the_receive_before_it() -> None:
    trace = read_trace(DATA / "nccl_self_send.json.gz")
    calls = trace.transfers
    assert calls is not None
    assert calls.sends.tolist() == [True, False] * 2
    assert calls.peer.tolist() == [0] * 4
    assert {trace.names[code] for code in calls.group.tolist()} == {"1"}
    assert record_of(DATA / "nccl_self_send.json.gz").stage is not None


def test_an_all_to_all_is_not_a_transfer_of_a_pipeline(tmp_path: Path) -> None:
    """NCCL runs all-to-alls with the kernel of sends and receives."""
    of = (("Collective name", "all_to_allv"), ("Process Group Name", "0"))
    for rank in range(2):
        events = []
        for number in range(STEPS):
            at = number * 100 * MS
            events += [step(number, at, 50 * MS), launch(number, at)]
            events.append(Event("ncclDevKernel_SendRecv(x)", at + 10, 9 * MS, "kernel", 1, 20, number, of))
        write_stage(tmp_path, rank, events, [("0", (0, 1))])
    record = record_of(tmp_path / "1.json")
    assert record.stage is None
    assert len(record.collectives) == STEPS


def test_transfers_in_both_directions_compare_the_clocks_of_ranks_without_collectives(tmp_path: Path) -> None:
    """Rank 1's clock is 500 ms ahead; the fastest transfers take 1 ms and 2 ms."""
    for rank in range(2):
        events = []
        for number in range(STEPS):
            begin = 1e6 + number * 100 * MS + rank * 500 * MS
            events.append(step(number, begin, 61 * MS))
            kinds = ("send", "recv") if rank == 0 else ("recv", "send")
            ends = {("send", 0): 5.1, ("recv", 1): 6.0, ("send", 1): 20.1, ("recv", 0): 22.0}
            for kind in kinds:
                begun = {("send", 0): 5.0, ("recv", 1): 0.1, ("send", 1): 20.0, ("recv", 0): 6.0}[kind, rank]
                events += gloo(kind, begin + begun * MS, begin + ends[kind, rank] * MS, 1 - rank)
            events.append(mm(begin + 30 * MS, 20))
        write_stage(tmp_path, rank, events, [("pp", (0, 1))])
    first, second = build(tmp_path).clocks
    assert (first.offset_ns, first.error_ns) == (0, 0)
    assert second.error_ns is not None
    assert second.error_ns == pytest.approx(1.5e6, rel=0.01)
    assert abs(second.offset_ns - 500e6) <= second.error_ns
