"""`muster trace JOB`: what it asks for, what it prints, how it ends."""

from __future__ import annotations

import json
import pickle
import sys
import textwrap
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job, status
from tests.local.support import eventually, shell_job
from tests.tracing.flight_recorder import dump, entry, write_dumps
from tests.tracing.kineto import Event, step, write_trace

from muster.api.spec import TraceCaptureStatus
from muster.api.spec.captures import CapturedRank
from muster.capture.protocol import HungRank
from muster.local.client import LocalClient

DONE = TraceCaptureStatus(
    phase="Succeeded", reason="TracesStored", message="1 trace of steps 7 to 9 stored", proposal=1, start_step=7,
    end_step=10, ranks=[CapturedRank(rank=0, state="collected", file="r.json.gz")], location="/runs/llama",
)  # fmt: skip
AGREED = DONE.model_copy(update={"phase": "Agreed", "message": "steps 7 to 9 are agreed"})


@pytest.fixture
def llama(cluster: MemoryClient) -> MemoryClient:
    cluster.kept_jobs["llama"] = job("llama")
    cluster.captures = [AGREED, DONE]
    return cluster


def test_progress_goes_to_stderr_and_the_location_and_the_next_command_to_stdout(
    llama: MemoryClient, muster: Muster
) -> None:
    ended = muster("trace", "llama", "--steps", "3", "--ranks", "0,8", "--with", "stacks,flops")
    assert (ended.code, ended.out) == (0, "trace: /runs/llama/traces/r.json.gz\nreport: muster report llama\n")
    assert ended.err == "steps 7 to 9 are agreed\n1 trace of steps 7 to 9 stored\n"
    ((_, spec),) = llama.calls
    assert (spec.job, spec.steps, spec.ranks, spec.options) == ("llama", 3, "0,8", ["stacks", "flops"])


def test_of_many_traces_the_folder_is_printed(llama: MemoryClient, muster: Muster) -> None:
    ranks = [CapturedRank(rank=rank, state="collected", file=f"{rank}.json.gz") for rank in range(17)]
    llama.captures = [DONE.model_copy(update={"ranks": ranks})]
    assert muster("trace", "llama").out.startswith("traces: /runs/llama/traces (17 files)\n")


def test_errors_name_the_form_in_which_the_command_was_given(llama: MemoryClient, muster: Muster) -> None:
    short, full = muster("trace", "llama", "--step", "3"), muster("trace", "capture", "llama", "--step", "3")
    assert (short.code, full.code) == (2, 2)
    assert "Usage: muster trace JOB [OPTIONS]\nTry 'muster trace JOB --help'" in short.err
    assert "Usage: muster trace capture [OPTIONS] JOB\nTry 'muster trace capture --help'" in full.err
    assert "--with LIST" in muster("trace", "JOB", "--help").out


def test_memory_is_another_kind_of_capture(llama: MemoryClient, muster: Muster) -> None:
    ended = muster("trace", "llama", "--memory")
    assert (ended.code, ended.out) == (0, "snapshots: /runs/llama/traces/memory\nanalysis: muster memory llama\n")
    assert llama.calls[0][1].kind == "Memory"
    assert muster("trace", "llama", "--memory", "--with", "shapes").code == 2
    assert muster("trace", "llama", "--memory", "--stacks").code == 2


def test_json_is_the_object(llama: MemoryClient, muster: Muster) -> None:
    ended = muster("trace", "capture", "llama", "--json")
    assert (ended.code, ended.err) == (0, "")
    (row,) = ended.rows
    assert (row["kind"], row["spec"]["steps"], row["status"]["startStep"]) == ("TraceCapture", 5, 7)


