"""Reports of run folders: values, findings, page, terminal; also of incomplete folders."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tracing.kineto import kernel, launch, step, training_steps, write_trace
from tests.tracing.run_folders import HOSTILE, Page, metrics_line, page_of, run_folder, text_of

from muster.errors import InvalidTrace
from muster.tracing.analysis import findings
from muster.tracing.collector import main as collect
from muster.tracing.report import build, load

DEEP = "[" * 20_000 + "]" * 20_000


def test_a_run_folder_gives_summary_findings_page_and_json(tmp_path: Path) -> None:
    report = build(run_folder(tmp_path / "llama-8b", slow_rank=1))
    facts = report.summary
    assert (facts.name, facts.world_size, facts.steps, facts.attempts, facts.device) == ("llama-8b", 2, 40, 1, "CPU")
    assert (facts.first_loss, facts.last_loss) == (5.0, 2.5625)
    assert (facts.step_time_s, facts.tokens_per_s, facts.mfu, facts.peak_memory_bytes) == (0.1, 1000.0, None, 2**31)
    assert report.headline == (
        "A step takes 1.00 ms, 63.0% of it compute; no single rank makes the others wait; the largest other part is "
        "waiting for other ranks (150 µs, 15.0%)."
    )
    assert report.findings == (
        "The loss fell from 5.00 to 2.56 over 40 steps.",
        "Step 0 took 2.00 s; the median is 100 ms.",
        "Communication runs 30.0% of the time; 16.7% of it is overlapped.",
    )
    saved = json.loads((tmp_path / "llama-8b/report/report.json").read_text())
    assert saved["summary"]["last_loss"] == 2.5625
    assert saved["findings"] == list(report.findings)
    assert saved["headline"] == report.headline
    assert [row["label"] for row in saved["traces"]] == ["rank 0", "rank 1"]
    for wanted in ("Loss", "Step time per rank", "Where the time of a step goes", "Timeline of step 21"):
        assert wanted in page_of(report)


@pytest.mark.parametrize(("share", "shown"), [(0.0, "0%"), (0.004, "0.4%"), (0.0001, "<0.1%"), (0.017, "1.7%")])
def test_finding_and_table_show_the_same_share_of_overlapped_communication(
    tmp_path: Path, share: float, shown: str
) -> None:
    report = build(run_folder(tmp_path / "run"))
    rows = [
        replace(row, trace=replace(row.trace, overlapped_s=share * row.trace.communication_s)) for row in report.traces
    ]
    (sentence,) = findings._overlap([row.trace for row in rows])
    assert sentence.endswith(f"; {shown} of it is overlapped.")
    assert text_of(replace(report, traces=tuple(rows))).count(f" {shown} overlapped") == len(rows)


@pytest.mark.parametrize(("step", "cause"), [(-1, " (compilation)"), (0, ""), (None, "")])
def test_a_slow_step_is_explained_by_the_trainers_compiling_event(tmp_path: Path, step: int | None, cause: str) -> None:
    folder = run_folder(tmp_path / "llama-8b")
    event = {"kind": "compiling", "message": "", "at": 1.0, "attempt": 0, "step": step}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert f"Step 0 took 2.00 s{cause}; the median is 100 ms." in build(folder).findings


def test_a_step_after_writing_the_trace_is_explained_and_excluded_from_medians(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for rank, write_s in ((0, 0.5), (1, 3.5)):
        overhead = {19: {"trace_start_s": 0.2}, 23: {"trace_write_s": write_s}}
        times = {**dict.fromkeys(range(16, 30), 0.1), 19: 0.2, 23: 3.1 if rank == 0 else 0.1}
        lines = [
            metrics_line(i, step_time_s=time_s, tokens_per_s=100 / time_s, **overhead.get(i, {}))
            for i, time_s in times.items()
        ]
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(lines))
    report = build(folder)
    assert [(p.step, p.rank, p.start_s, p.write_s, p.spread_s) for p in report.profiler_overheads] == [
        (19, 0, 0.2, 0.0, 0.0),
        (23, 1, 0.0, 3.5, 3.0),
    ]
    explained = (
        "Before step 19 the profiler was started (200 ms) and before step 23 the trace was written (3.50 s on rank 1, "
        "3.00 s more than on the fastest). Step times do not include this; medians exclude these steps; in them, "
        "faster ranks wait for the others."
    )
    assert report.findings[1:3] == ("Step 23 took 3.10 s; the median is 100 ms.", explained)
    shown = page_of(report)
    assert "step 23: 3.10 s, trace written" in shown
    assert "traced; written before step 23 in 3.50 s" in shown
    assert "median 100 ms" in text_of(report)


def test_medians_exclude_steps_after_starting_the_profiler_or_writing_the_trace(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ranks=1)
    steps = [(0.1, {}), (0.1, {}), (0.9, {"trace_start_s": 0.4}), (0.9, {"trace_write_s": 0.7}), (0.9, {})]
    lines = [
        metrics_line(i, step_time_s=s, tokens_per_s=1 / s, mfu=s, **overhead) for i, (s, overhead) in enumerate(steps)
    ]
    (folder / "metrics/rank-0.jsonl").write_text("".join(lines))
    facts = build(folder).summary
    assert (facts.step_time_s, facts.tokens_per_s, facts.mfu) == (0.1, 10.0, 0.1)


def test_small_profiler_overhead_is_not_a_finding(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ranks=1)
    lines = [metrics_line(i, step_time_s=1.0, trace_write_s=0.04 if i == 23 else None) for i in range(40)]
    (folder / "metrics/rank-0.jsonl").write_text("".join(lines))
    report = build(folder)
    assert [overhead.step for overhead in report.profiler_overheads] == [23]
    assert not any("trace was written" in sentence for sentence in report.findings)


def test_console_markup_in_names_is_printed_unchanged(tmp_path: Path) -> None:
    assert HOSTILE in text_of(build(run_folder(tmp_path / "run"), name=HOSTILE))


def test_with_no_color_no_escape_code_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = build(run_folder(tmp_path / "run"))
    assert "\x1b[3" in text_of(report, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in text_of(report, force_terminal=True)


def test_the_terminal_shows_the_same_findings(tmp_path: Path) -> None:
    report = build(run_folder(tmp_path / "run", slow_rank=1))
    shown = " ".join(text_of(report).split())
    for sentence in (report.headline, *report.findings):
        assert sentence in shown
    for wanted in ("40 steps", "loss 5.00 → 2.56", "rank 0", "11.1% overlapped", "aten::mm", "▁"):
        assert wanted in shown


def test_wrapped_findings_have_a_hanging_indentation(tmp_path: Path) -> None:
    lines = text_of(build(run_folder(tmp_path / "run", slow_rank=1)), width=50).splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith(" • Communication runs")]
    assert re.match(r"   \S", lines[first + 1])


def test_collected_and_spooled_traces_give_the_same_report(tmp_path: Path) -> None:
    spooled = build(run_folder(tmp_path / "a"), tmp_path / "out-a")
    folder = run_folder(tmp_path / "b")
    collect(["--run-dir", str(folder), "--role", "trainer", "--index", "0", "--until-idle", "--ranks", "1"])
    collected = build(folder, tmp_path / "out-b")
    assert [row.trace.time_by_category_s for row in collected.traces] == [
        row.trace.time_by_category_s for row in spooled.traces
    ]
    assert collected.traces[1].trace.source.endswith(".json.gz")


def test_damaged_traces_are_listed_with_the_reason_and_the_others_reported(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", ranks=4)
    spool = folder / "traces/spool"
    for rank, keep in ((1, 700), (2, 0)):
        path = spool / f"rank-{rank}.attempt-0.steps-20-23.json"
        path.write_bytes(path.read_bytes()[:keep])
    # The collector finds rank 1's, the report rank 2's; rank 3's is unfinished.
    collect(["--run-dir", str(folder), "--role", "trainer", "--index", "0", "--until-idle", "--ranks", "1"])
    (spool / "rank-3.attempt-0.steps-20-23.json").rename(spool / "rank-3.attempt-0.steps-20-23.json.tmp")
    report = build(folder)
    reasons = {s.file.rpartition("/")[2]: s.reason for s in report.skipped}
    assert set(reasons) == {f"rank-{rank}.attempt-0.steps-20-23.json" for rank in (1, 2, 3)}
    assert re.search(r"truncated.*byte \d+", reasons["rank-1.attempt-0.steps-20-23.json"])
    assert "is empty" in reasons["rank-2.attempt-0.steps-20-23.json"]
    assert "not finished" in reasons["rank-3.attempt-0.steps-20-23.json"]
    assert [row.label for row in report.traces] == ["rank 0"]
    missing = "There are traces of 1 of 4 ranks; there is none of ranks 1, 2 and 3."
    assert f"{missing} Findings about ranks cover only those traced." in report.notes
    assert "no trace of ranks 1, 2 and 3 shows whether this rank waits for it" in report.headline
    assert all(file in page_of(report) for file in reasons)


def test_the_newest_attempt_and_window_is_analysed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for attempt, first in ((1, 20), (1, 30), (0, 90)):
        path = folder / f"traces/spool/rank-0.attempt-{attempt}.steps-{first}-{first + 3}.json"
        write_trace(path, training_steps(3, first=first), rank=0, world_size=2)
    report = build(folder)
    assert report.traced_steps == (30, 33)
    assert [step.step for step in report.traces[0].trace.steps] == [30, 31, 32]


def test_after_a_resume_the_metrics_of_the_highest_attempt_are_used(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    with (folder / "metrics/rank-0.jsonl").open("a") as lines:
        lines.write(metrics_line(38, attempt=1, loss=1.0) + metrics_line(39, attempt=1, loss=1.0))
        lines.write(metrics_line(39, attempt=0, loss=9.0) + '{"step": 40, "att')
    report = build(folder)
    assert report.loss is not None
    assert (report.summary.steps, report.loss.values[-2:]) == (40, (1.0, 1.0))
    assert [(s.file, s.reason) for s in report.skipped] == [("metrics/rank-0.jsonl", "cannot be read: line 44")]


def test_a_run_without_traces_is_reported_from_its_metrics(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for path in (folder / "traces/spool").iterdir():
        path.unlink()
    report = build(folder)
    assert report.traces == ()
    assert "Loss" in page_of(report)
    assert "Time per kind of work" not in page_of(report)


PLANNED = {"kind": "trace_planned", "step": 200, "message": "steps 200:205 are to be traced"}
MISSED = {"kind": "trace_missed", "step": 39, "message": "no trace of steps 200:205: the run ends with step 39"}
FAILED = {"kind": "trace_failed", "step": 22, "message": "no trace of steps 20:23: No space left on device"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([PLANNED, MISSED], "No trace of steps 200:205: the run ends with step 39."),
        ([{**PLANNED, "attempt": 1}, {**MISSED, "attempt": 0}], "No trace yet: steps 200:205 are to be traced, and"),
        ([PLANNED], "No trace yet: steps 200:205 are to be traced, and the newest step is 40."),
        ([PLANNED, FAILED], "No trace of steps 20:23: No space left on device."),
    ],
)
def test_the_reason_for_a_missing_trace_is_on_the_page_and_in_the_terminal(
    tmp_path: Path, events: list[dict[str, object]], expected: str
) -> None:
    folder = run_folder(tmp_path / "run")
    for path in (folder / "traces/spool").iterdir():
        path.unlink()
    (folder / "events.jsonl").write_text("".join(json.dumps({"attempt": 0, **event}) + "\n" for event in events))
    report = build(folder)
    assert [sentence for sentence in report.findings if sentence.startswith(expected)]
    assert expected in "".join(Page(page_of(report)).texts)
    assert expected in " ".join(text_of(report).replace("•", "").split())


def test_with_other_traces_only_failed_ones_are_findings(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (PLANNED, MISSED, FAILED)))
    sentences = [sentence for sentence in build(folder).findings if sentence.startswith("No trace")]
    assert sentences == ["No trace of steps 20:23: No space left on device."]


def test_an_empty_run_is_rejected_with_the_reason_for_the_missing_trace(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").mkdir()
    (tmp_path / "events.jsonl").write_text(json.dumps({**MISSED, "message": "no trace of steps 2:3: no step was seen"}))
    with pytest.raises(InvalidTrace, match="no trace of steps 2:3: no step was seen"):
        build(tmp_path)


@pytest.mark.parametrize("files", [[], ["metrics/rank-0.jsonl"]])
def test_a_folder_without_metrics_and_traces_is_rejected(tmp_path: Path, files: Sequence[str]) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    with pytest.raises(InvalidTrace, match="nothing to report"):
        build(tmp_path)
    assert not (tmp_path / "report").exists()


def test_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="no such file or folder"):
        build(tmp_path / "nowhere")


def test_claimed_traces_are_reported(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    claimed = folder / "traces/claimed/trainer-1"
    claimed.mkdir(parents=True)
    (folder / "traces/spool/rank-1.attempt-0.steps-20-23.json").rename(claimed / "rank-1.attempt-0.steps-20-23.json")
    assert [row.label for row in build(folder).traces] == ["rank 0", "rank 1"]


def test_a_report_is_loaded_as_it_was_built(tmp_path: Path) -> None:
    built = build(run_folder(tmp_path))
    assert built.page is not None
    assert load(built.page) == built
    Path(built.page).with_name("report.json").write_text('{"facts": 1}')
    with pytest.raises(InvalidTrace, match="not a report of this version"):
        load(built.page)
    Path(built.page).with_name("report.json").write_text('{"unknown": ' + DEEP + "}")
    with pytest.raises(InvalidTrace, match="not a report of this version"):
        load(built.page)


def test_files_nested_too_deeply_are_skipped_and_the_others_reported(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    metrics = sorted((folder / "metrics").iterdir())[0]
    metrics.write_text(metrics.read_text() + '{"step": 41, "unknown": ' + DEEP + "}\n")
    (folder / "heartbeats").mkdir(exist_ok=True)
    (folder / "heartbeats" / "rank-0.json").write_text('{"rank": 0, "unknown": ' + DEEP + "}")
    trace = sorted((folder / "traces/spool").glob("rank-1.*"))[0]
    trace.write_text('{"traceEvents": [{"ph": "X", "args": ' + DEEP + "}]}")
    report = build(folder)
    assert {s.file.rpartition("/")[2] for s in report.skipped} == {metrics.name, "rank-0.json", trace.name}
    assert [row.label for row in report.traces] == ["rank 0"]


def test_steps_last_as_long_on_the_device_whatever_the_host_takes(tmp_path: Path) -> None:
    run_folder(tmp_path)
    for rank, cpu_us in enumerate((300.0, 900.0)):
        events = [step(20, 0, cpu_us), launch(1, 10), kernel("gemm", 100, 1000, launch=1)]
        write_trace(tmp_path / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json", events, rank=rank, world_size=2)
    report = build(tmp_path)
    assert [row.trace.step_s for row in report.traces] == [{20: 0.0011}] * 2


@pytest.mark.parametrize("columns", [60, 80])
def test_in_a_narrow_terminal_lines_wrap_between_parts(tmp_path: Path, columns: int) -> None:
    lines = [line.rstrip() for line in text_of(build(run_folder(tmp_path, ranks=4)), width=columns).splitlines()]
    assert max(map(len, lines)) <= columns
    parts = [part for line in lines if " · " in line for part in line.split(" · ")]
    assert {"4 ranks", "CPU"} <= set(parts)
    assert any(part.startswith("peak memory ") and part.endswith("GiB") for part in parts)
    assert not any("…" in line for line in lines)
    legend = lines[lines.index("Where the time of a step goes") + 5 : lines.index("Loss") - 1]
    assert legend
    assert all(line.startswith("  ") for line in legend)


def test_traces_of_earlier_steps_are_mentioned(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    assert not any("other window" in sentence for sentence in build(folder).notes)
    for trace in list((folder / "traces/spool").iterdir()):
        shutil.copy(trace, trace.with_name(trace.name.replace("steps-20-23", "steps-10-13")))
    assert "Traces of steps 20 to 22 are analysed; 1 other window of steps not." in build(folder).notes
