"""Unmodified scripts under `instrument`: same behaviour, with heartbeats, metrics and traces."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from .conftest import Starter, events, metrics

ATTACH = "muster_components.trainer.instrument"

GAN = """
    import sys, torch
    assert __name__ == "__main__" and sys.argv[1:] == ["--lr", "0.1"], sys.argv
    import beside  # a module in the script's folder
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())
    for _ in range(8):
        second(first(torch.ones(4, 8))).sum().backward()
        one.step(), two.step(), one.zero_grad(), two.zero_grad()
    print("trained", beside.WHERE)
    sys.exit(7)
"""


def script(folder: Path, source: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(source))
    return str(folder / name)


def test_a_missing_script_or_module_is_named_and_the_exit_code_is_2(start: Starter) -> None:
    for arguments, message in {
        ("missing.py",): "script 'missing.py' does not exist",
        ("-m", "missing.module"): "module 'missing.module' does not exist",
        (".",): "script '.' is a folder",
        (): "nothing to run: give a Python script, or -m MODULE",
        ("--trace_steps", "9", "x.py"): "--trace_steps must be FIRST:END",
        ("--tracing", "x.py"): "unrecognized arguments: --tracing",
    }.items():
        ranks = start(1, *arguments, module=ATTACH)
        assert ranks.end() == [2]
        assert ranks.log_text().startswith(f"instrument: {message}")
        assert ranks.log_text().count("\n") == 1


def test_a_script_without_torch_runs_with_its_own_arguments_and_exit_code(start: Starter, tmp_path: Path) -> None:
    path = script(tmp_path, "import sys; print(sys.argv[1:], 'torch' in sys.modules); sys.exit(5)")
    ranks = start(1, path, "-m", "--trace_steps", "x", module=ATTACH)
    assert ranks.end() == [5]
    assert ranks.log_text() == "['-m', '--trace_steps', 'x'] False\n"
    heartbeat = json.loads((ranks.run_dir / "heartbeats" / "rank-0.json").read_text())
    assert (heartbeat["phase"], heartbeat["step"], heartbeat["step_time_s"]) == ("done", 0, None)


OUT_OF_MEMORY = """
import sys
from muster_components.trainer import instrument