def test_a_failed_capture_is_an_error_and_one_that_never_began_is_refused(llama: MemoryClient, muster: Muster) -> None:
    failed = DONE.model_copy(update={"phase": "Failed", "reason": "NotAcknowledged", "message": "rank 3: no answer"})
    llama.captures = [failed]
    ended = muster("trace", "llama")
    assert (ended.code, ended.err, ended.out) == (1, "error: rank 3: no answer (NotAcknowledged)\n", "")
    llama.captures = [failed.model_copy(update={"proposal": 0, "reason": "NoHeartbeat"})]
    ended = muster("trace", "llama", "--json")
    assert (ended.code, ended.error["reason"], ended.rows[0]["status"]["phase"]) == (3, "NoHeartbeat", "Failed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "first"), "--ranks must be all, ranks such as 0,8, stage-leaders, slowest, or random:4"),
        (("--with", "stack"), "--with must be a list of stacks, shapes, memory, flops, modules, or none; got 'stack'"),
        (("--steps", "0"), "Invalid value for '--steps'"),
    ],
)
def test_invalid_options_name_what_is_valid(
    llama: MemoryClient, muster: Muster, words: tuple[str, ...], message: str
) -> None:
    ended = muster("trace", "llama", *words)
    assert ended.code == 2
    assert message in ended.err
    assert llama.calls == []


def test_stacks_say_first_which_rank_is_elsewhere(llama: MemoryClient, muster: Muster) -> None:
    llama.hung = [HungRank(0, ("wait (/w.py:1)",)), HungRank(1, ("sleep (/s.py:2)",)), HungRank(2, ("wait (/w.py:1)",))]
    ended = muster("trace", "llama", "--stacks")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "rank 1 is in sleep (/s.py:2); ranks 0, 2 are in wait (/w.py:1)"
    assert [row["rank"] for row in muster("trace", "llama", "--stacks", "--json").rows] == [0, 1, 2]
    llama.hung = [HungRank(0, reason="the rank has no handler")]
    ended = muster("trace", "llama", "--stacks")
    assert (ended.code, ended.err) == (3, "error: the rank has no handler (NoStacks)\n")
    ended = muster("trace", "llama", "--stacks", "--steps", "3")
    assert (ended.code, "--stacks cannot be combined with --steps" in ended.err) == (2, True)


