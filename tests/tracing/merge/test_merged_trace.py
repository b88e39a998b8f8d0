"""One trace of all ranks: valid for viewers, on one clock, with arrows through collectives and transfers."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.kineto import DATA, GpuRank, gpu_job, kernel, step, write_trace
from tests.tracing.trace_event_format import arrows, read_valid_events

from muster.errors import InvalidTrace
from muster.tracing.analysis.trace_summary import summarise_trace_files
from muster.tracing.merge.merged_trace import MergedTrace, merge_traces
from muster.tracing.read.json_stream import TraceLimits


def merged(files: list[Path], folder: Path) -> tuple[MergedTrace, list[dict[str, Any]]]:
    out = folder / "all.json.gz"
    return merge_traces(files, out), read_valid_events(out)


def recorded(name: str) -> list[Path]:
    return sorted((DATA / name).iterdir())


def loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


@pytest.mark.parametrize(
    ("name", "ranks", "links"),
    [("ddp_4_ranks", 4, 6), ("h200/pp.unbalanced", 2, 16), ("small/contention", 2, 4), ("small/ranks_in_names", 2, 4)],
)
def test_recordings_become_a_valid_trace_with_all_their_events(
    tmp_path: Path, name: str, ranks: int, links: int
) -> None:
    found, events = merged(recorded(name), tmp_path)
    assert found.ranks == tuple(range(ranks))
    assert found.links == links == sum(event["ph"] == "s" for event in events if event.get("cat") == "collective")
    sources = [event for file in recorded(name) for event in loaded(file)["traceEvents"] if event["ph"] != "M"]
    copied = [event for event in events if event["ph"] != "M" and event.get("cat") != "collective"]
    assert found.events == len(copied) == len(sources) - found.left_out
    assert sorted(one.get("dur", 0) for one in copied) == sorted(one.get("dur", 0) for one in sources)


def test_each_rank_has_processes_of_its_own_with_its_name(tmp_path: Path) -> None:
    _, events = merged(recorded("ddp_4_ranks"), tmp_path)
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert {name for name in names if name.endswith("CPU")} == {f"rank {rank} CPU" for rank in range(4)}
    used = {event["pid"] for event in events if event["ph"] != "M"}
    assert used == set(names.values())


def test_the_arrow_ends_at_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path / "run", [GpuRank(), GpuRank(), GpuRank(extra=2)])
    _, events = merged(sorted(folder.iterdir()), tmp_path)
    found = [order for orders in arrows(events).values() for order in orders]
    assert found
    assert {order[-1] for order in found} == {2}
    assert all(sorted(order) == [0, 1, 2] for order in found)


def test_a_clock_that_is_ahead_is_set_back(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.mkdir()
    first, second = recorded("h200/pp.unbalanced")
    shutil.copy(first, late)
    content = loaded(second)
    for event in content["traceEvents"]:
        if "ts" in event:
            event["ts"] += 5e6
    (late / "rank-1.json").write_text(json.dumps(content))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    original, events = merged([first, second], tmp_path / "a")
    shifted, moved = merged(sorted(late.iterdir()), tmp_path / "b")
    before, after = original.clocks[1].offset_ns, shifted.clocks[1].offset_ns
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(5e9, abs=2000)
    times, same = ([one["ts"] for one in found if one["ph"] == "X"] for found in (events, moved))
    assert same == pytest.approx(times, abs=2.0)


def test_ranks_without_steps_have_their_own_times_and_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(2):
        write_trace(run / f"rank{rank}.json", [kernel("gemm", 10.0 * rank, 5)], rank=rank, world_size=2)
    found, events = merged(sorted(run.iterdir()), tmp_path)
    assert ([clock.offset_ns for clock in found.clocks], found.links) == ([0.0, None], 0)
    assert [event["ts"] for event in events if event["ph"] == "X"] == [
        event["ts"] for file in sorted(run.iterdir()) for event in json.loads(file.read_text())["traceEvents"]
        if event["ph"] == "X"
    ]  # fmt: skip


def test_the_file_need_not_be_compressed(tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    merge_traces(recorded("small/contention"), out)
    assert read_valid_events(out)


def test_flows_and_threads_of_two_ranks_are_not_mixed_up_whatever_their_ids_are(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(2):
        path = write_trace(run / f"rank{rank}.json", [step(1, 0, 100), kernel("gemm", 10, 5)], rank=rank, world_size=2)
        content = json.loads(path.read_text())
        flow = {"cat": "ac2g", "name": "ac2g", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 11.0}
        for number in (7, "0x7", (1 << 63) + 7):
            content["traceEvents"] += [flow | {"ph": "s", "id": number}, flow | {"ph": "f", "id": number, "bp": "e"}]
        path.write_text(json.dumps(content))
    _, events = merged(sorted(run.iterdir()), tmp_path)
    flows = [event for event in events if event.get("cat") == "ac2g"]
    assert len(flows) == 12
    assert len({(event["id"], event["pid"]) for event in flows}) == 2 * len({event["id"] for event in flows[:6]})


def test_events_that_viewers_refuse_are_left_out_and_counted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    path = write_trace(run / "rank0.json", [step(1, 0, 100), kernel("gemm", 10, 5)], rank=0)
    content = json.loads(path.read_text())
    extra = [{"ph": "X", "name": "a", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1e300, "dur": 1}]
    extra += [{"ph": "X", "name": "b", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1.0}, {"ph": "s", "ts": 1, "pid": 1}]
    nan = {
        "ph": "X",
        "name": "c",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 1,
        "args": {"x": float("nan")},
    }
    content["traceEvents"] += [*extra, nan]
    path.write_text(json.dumps(content))
    found, events = merged([path], tmp_path)
    assert found.left_out == 3
    assert [event["args"] for event in events if event["name"] == "c"] == [{"x": None}]


def test_traces_that_cannot_be_read_are_skipped_and_named(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path / "run", [GpuRank(), GpuRank(), GpuRank()])
    broken = folder / "rank1.json"
    broken.write_bytes(broken.read_bytes()[:200])
    found, _ = merged(sorted(folder.iterdir()), tmp_path)
    assert found.ranks == (0, 2)
    assert [text.startswith(f"{broken}: ") for text in found.skipped] == [True]


def test_what_cannot_be_merged_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path / "run", [GpuRank(), GpuRank()])
    files, out = sorted(folder.iterdir()), tmp_path / "all.json.gz"
    with pytest.raises(InvalidTrace, match="must be in another folder than the traces"):
        merge_traces(files, folder / "all.json.gz")
    second = tmp_path / "second" / "rank0.json"
    second.parent.mkdir()
    shutil.copy(files[0], second)
    with pytest.raises(InvalidTrace, match=r"rank 0 must have one trace; got .*rank0\.json and .*rank0\.json"):
        merge_traces([*files, second], out)
    second.write_text("{")
    with pytest.raises(InvalidTrace, match=r"no trace can be read: .*rank0\.json"):
        merge_traces([second], out)
    assert not out.exists()


def test_a_trace_that_grows_above_the_limit_while_it_is_copied_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, out = recorded("small/contention"), tmp_path / "all.json.gz"
    limits = TraceLimits(text_bytes=10_000)
    analysed = summarise_trace_files(files)
    monkeypatch.setattr("muster.tracing.merge.merged_trace.summarise_trace_files", lambda *_, **__: analysed)
    with pytest.raises(InvalidTrace, match="must have at most 10000 bytes"):
        merge_traces(files, out, limits=limits)
    assert list(tmp_path.iterdir()) == []


def test_a_planted_link_in_the_folder_of_the_output_is_not_followed(tmp_path: Path) -> None:
    out, victim = tmp_path / "all.json.gz", tmp_path / "victim"
    victim.write_text("mine")
    for name in (f".{out.name}.{os.getpid()}.tmp", out.name):
        (tmp_path / name).symlink_to(victim)
    merge_traces(recorded("small/contention"), out)
    assert victim.read_text() == "mine"
    assert out.is_file()
    assert not out.is_symlink()


def test_progress_is_of_traces(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    merge_traces(
        recorded("small/contention"),
        tmp_path / "all.json",
        progress=lambda what, done, of: seen.append((what, done, of)),
    )
    assert seen == [("analysed", 0, 2), ("analysed", 2, 2), ("written", 0, 2), ("written", 1, 2), ("written", 2, 2)]