instrument.OptimizerWatcher.on_out_of_memory = lambda self: print("saved", flush=True)
sys.exit(instrument.main(sys.argv[1:]))
"""


def test_a_memory_snapshot_is_saved_if_and_only_if_a_script_ends_because_it_is_out_of_memory(
    start: Starter, tmp_path: Path
) -> None:
    (tmp_path / "patched.py").write_text(OUT_OF_MEMORY)
    for name, saved in (("OutOfMemoryError", True), ("RuntimeError", False)):
        source = f"class OutOfMemoryError(RuntimeError): pass\nraise {name}('CUDA out of memory')"
        ranks = start(1, script(tmp_path, source), module="patched")
        assert ranks.end() == [1]
        assert ("saved\n" in ranks.log_text()) == saved
        assert "CUDA out of memory" in ranks.log_text()


def test_configured_steps_that_a_script_does_not_reach_are_reported(start: Starter, tmp_path: Path) -> None:
    ranks = start(1, "--trace_steps", "200:205", script(tmp_path, "print('no torch')"), module=ATTACH)
    assert ranks.end() == [0]
    (missed,) = events(ranks.run_dir, "trace_missed")
    assert (missed["step"], missed["message"]) == (0, "no trace of steps 200:205: no step was seen")
    lines = ["no torch", "no trace of steps 200:205: no step was seen"]
    assert sorted(ranks.log_text().splitlines()) == lines, (
        "in an order that depends on the buffer of the script's output"
    )


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_traceback_has_only_frames_of_the_script(start: Starter, tmp_path: Path, how: str) -> None:
    path = script(tmp_path, "def fail():\n    raise ValueError('no luck')\n\nfail()\n", "job.py")
    ranks = start(1, *(["-m", "job"] if how == "module" else [path]), module=ATTACH)
    assert ranks.end() == [1]
    lines = ranks.log_text().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(",")[0] for line in lines if line.startswith("  File ")] == [f'  File "{path}"'] * 2
    assert lines[-1] == "ValueError: no luck"
    heartbeat = json.loads((ranks.run_dir / "heartbeats" / "rank-0.json").read_text())
    assert heartbeat["phase"] == "done"


def test_the_scripts_own_exception_hook_is_called(start: Starter, tmp_path: Path) -> None:
    source = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine:', error)\n1 / 0\n"
    ranks = start(1, script(tmp_path, source), module=ATTACH)
    assert ranks.end() == [1]
    assert ranks.log_text() == "mine: division by zero\n"


def test_a_module_runs_as_python_m_would(start: Starter, tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(__name__, __spec__.name, sys.argv[1:])", "job.py")
    ranks = start(1, "-m", "job", "a", module=ATTACH)
    assert ranks.end() == [0]
    assert ranks.log_text() == "__main__ job ['a']\n"


def test_an_exception_of_the_script_gives_exit_code_1_and_its_traceback(start: Starter, tmp_path: Path) -> None:
    ranks = start(1, script(tmp_path, "def f():\n    raise ValueError('odd')\nf()"), module=ATTACH)
    assert ranks.end() == [1]
    assert 'train.py", line 2, in f' in ranks.log_text()
    assert ranks.log_text().endswith("ValueError: odd\n")


@pytest.mark.slow
@pytest.mark.smoke
def test_optimizer_steps_are_counted_once_and_the_configured_ones_traced(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WHERE = 'here'")
    path = script(tmp_path, GAN)
    ranks = start(1, path, "--lr", "0.1", module=ATTACH, environ={"MUSTER_TRACE_STEPS": "3:5"})
    assert ranks.end() == [7], ranks.log_text()
    assert ranks.log_text() == "trained here\n"
    lines = metrics(ranks.run_dir)
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert lines[0]["step_time_s"] is None
    assert all(line["step_time_s"] > 0 for line in lines[1:])
    assert [line["step"] for line in lines if line["trace_start_s"]] == [2]
    assert [line["step"] for line in lines if line["trace_write_s"]] == [5]
    heartbeat = json.loads((ranks.run_dir / "heartbeats" / "rank-0.json").read_text())
    assert (heartbeat["phase"], heartbeat["step"]) == ("done", 8)
    trace = json.loads((ranks.run_dir / "traces" / "spool" / "rank-0.attempt-0.steps-3-5.json").read_text())
    assert steps_in(trace) == ["ProfilerStep#3", "ProfilerStep#4"]
    assert trace["distributedInfo"] == {"backend": "none", "rank": 0, "world_size": 1}
    assert trace["muster"]["start_step"] == 3


@pytest.mark.slow
def test_a_script_that_ends_while_it_is_traced_leaves_a_trace_of_its_steps(start: Starter, tmp_path: Path) -> None:
    path = script(tmp_path, GAN.replace("range(8)", "range(4)"))
    (tmp_path / "beside.py").write_text("WHERE = 'here'")
    ranks = start(1, "--trace_steps", "3:50", path, "--lr", "0.1", module=ATTACH)
    assert ranks.end() == [7]
    (trace,) = (ranks.run_dir / "traces" / "spool").iterdir()
    assert trace.name == "rank-0.attempt-0.steps-3-5.json"
    assert steps_in(json.loads(trace.read_text()))[:2] == ["ProfilerStep#3", "ProfilerStep#4"]
    assert len(events(ranks.run_dir, "trace_written")) == 1


def steps_in(trace: dict[str, object]) -> list[str]:
    found = trace["traceEvents"]
    assert isinstance(found, list)
    steps = {event["name"] for event in found if str(event.get("name", "")).startswith("ProfilerStep#")}
    return sorted(steps)
