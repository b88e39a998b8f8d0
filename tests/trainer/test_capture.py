"""Traces on demand: real ranks profile the same steps, again and again, and a lost rank or reader damages no file."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from muster.api.spec import TraceCaptureSpec, TraceCaptureStatus
from muster.capture.folder import read_answers, write_request
from muster.capture.local import run_capture
from muster.capture.protocol import CaptureRequest
from muster.tracing.shared_folder import SharedFolder
from muster_components.trainer.capture import CaptureInbox, parse_request
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import run_context
from muster_components.trainer.profile import StepTracer
from muster_components.trainer.reporter import Reporter

from .conftest import TINY, Ranks, Starter, events

ENDLESS = ("--steps", "10000000", "--checkpoint_every", "0")
OF_A_JOB = {"MUSTER_JOB": "learn"}


def capture(run_dir: Path, capture_id: str, **spec: Any) -> Generator[TraceCaptureStatus, None, None]:
    return run_capture(run_dir, capture_id, TraceCaptureSpec(job="learn", **spec), lambda: "")


def finished(run_dir: Path, capture_id: str, **spec: Any) -> TraceCaptureStatus:
    return deque(capture(run_dir, capture_id, **spec), maxlen=1).pop()


def annotated_steps(run_dir: Path, file: str) -> set[int]:
    trace = json.loads(gzip.decompress((run_dir / "traces" / file).read_bytes()))
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    return {int(name.removeprefix("ProfilerStep#")) for name in names if name.startswith("ProfilerStep#")}


def two_ranks(start: Starter, text: Path) -> Ranks:
    ranks = start(2, *TINY, "--data", str(text), *ENDLESS, environ=OF_A_JOB)
    ranks.wait_until(lambda: ranks.steps_done() >= 1 and heartbeats(ranks.run_dir) == 2)
    return ranks


def heartbeats(run_dir: Path) -> int:
    """The ranks that have completed a step."""
    files = (run_dir / "heartbeats").glob("rank-*.json")
    return sum((json.loads(file.read_text())["step"] or 0) >= 1 for file in files)


@pytest.mark.slow
def test_all_ranks_profile_the_agreed_steps_and_do_so_again(
    start: Starter, text: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = two_ranks(start, text)
    for number, options in enumerate((["shapes"], ["memory", "stacks"])):
        status = finished(ranks.run_dir, f"c{number}", steps=3, options=options)
        assert status.phase == "Succeeded", (status, ranks.log_text())
        assert [entry.state for entry in status.ranks] == ["collected"] * 2
        assert status.start_step is not None
        wanted = set(range(status.start_step, status.start_step + 3))
        assert [annotated_steps(ranks.run_dir, entry.file) for entry in status.ranks] == [wanted] * 2
        text_of = gzip.decompress((ranks.run_dir / "traces" / status.ranks[0].file).read_bytes())
        assert (b"Input Dims" in text_of, b"[memory]" in text_of) == (number == 0, number == 1)
    refused = finished(ranks.run_dir, "memory", kind="Memory")
    assert (refused.phase, refused.reason) == ("Failed", "RanksFailed")
    # The first answer ends the capture; the other rank may not have answered yet.
    assert "memory snapshots are of torch's CUDA allocator; no GPU is used" in refused.message
    assert "collector" not in capfd.readouterr().err  # this process is a user's command
    one = finished(ranks.run_dir, "c2", ranks="1", steps=1)
    assert (one.phase, [entry.rank for entry in one.ranks]) == ("Succeeded", [1])


@pytest.mark.slow
def test_scripts_of_users_are_profiled_by_the_optimizer_hook(start: Starter, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import time, torch
            model = torch.nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            while True:
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step(), optimizer.zero_grad(), time.sleep(0.01)
        """)
    )
    ranks = start(1, str(script), module="muster_components.trainer.instrument", environ=OF_A_JOB)
    ranks.wait_until(lambda: heartbeats(ranks.run_dir) == 1)
    status = finished(ranks.run_dir, "c", steps=2)
    assert status.phase == "Succeeded", (status.message, ranks.log_text())
    assert status.start_step is not None
    assert annotated_steps(ranks.run_dir, status.ranks[0].file) == {status.start_step, status.start_step + 1}