def test_hang_names_the_rank_that_others_waited_for_in_a_run_a_folder_and_files(
    llama: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    groups = {"1": ("mesh_fsdp", "[0, 1]")}
    dumps = {0: dump(entry(8, state="started"), groups=groups), 1: dump(entry(7), groups=groups)}
    expected = "rank 1 never entered all-gather 8 of group fsdp; rank 0 waits in it"
    files = [str(file) for file in write_dumps(tmp_path, dumps)]
    ended = muster("trace", "hang", *files)
    assert (ended.code, ended.out) == (0, f"{expected}\n")
    recorder = llama.run_root / "llama" / "flight-recorder"
    recorder.mkdir(parents=True)
    for rank, content in dumps.items():
        for name, written in (("0.stop", dump()), ("1.stop", content)):
            (recorder / f"rank-{rank}.attempt-{name}.pickle").write_bytes(pickle.dumps(written))
    (recorder / "rank-7.attempt-1.stop.pickle").write_bytes(b"x")
    ended = muster("trace", "hang", "llama")
    assert (ended.code, ended.out) == (0, f"{expected}\n")
    assert "rank-7.attempt-1.stop.pickle: must be a pickle" in ended.err
    assert json.loads(muster("trace", "hang", "llama", "--json").out)["sentences"] == [expected]


def test_hang_without_a_dump_is_refused(muster: Muster, tmp_path: Path) -> None:
    ended = muster("trace", "hang", str(tmp_path), "--json")
    assert (ended.code, ended.error["reason"]) == (2, "InvalidTrace")
    assert "contains no dump of torch's flight recorder" in ended.error["message"]


@pytest.mark.slow
def test_a_job_of_this_host_that_hangs_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, muster: Muster
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("import time\n\ndef stand_still():\n    time.sleep(1000)\n\nstand_still()\n")
    launch = f"{sys.executable} -m muster_components.launch --nproc 2 --"
    run = f"exec {launch} -m muster_components.trainer.instrument {tmp_path}/train.py"
    client = LocalClient.up(nodes="1x2")
    try:
        client.submit_all([shell_job("hung", run)])
        eventually(lambda: len(client.heartbeats("hung")) == 2)

        def shown() -> str:
            return muster("trace", "hung", "--stacks").out.partition("\n")[0]

        script = f"{tmp_path}/train.py"
        eventually(lambda: shown() == f"ranks 0, 1 are all in stand_still ({script}:4)")
    finally:
        client.down(force=True)


SCRIPT = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step(), optimizer.zero_grad(), time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.smoke
def test_a_running_job_of_this_host_is_profiled_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, muster: Muster
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    run = f"exec {sys.executable} -m muster_components.trainer.instrument {tmp_path}/train.py"
    client = LocalClient.up(nodes="1x2")
    try:
        client.submit_all([shell_job("script", run), shell_job("plain", "sleep 1000"), shell_job("idle", "true")])
        eventually(lambda: any(heartbeat["step"] for heartbeat in client.heartbeats("script")))
        eventually(lambda: client.job("plain").status.phase == "Running")
        eventually(lambda: client.job("idle").status.phase == "Succeeded")

        ended = muster("trace", "script", "--steps", "2", "--json")
        assert ended.code == 0, ended.err
        (row,) = ended.rows
        folder = Path(row["status"]["location"])
        assert (folder / "traces" / row["status"]["ranks"][0]["file"]).is_file()
        assert row["status"]["endStep"] == row["status"]["startStep"] + 2
        assert "1 rank" in muster("report", "script").out

        for words, reason in {
            ("script", "--ranks", "5"): "RankNotFound",
            ("plain",): "NoHeartbeat",
            ("idle",): "JobNotRunning",
            ("absent",): "NotFound",
        }.items():
            ended = muster("trace", *words, "--json")
            assert (ended.code, ended.error["reason"]) == (3, reason), ended.err
        assert "muster_components.trainer.instrument SCRIPT" in muster("trace", "plain").err
    finally:
        client.down(force=True)


def test_diff_lists_what_changed_and_refuses_a_side_without_traces(
    muster: Muster, cluster: MemoryClient, tmp_path: Path
) -> None:
    for name, duration in (("a", 100.0), ("b", 150.0)):
        write_trace(
            tmp_path / name / "0.json", [step(1, 0, 1000), Event("aten::mm", 10, duration), step(2, 1000, 1000)]
        )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert muster("trace", "diff", a, b).out == "operator aten::mm: +0.025 ms a step (0.05 -> 0.075 ms, 0.5 calls)\n"
    (row,) = muster("trace", "diff", a, b, "--json").rows
    assert (row["kind"], row["name"], row["aMilliseconds"], row["bMilliseconds"]) == (
        "operator",
        "aten::mm",
        0.05,
        0.075,
    )
    (tmp_path / "empty").mkdir()
    ended = muster("trace", "diff", a, str(tmp_path / "empty"))
    assert (ended.code, "must have a readable trace" in ended.err) == (2, True)


@pytest.mark.parametrize("words", [("hang",), ("hang", "--steps", "2"), ("diff", "--memory")])
def test_a_job_may_have_the_name_of_a_verb(cluster: MemoryClient, muster: Muster, words: tuple[str, ...]) -> None:
    cluster.kept_jobs[words[0]] = job(words[0], status("Running"))
    cluster.captures = [TraceCaptureStatus.model_validate({"phase": "Failed", "reason": "Seen", "message": words[0]})]
    assert muster("trace", *words, "--json").error["reason"] == "Seen"


def test_a_verb_without_its_argument_is_explained_if_no_job_has_its_name(
    cluster: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    ended = muster("trace", "hang")
    assert (ended.code, "muster trace hang -h" in ended.err) == (3, True)
    assert muster("trace", "hang", str(tmp_path)).code == 2, "the verb"
    assert muster("trace", "hang", "-h").out.startswith("Usage: muster trace hang")


def test_files_of_a_folder_that_are_no_dumps_are_not_named_as_bad_ones(muster: Muster, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04 a checkpoint")
    (tmp_path / "notes.txt").write_text("notes")
    ended = muster("trace", "hang", str(tmp_path), "--json")
    assert ended.code == 2
    assert "contains no dump of torch's flight recorder" in ended.error["message"]
    assert "2 files there: something else" in ended.error["message"]
    assert "model.pt" not in ended.error["message"]
    named = muster("trace", "hang", str(tmp_path / "model.pt"), "--json")
    assert "model.pt" in named.error["message"], "a file that was given is"
