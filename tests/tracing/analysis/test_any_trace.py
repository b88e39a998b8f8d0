"""Traces of any program: what they do not say is found in another way, or said to be missing."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import DATA, Event, GpuRank, gpu_job, kernel, launch, step, training_steps, write_trace

from muster.errors import InvalidTrace
from muster.tracing.analysis.rank_records import read_rank_records
from muster.tracing.analysis.run_analysis import Report, analyse_run
from muster.tracing.analysis.trace_summary import AnalysedTrace, summarise_trace_file
from muster.tracing.ranks.trace_diff import diff_work
from muster.tracing.read import archives
from muster.tracing.reader import read_trace
from muster.tracing.runs.run_folder import read_traces
from muster.tracing.tables.device_tables import launches_of
from muster.tracing.work.hta_breakdown import idle_by_stream, launch_times
from muster.tracing.work.steps import step_table

__all__ = ["muster"]  # a fixture

SLOW = [GpuRank(), GpuRank(slowdown=1.3)]
MS = 1000.0


def analysed(*paths: Path) -> Report:
    return analyse_run(read_traces(paths))


def edited(path: Path, edit: Callable[[dict[str, Any]], None], to: Path | None = None) -> Path:
    document = json.loads(path.read_text())
    edit(document)
    (to or path).write_text(json.dumps(document))
    if to is not None and to != path:
        path.unlink()
    return to or path


def causes(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(verdict.cause), verdict.ranks) for verdict in report.verdicts]


def with_process(number: int) -> Callable[[dict[str, Any]], None]:
    """The trace as of another process."""

    def edit(document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            event["pid"] = number if event["pid"] == 100 else event["pid"]
            event.setdefault("cat", "")
        document["traceEvents"].append(Event("aten::x", 1e6, 1).as_json() | {"pid": number})

    return edit


def without_rank(document: dict[str, Any]) -> None:
    document.pop("distributedInfo", None)


def of_rank_0(document: dict[str, Any]) -> None:
    document["distributedInfo"]["rank"] = 0


@pytest.mark.parametrize("edit", [without_rank, of_rank_0])
@pytest.mark.parametrize("name", ["rank{}.json", "host-rank_{}-of-2.pt.trace.json", "rank-{}/trace.json"])
def test_the_rank_may_be_in_the_name_of_the_file_alone(
    tmp_path: Path, name: str, edit: Callable[[dict[str, Any]], None]
) -> None:
    job = gpu_job(tmp_path / "job", SLOW)
    folder = tmp_path / "named"
    for rank in range(2):
        (folder / name.format(rank)).parent.mkdir(parents=True, exist_ok=True)
        edited(job / f"rank{rank}.json", edit, folder / name.format(rank))
    assert causes(analysed(folder)) == [("slow-device", (1,))]


@pytest.mark.parametrize("edit", [without_rank, of_rank_0])
def test_without_any_rank_the_processes_of_one_time_are_numbered(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    job = gpu_job(tmp_path, SLOW)
    for rank, name in enumerate(("host_9.1700.pt.trace.json", "host_11.1699.pt.trace.json")):
        edited(edited(job / f"rank{rank}.json", with_process(9 + 2 * rank)), edit, job / name)
    report = analysed(tmp_path)
    assert causes(report) == [("slow-device", (1,))]
    assert any("ranks are by the order of their files" in note for note in report.notes)


def test_of_several_captures_of_one_process_the_newest_is_analysed(tmp_path: Path) -> None:
    report = analysed(DATA / "repeat")
    assert [step.step for row in report.traces for step in row.trace.steps] == [12, 13, 14]
    (note,) = report.notes
    assert note.startswith("These are 3 captures: the newest, steps 12 to 14 (")
    assert "not steps 7 to 9 (" in note
    assert "steps 2 to 4 (" in note
    assert [one.steps.tolist() for one in read_rank_records([DATA / "repeat"])] == [[12, 13, 14]]


def test_captures_without_numbered_steps_are_kept_apart_by_time(tmp_path: Path) -> None:
    for number, at in enumerate((0.0, 60e6)):
        gpu_job(tmp_path, SLOW, clock_us=[at, at + 20], name=f"{number}-rank{{rank}}.json", steps=3 + number)
    for path in tmp_path.glob("*.json"):
        edited(path, lambda document: document["traceEvents"].pop() and None)
    report = analysed(tmp_path)
    assert [Path(row.trace.source).name for row in report.traces] == ["1-rank0.json", "1-rank1.json"]
    assert causes(report) == [("slow-device", (1,))]


@pytest.mark.parametrize("labels", [("[TP00] ", "[TP01] "), ("", "")])
def test_ranks_merged_into_one_file_are_taken_apart(tmp_path: Path, labels: tuple[str, str]) -> None:
    job = gpu_job(tmp_path / "job", SLOW)
    events = []
    for rank in range(2):
        edited(job / f"rank{rank}.json", with_process(500 + rank))
        for event in json.loads((job / f"rank{rank}.json").read_text())["traceEvents"]:
            pid = event["pid"] if event["pid"] else rank
            events.append(event | {"pid": f"{labels[rank]}{pid}" if labels[rank] else pid})
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps({"traceEvents": events}))
    report = analysed(merged)
    assert [row.trace.rank for row in report.traces] == [0, 1]
    assert causes(report) == [("slow-device", (1,))]


def test_merged_ranks_whose_devices_have_one_id_are_refused_with_the_reason(tmp_path: Path) -> None:
    events = [Event("aten::mm", 0, 5).as_json() | {"pid": pid} for pid in (7, 8)]
    events.append(kernel("gemm", 1, 1, launch=3).as_json())
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(InvalidTrace, match="2 processes are merged in this file, and it does not say"):
        analysed(path)


def on_device(count: int, host_ms: float, wait_ms: float) -> list[Event]:
    """`count` batches: the loader takes `wait_ms`, then 20 kernels of 1 ms are launched; without ProfilerStep."""
    events = []
    for i in range(count):
        at = i * (wait_ms + 20) * MS
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events.append(Event(name, at, wait_ms * MS, "user_annotation"))
        for j in range(20):
            events.append(Event("aten::mm", at + wait_ms * MS + j * 10, 8))
            events.append(launch(100 * i + j, at + wait_ms * MS + j * 10))
            events.append(kernel("gemm", at + (wait_ms + j) * MS + 30, MS, launch=100 * i + j))
        events.append(Event("Optimizer.step#AdamW.step", at + (wait_ms + host_ms) * MS, 50, "user_annotation"))
    return events


def test_without_profiler_steps_the_optimizer_marks_them(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", on_device(4, 1, 30), rank=None)
    report = analysed(path)
    assert causes(report)[0][0] == "data-loading"
    assert [step.step for step in report.traces[0].trace.steps] == [0, 1, 2, 3]
    assert "Steps: no ProfilerStep: a step is from one end of Optimizer.step to the next." in report.notes


@pytest.mark.parametrize(("sizes", "steps"), [((2, 5), 3), ((2, 2), 6), ((2, 5, 3), 3)])
def test_a_step_that_updates_several_models_in_turn_ends_with_the_last_of_them(
    tmp_path: Path, sizes: Sequence[int], steps: int
) -> None:
    """As that of a GAN: the optimizers have one name, and differ in the number of their operators."""
    events, at = [], 0.0
    for _ in range(3):
        for size in sizes:
            events += [Event("aten::mm", at, MS), Event("Optimizer.step#Adam.step", at + MS, MS, "user_annotation")]
            events += [Event("aten::add_", at + MS + 10 * i, 8) for i in range(size)]
            at += 2 * MS
    report = analysed(write_trace(tmp_path / "t.json", events))
    assert len(report.traces[0].trace.steps) == steps


def test_without_profiler_steps_and_optimizer_batches_or_what_recurs_marks_them(tmp_path: Path) -> None:
    def sources(events: Sequence[Event]) -> str:
        return step_table(read_trace(write_trace(tmp_path / "t.json", events))).source

    events = [event for event in on_device(4, 1, 30) if "Optimizer" not in event.name]
    assert sources(events).endswith("a step begins with each batch of the DataLoader")
    served = [
        replace(event, name=f"execute_context_{i}") if "Loader" in event.name else event
        for i, event in enumerate(events)
    ]
    assert sources(served).endswith("a step begins with each annotation 'execute_context_#'")
    plain = [event for event in events if "Loader" not in event.name]
    assert sources(plain) == "no ProfilerStep: the whole trace counts as one step"


def test_a_small_trace_without_steps_names_the_data_loader() -> None:
    report = analysed(DATA / "small/single_loader_nosteps")
    assert causes(report)[0][0] == "data-loading"
    assert "all ranks" not in report.headline.lower()


def test_a_trace_of_the_device_alone_says_that_the_host_is_missing(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [event for event in on_device(4, 1, 30) if event.stream], rank=None)
    report = analysed(path)
    assert report.traces[0].trace.on_device
    assert any("no events of the CPU" in sentence for sentence in report.missing)
    assert "exceeds the thresholds" not in report.headline


def test_one_rank_of_several_is_never_called_all_ranks(tmp_path: Path, muster: Muster) -> None:
    folder = gpu_job(tmp_path, [GpuRank(blocked=("data", 30, 1))] * 2)
    (folder / "rank0.json").unlink()
    report = analysed(folder)
    assert causes(report)[0] == ("data-loading", (1,))
    shown = muster("trace", "analyze", str(folder)).out
    assert "all ranks" not in shown.lower()
    assert "Only rank 1 of 2 is traced" in " ".join(shown.split())


def test_kernels_that_come_after_all_steps_are_not_given_to_steps(tmp_path: Path) -> None:
    events: list[Event] = []
    for i in range(4):
        events += [step(i, i * 10 * MS, 10 * MS), Event("aten::mm", i * 10 * MS, 10), launch(i, i * 10 * MS + 5)]
        events.append(kernel("graph_kernel", 45 * MS + i * 10, 5, launch=i))
    report = analysed(write_trace(tmp_path / "t.json", events))
    assert any("all kernels begin after the last step" in sentence for sentence in report.missing)
    unknown = [replace(event, correlation=None) if event.stream else event for event in on_device(4, 1, 5)]
    unknown += [step(i, i * 25 * MS, 25 * MS) for i in range(4)]
    report = analysed(write_trace(tmp_path / "u.json", unknown))
    assert any("the launches of 100% of the time" in sentence for sentence in report.missing)


def test_nested_and_empty_steps_do_not_count(tmp_path: Path) -> None:
    events = [*training_steps(3), step(90, 1100, 300), step(91, 2500, 0)]
    table = step_table(read_trace(write_trace(tmp_path / "t.json", events)))
    assert table.numbers.tolist() == [20, 21, 22]
    assert (table.windows.end > table.windows.start).all()


def test_kernels_of_an_earlier_capture_do_not_count(tmp_path: Path) -> None:
    events = [replace(event, start=event.start + 1e6) for event in on_device(3, 1, 5)]
    table = step_table(read_trace(write_trace(tmp_path / "t.json", [kernel("old", 10, 5, launch=7777), *events])))
    assert len(table.work) == 60
    assert int(table.windows.start[0]) >= 1e9 - 1e4


def test_large_ids_of_streams_and_ids_that_are_used_again_are_kept_apart(tmp_path: Path) -> None:
    large = (1 << 31, (1 << 32) + 7, (1 << 47) + 7, (1 << 64) - 5)
    events = [Event("aten::mm", 0, 5)]
    for i, stream in enumerate(large):
        events += [launch(5, 1000.0 * i), kernel("gemm", 1000.0 * i + 50, 20, stream=stream, launch=5)]
        events += [kernel("gemm", 1000.0 * i + 100, 20, stream=stream, launch=5)]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    assert (trace.kernels.stream >= 0).all()
    assert len(set(trace.kernels.stream.tolist())) == len(large)
    assert len(idle_by_stream(trace, trace.kernels)) == len(large)
    assert launch_times(trace, trace.kernels).tolist() == [i * 1_000_000 for i in range(4) for _ in range(2)]
    calls, _ = launches_of(trace, trace.kernels)
    assert calls.start.tolist() == launch_times(trace, trace.kernels).tolist()


def test_a_rank_without_kernels_that_launched_work_is_left_out_with_the_reason(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path, [*SLOW, GpuRank()])

    def without_kernels(document: dict[str, Any]) -> None:
        document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] != "kernel"]

    edited(folder / "rank2.json", without_kernels)
    report = analysed(folder)
    assert causes(report) == [("slow-device", (1,))]
    (skipped,) = report.skipped
    assert skipped.file == "rank2.json"
    assert skipped.reason.startswith("it launched 36 kernels and has none: another tool, such as Nsight")
    alone = analysed(folder / "rank2.json")
    assert any("holds CUPTI" in sentence for sentence in alone.missing)


@pytest.mark.parametrize("keep", [0.75, 0.9])
def test_of_a_truncated_rank_the_complete_steps_are_compared(tmp_path: Path, keep: float) -> None:
    folder = gpu_job(tmp_path, SLOW, steps=8)
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text())
        document["traceEvents"].sort(key=lambda event: (event["cat"] == "kernel", event["ts"]))
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 0))
    cut = folder / "rank1.json"
    cut.write_bytes(cut.read_bytes()[: int(cut.stat().st_size * keep)])
    report = analysed(folder)
    (found,) = [row.trace for row in report.traces if row.trace.rank == 1]
    assert 0 < len(found.steps) < 8
    assert causes(report) == [("slow-device", (1,))]
    assert any("rank1.json: truncated or damaged gzip data after byte" in sentence for sentence in report.missing)


def packed(folder: Path, to: Path) -> Path:
    files = sorted(folder.glob("*.json"))
    if to.suffix == ".zip":
        with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, f"traces/{file.name}")
            archive.writestr("../../escape.json", "{}")
    else:
        with tarfile.open(to, "w:gz" if to.name.endswith("gz") else "w") as archive:
            for file in files:
                archive.add(file, f"./traces/{file.name}")
    return to


@pytest.mark.parametrize("name", ["t.zip", "t.tar", "t.tar.gz", "t.tgz"])
def test_an_archive_of_traces_is_analysed_as_its_folder(tmp_path: Path, name: str, muster: Muster) -> None:
    job = gpu_job(tmp_path / "job", SLOW)
    (tmp_path / "packed").mkdir()
    archive = packed(job, tmp_path / "packed" / name)
    assert causes(analysed(archive)) == causes(analysed(archive.parent)) == [("slow-device", (1,))]
    assert diff_work(read_rank_records([job]), read_rank_records([archive]))[0].change_ms == 0
    assert muster("report", str(archive), "--json").code == 0


def test_damaged_and_hostile_archives_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = gpu_job(tmp_path / "job", SLOW)
    for name in ("t.zip", "t.tar.gz"):
        archive = packed(job, tmp_path / name)
        archive.write_bytes(archive.read_bytes()[:700])
        with pytest.raises(InvalidTrace, match=rf"t\.{name[2:]}.*damaged"):
            analysed(archive)
    whole = packed(job, tmp_path / "u.zip")
    monkeypatch.setattr(archives, "MAX_DIRECTORY_BYTES", 20)
    with pytest.raises(InvalidTrace, match="list of files must have at most 20 bytes"):
        analysed(whole)
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 600)
    with pytest.raises(InvalidTrace, match="damaged archive"):
        analysed(packed(job, tmp_path / "u.tar"))


def test_a_header_in_an_archive_cannot_take_memory(tmp_path: Path) -> None:
    bomb = tarfile.TarInfo("x")
    bomb.type, bomb.size = tarfile.XHDTYPE, 1 << 33
    path = tmp_path / "t.tar.gz"
    path.write_bytes(gzip.compress(bomb.tobuf() + b"\0" * (20 << 20)))
    with pytest.raises(InvalidTrace, match="damaged archive"):
        analysed(path)


def test_members_of_any_type_count_towards_the_bound_of_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 4)
    for name, folders in (("few.tar", 3), ("many.tar", 4)):
        with tarfile.open(tmp_path / name, "w") as archive:
            for number in range(folders):
                folder = tarfile.TarInfo(f"{number}")
                folder.type = tarfile.DIRTYPE
                archive.addfile(folder)
            archive.addfile(tarfile.TarInfo("trace.json"))
    assert archives.archive_members(tmp_path / "few.tar") == (tmp_path / "few.tar/trace.json",)
    assert archives.archive_members(tmp_path / "many.tar") == ()
    with archives.open_trace(tmp_path / "few.tar/trace.json") as file:
        assert file.read() == b""
    with (
        pytest.raises(FileNotFoundError, match="no such file in the archive"),
        archives.open_trace(tmp_path / "many.tar/trace.json"),
    ):
        pass


def test_a_map_of_holes_in_an_archive_cannot_take_memory(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("x")
    sparse.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(sparse.tobuf(format=tarfile.GNU_FORMAT))
    head[482] = 1  # its map continues in the next block
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    more = b"00000000001\0" * 42 + b"\1" + b"\0" * 7
    path = tmp_path / "t.tar.gz"
    path.write_bytes(gzip.compress(bytes(head) + more * 40_000))
    with pytest.raises(InvalidTrace, match="damaged archive: too many headers"):
        archives.archive_members(path)
    path.write_bytes(gzip.compress(bytes(head)))  # the map is cut off
    with pytest.raises(InvalidTrace, match="damaged archive"):
        archives.archive_members(path)


def test_files_without_json_in_their_names_are_traces_by_their_content(tmp_path: Path, muster: Muster) -> None:
    folder = gpu_job(tmp_path, SLOW, name="rank{rank}")
    (folder / "rank1").write_bytes(gzip.compress((folder / "rank1").read_bytes()))
    (folder / "notes.txt").write_text('{"traceEvents" is a key}')
    (folder / "model.pt").write_bytes(b"PK\x03\x04rest")
    assert causes(analysed(folder)) == [("slow-device", (1,))]
    assert analysed(folder).skipped == ()
    assert muster("trace", "analyze", str(folder / "rank1"), "--json").code == 0


def test_analyze_takes_files_folders_patterns_and_stdin(
    tmp_path: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gpu_job(tmp_path / "job", SLOW)
    (tmp_path / "other").mkdir()
    shutil.move(folder / "rank1.json", tmp_path / "other/rank1.json")
    found = []
    for arguments in (
        [str(folder / "rank0.json"), str(tmp_path / "other/rank1.json")],
        [str(folder), str(tmp_path / "other")],
        [str(tmp_path / "*/rank*.json")],
    ):
        ended = muster("trace", "analyze", *arguments, "--json")
        assert ended.code == 0, ended.err
        found.append(json.loads(ended.out)["verdicts"])
    assert found[0][0]["ranks"] == [1]
    assert found[0] == found[1] == found[2]
    piped = io.TextIOWrapper(io.BytesIO((folder / "rank0.json").read_bytes()))
    monkeypatch.setattr("sys.stdin", piped)
    ended = muster("trace", "analyze", "-", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["missing"] == ["Only rank 0 of 2 is traced: who waits for whom cannot be known."]
    ended = muster("trace", "analyze", str(tmp_path / "none*.json"))
    assert (ended.code, "no file matches this pattern" in ended.err) == (2, True)


def test_a_table_of_a_damaged_trace_says_what_is_lost(tmp_path: Path, muster: Muster) -> None:
    path = write_trace(tmp_path / "t.json", on_device(4, 1, 5))
    path.write_bytes(path.read_bytes()[:-20_000])
    ended = muster("trace", "table", "kernels", str(path), "--json")
    assert ended.code == 0
    assert json.loads(ended.out)[0]["name"] == "gemm"
    assert "note: t.json: truncated: the text ends at byte" in ended.err


def test_diff_takes_patterns_and_archives(tmp_path: Path, muster: Muster) -> None:
    one = gpu_job(tmp_path / "a", [GpuRank()] * 2)
    two = packed(gpu_job(tmp_path / "b", [GpuRank(kernel_ms=6)] * 2), tmp_path / "b.zip")
    ended = muster("trace", "diff", str(one / "rank*.json"), str(two), "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["name"] == "gemm"


def test_without_a_common_step_the_output_says_why_nothing_is_compared(tmp_path: Path, muster: Muster) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"{rank}.json", training_steps(first=100 * rank), rank=rank, world_size=2)
    ended = muster("trace", "analyze", str(tmp_path), "--json")
    assert json.loads(ended.out)["missing"] == ["The ranks are not compared: no step is in all traces."]
    assert "not compared" in json.loads(ended.out)["headline"]


def test_a_trace_in_a_file_of_several_has_one_summary_each(tmp_path: Path) -> None:
    (one,) = summarise_trace_file(write_trace(tmp_path / "t.json", training_steps()))
    assert isinstance(one, AnalysedTrace)