@pytest.mark.slow
def test_a_program_without_an_optimizer_is_profiled_by_the_second(start: Starter, tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(
        textwrap.dedent("""
            import time, torch
            model = torch.nn.Linear(8, 1)
            with torch.no_grad():
                while True:
                    model(torch.ones(4, 8)), time.sleep(0.01)
        """)
    )
    ranks = start(1, str(script), module="muster_components.trainer.instrument", environ=OF_A_JOB)
    heartbeat = ranks.run_dir / "heartbeats" / "rank-0.json"
    ranks.wait_until(lambda: heartbeat.exists() and json.loads(heartbeat.read_text()).get("time_slice"))
    status = finished(ranks.run_dir, "c", steps=2)
    assert status.phase == "Succeeded", (status.message, ranks.log_text())
    file = status.ranks[0].file
    assert status.start_step is not None
    assert annotated_steps(ranks.run_dir, file) == {status.start_step, status.start_step + 1}
    assert b"aten::linear" in gzip.decompress((ranks.run_dir / "traces" / file).read_bytes())  # of the main thread
    assert json.loads(heartbeat.read_text())["step"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["proposed", "armed", "recording"])
def test_a_rank_that_is_killed_at_a_stage_of_a_capture_leaves_whole_traces_and_is_named(
    start: Starter, text: Path, stage: str
) -> None:
    ranks = two_ranks(start, text)
    problem = ""
    states = run_capture(ranks.run_dir, "c", TraceCaptureSpec(job="learn", steps=1000), lambda: problem)
    status = next(states)
    for status in states:
        reached = {entry.state for entry in status.ranks}
        is_there = {
            "proposed": status.proposal > 0,
            "armed": bool(reached & {"armed", "recording"}),
            "recording": "recording" in reached,
        }
        if problem == "" and is_there[stage]:
            ranks.processes[1].kill()
            problem = "the job is Failed, not Running"
    # The rank that is killed may not have acknowledged the steps before.
    reasons = ["RanksFailed"] if stage == "recording" or status.agreed_at else ["JobNotRunning"]
    assert (status.phase, status.reason) == ("Failed", *reasons)
    assert "the job is Failed" in status.message
    assert not list((ranks.run_dir / "traces").glob("rank-1.*"))
    files = list((ranks.run_dir / "traces").glob("rank-*.json.gz"))
    assert [entry.file for entry in status.ranks if entry.state == "collected"] == [file.name for file in files]
    for file in files:
        json.loads(gzip.decompress(file.read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["Pending", "Agreed", "Recording"])
def test_a_capture_that_is_killed_is_stored_by_the_next_one(start: Starter, text: Path, phase: str) -> None:
    ranks = two_ranks(start, text)
    killed = subprocess.Popen(
        [sys.executable, "-c", RUN_AND_PRINT, str(ranks.run_dir)], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    seen = next(line.split() for line in killed.stdout if line.startswith(phase))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    status = finished(ranks.run_dir, "second", steps=2)
    assert status.phase == "Succeeded", status.message
    if phase == "Recording":  # before that, the second request replaces the first one
        assert len(list((ranks.run_dir / "traces").glob(f"rank-*.steps-{seen[1]}-*.json.gz"))) == 2
    for file in (ranks.run_dir / "traces").glob("rank-*.json.gz"):
        json.loads(gzip.decompress(file.read_bytes()))


RUN_AND_PRINT = """
import pathlib, sys
from muster.api.spec import TraceCaptureSpec
from muster.capture.local import run_capture
for status in run_capture(pathlib.Path(sys.argv[1]), "killed", TraceCaptureSpec(job="learn", steps=20), lambda: ""):
    print(status.phase, status.start_step, flush=True)
"""


@pytest.mark.slow
def test_a_withdrawn_capture_is_not_recorded(start: Starter, text: Path) -> None:
    ranks = two_ranks(start, text)
    states = capture(ranks.run_dir, "withdrawn", steps=5)
    first = next(states)
    states.close()
    status = finished(ranks.run_dir, "kept", steps=1)
    assert status.phase == "Succeeded"
    assert status.start_step is not None
    ranks.wait_until(lambda: ranks.steps_done() > (first.end_step or 0))
    assert not list((ranks.run_dir / "traces").rglob(f"*steps-{first.start_step}-{first.end_step}*"))


def inbox(folder: Path, attempt: int = 0) -> tuple[CaptureInbox, SharedFolder]:
    environ = {"MUSTER_RUN_DIR": str(folder), "MUSTER_JOB": "learn", "MUSTER_ATTEMPT": str(attempt)}
    context = run_context(environ)
    ticks = iter(range(10**6))
    return CaptureInbox(context, Reporter(context), lambda: float(next(ticks))), SharedFolder(folder)


REQUEST = CaptureRequest(id="c", proposal=1, attempt=0, start_step=9, end_step=12)


def test_a_request_is_read_once_and_its_answer_can_be_read(tmp_path: Path) -> None:
    reader, run = inbox(tmp_path)
    assert reader.poll() is None
    assert write_request(run, REQUEST, "collector")
    assert not write_request(run, REQUEST, "collector")
    request = reader.poll()
    assert request is not None
    assert (request.start, request.end, request.ranks) == (9, 12, ())
    assert reader.poll() is None
    reader.answer(request, "armed", 5)
    (answer,) = read_answers(run)
    assert (answer.rank, answer.state, answer.step, answer.proposal) == (0, "armed", 5, 1)


def test_requests_of_other_attempts_and_damaged_ones_are_ignored(tmp_path: Path) -> None:
    reader, run = inbox(tmp_path, attempt=1)
    write_request(run, REQUEST, "collector")
    assert reader.poll() is None
    for text in (b"", b"[]", b"{", b'{"id": 1}', b"[" * 5000, b'{"start_step": 1e999}'):
        assert parse_request(text, 0) is None
    (tmp_path / "capture" / "request.json").unlink()
    os.mkfifo(tmp_path / "capture" / "request.json")
    assert reader.poll() is None


def test_memory_is_recorded_during_the_requested_steps_and_written_as_torch_pickles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: torch's functions are replaced, the steps, the file and the answers are real."""
    calls: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **how: calls.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[]]})
    reader, run = inbox(tmp_path)
    context = run_context({"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_JOB": "learn"})
    tracer = StepTracer(TraceConfig(), context, Reporter(context), reader)
    write_request(run, msgspec.structs.replace(REQUEST, options=("snapshot",)), "collector")
    transitions = {}
    for step in range(5, 15):
        if (transition := tracer.next_transition(step)) is not None:
            transitions[step] = transition
        tracer.begin_step(step)
    assert transitions == {8: "start", 12: "write"}
    assert [call.get("enabled", "all") for call in calls if isinstance(call, dict)] == ["all", None]
    (file,) = (tmp_path / "traces" / "spool").iterdir()
    assert file.name == "rank-0.attempt-0.steps-9-12.pickle"
    assert pickle.loads(file.read_bytes()) == {"segments": [], "device_traces": [[]], "muster": {"tensors": []}}
    assert [answer.state for answer in read_answers(run)] == ["written"]


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("stacks", "with_stack"),
        ("shapes", "record_shapes"),
        ("memory", "profile_memory"),
        ("flops", "with_flops"),
        ("modules", "with_modules"),
    ],
)
def test_each_option_of_a_capture_is_one_of_torchs_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, argument: str
) -> None:
    """The real profiler records; only its arguments are read."""
    given: list[dict[str, Any]] = []

    def recorded(**arguments: Any) -> torch.profiler.profile:
        given.append(arguments)
        return torch.profiler.profile(**arguments)

    monkeypatch.setattr("muster_components.trainer.profile.profile", recorded)
    reader, run = inbox(tmp_path)
    context = run_context({"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_JOB": "learn"})
    tracer = StepTracer(TraceConfig(), context, Reporter(context), reader)
    write_request(run, msgspec.structs.replace(REQUEST, options=(option,)), "collector")
    for step in range(5, 15):
        tracer.next_transition(step)
        tracer.begin_step(step)
    (arguments,) = given
    names = ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules")
    assert [name for name in names if arguments[name]] == [argument]
    assert [file.name for file in (tmp_path / "traces" / "spool").iterdir()] == ["rank-0.attempt-0.steps-9-12.json"]


def test_a_slower_step_is_followed_by_one_trace_and_the_next_one_at_least_100_steps_later(tmp_path: Path) -> None:
    context = run_context({"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_JOB": "learn"})
    reporter = Reporter(context)
    tracer = StepTracer(TraceConfig(start=1, end=3, when_slower=1.5), context, reporter)
    transitions = {}
    for step in range(10, 190):
        transition = tracer.next_transition(step)
        tracer.begin_step(step)
        if transition is not None:
            transitions[step] = transition
        reporter.pace.add(1.6 if step in (20, 50, 55, 61, 140, 171) else 1.4 if step == 40 else 1.0)
    assert transitions == {59: "start", 62: "write", 179: "start", 182: "write"}
    names = sorted(file.name for file in (tmp_path / "traces" / "spool").iterdir())
    assert names == ["rank-0.attempt-0.steps-180-182.json", "rank-0.attempt-0.steps-60-62.json"]
    (first, _) = events(tmp_path, "trace_planned")
    assert first["message"] == "a step took 1.60 times the median of those before it: steps 60:62 are to be traced"


def snapshot_tracer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StepTracer, SharedFolder]:
    """A tracer with a request for a memory snapshot, on a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reader, run = inbox(folder)
    context = run_context({"MUSTER_RUN_DIR": str(folder), "MUSTER_JOB": "learn"})
    write_request(run, msgspec.structs.replace(REQUEST, options=("snapshot",)), "collector")
    return StepTracer(TraceConfig(), context, Reporter(context), reader), run


def test_a_step_that_runs_out_of_memory_ends_the_recording_with_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[]]})
    tracer, run = snapshot_tracer(tmp_path, monkeypatch)
    for step in range(5, 10):
        tracer.next_transition(step)
        tracer.begin_step(step)
    tracer.save_snapshot(9)
    assert [file.name for file in (tmp_path / "traces" / "spool").iterdir()] == ["rank-0.attempt-0.steps-9-10.pickle"]
    assert [answer.state for answer in read_answers(run)] == ["written"]
    tracer.save_snapshot(9)  # nothing is recorded any more
    tracer.close(9)
    assert [answer.state for answer in read_answers(run)] == ["written"]


def test_training_continues_if_memory_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("recording is not supported")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refuse)
    tracer, run = snapshot_tracer(tmp_path, monkeypatch)
    for step in range(5, 15):
        tracer.next_transition(step)
        tracer.begin_step(step)
    tracer.close(14)
    (answer,) = read_answers(run)
    assert (answer.state, answer.step) == ("failed", 8)
    assert "recording is not supported" in answer.reason
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["trace_failed"]


def test_history_that_cannot_be_stopped_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_start(enabled: str | None = "all", **_: object) -> None:
        if enabled is None:
            raise RuntimeError("recording is not supported")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", only_start)
    tracer, run = snapshot_tracer(tmp_path, monkeypatch)
    for step in range(5, 9):
        tracer.next_transition(step)
        tracer.begin_step(step)
    tracer.close(8)
    (answer,) = read_answers(run)
    assert (answer.state, answer.reason) == ("failed", "the run ended after step 8")


def test_a_snapshot_is_refused_with_an_allocator_that_keeps_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    tracer, run = snapshot_tracer(tmp_path, monkeypatch)
    assert tracer.next_transition(5) is None
    (answer,) = read_answers(run)
    assert answer.state == "failed"
    assert "cudaMallocAsync" in answer.reason
