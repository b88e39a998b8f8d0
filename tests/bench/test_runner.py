"""The runner of benchmark jobs, in this process, with real programs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster_components.bench.iterations import NoIterations, read_iterations
from muster_components.bench.plan import BenchmarkProgram, InvalidPlan, Run, parse_plan
from muster_components.bench.runner import RECORD, Runner

WRITE = """
import json, os, sys
with open(os.environ["MUSTER_BENCH_FILE"], "w") as file:
    for number in range(3):
        print(json.dumps({"wall_s": float(os.environ.get("TIME", "0.5")), "cpu_s": 0.25}), file=file)
open("started", "a").write(sys.argv[1] + "\\n")
"""


def program(folder: Path, name: str = "one@A", code: str = WRITE, **changes: Any) -> BenchmarkProgram:
    command = [sys.executable, "-I", "-S", "-c", code, name]
    return replace(
        BenchmarkProgram(name=name, benchmark=name.partition("@")[0], command=command, folder=str(folder)), **changes
    )


def run_all(folder: Path, *runs: Run) -> tuple[int, list[dict[str, Any]]]:
    failed = Runner(folder / "run", {}).run_all(runs)
    lines = (folder / "run" / "bench" / "results.jsonl").read_text().splitlines()
    return failed, [json.loads(line) for line in lines]


def test_each_run_is_recorded_with_its_iterations_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = program(tmp_path), program(tmp_path, "one@B", env={"TIME": "0.75"})
    failed, records = run_all(tmp_path, Run(a, 0), Run(b, 0))
    assert failed == 0
    assert [(one["program"], one["wall_s"], one["cpu_s"], one["error"]) for one in records] == [
        ("one@A", [0.5] * 3, [0.25] * 3, ""),
        ("one@B", [0.75] * 3, [0.25] * 3, ""),
    ]
    assert all(one["total_s"] > 0 and one["total_cpu_s"] > 0 for one in records)
    assert [json.loads(line)[RECORD] for line in capsys.readouterr().out.splitlines()] == records
    assert [path.name for path in (tmp_path / "run" / "bench").iterdir()] == ["results.jsonl"]


def test_a_later_attempt_prints_the_records_and_continues_after_the_last_complete_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = program(tmp_path)
    run_all(tmp_path, Run(one, 0), Run(one, 1))
    results = tmp_path / "run" / "bench" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])  # killed while it wrote the second record
    capsys.readouterr()
    Runner(tmp_path / "run", {}).run_all([Run(one, 0), Run(one, 1), Run(one, 2)])
    printed = [json.loads(line)[RECORD]["repetition"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [0, 1, 2]
    assert len((tmp_path / "started").read_text().splitlines()) == 4


def test_after_a_failure_the_benchmark_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    broken, other = program(tmp_path, code="print('no such file'); raise SystemExit(3)"), program(tmp_path, "two@A")
    again = program(tmp_path, "one@B")
    failed, records = run_all(tmp_path, Run(broken, 0), Run(again, 0), Run(other, 0))
    assert failed == 1
    assert records[0]["error"] == "exit code 3; the end of its output:\nno such file"
    assert records[1]["error"] == "not started, since one@A.0 failed"
    assert records[2]["error"] == ""
    assert (tmp_path / "run" / records[0]["folder"] / "output.log").read_text() == "no such file\n"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"command": ["/no/such/program"]}, "/no/such/program cannot be started in "),
        ({"command": [sys.executable, "-c", "import time; time.sleep(60)"], "timeout_s": 0.2}, "not done after 0.2 s"),
        ({"command": [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]}, "ended by signal 9"),
        ({"command": [sys.executable, "-c", "pass"]}, "the program recorded no iteration"),
        ({"setup": ["false"]}, "setup: exit code 1; it printed nothing"),
    ],
)
def test_why_a_run_failed_is_recorded(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    _, records = run_all(tmp_path, Run(program(tmp_path, **changes), 0))
    assert error in records[0]["error"]
    assert records[0]["wall_s"] == []


def test_a_setup_runs_once_for_all_programs_of_its_folder(tmp_path: Path) -> None:
    setup = [sys.executable, "-c", "open('built', 'a').write('x')"]
    sides = [program(tmp_path, name, setup=setup) for name in ("one@A", "two@A")]
    run_all(tmp_path, *(Run(side, repetition) for repetition in range(2) for side in sides))
    assert (tmp_path / "built").read_text() == "x"


def test_only_a_traced_run_gets_the_steps_to_trace_and_keeps_its_folder(tmp_path: Path) -> None:
    code = (
        f"{WRITE}\nopen(os.environ['MUSTER_RUN_DIR'] + '/steps', 'w').write(os.environ.get('MUSTER_TRACE_STEPS', '-'))"
    )
    traced = program(tmp_path, code=code, trace_steps="5:8")
    _, (plain, record) = run_all(tmp_path, Run(traced, 0), Run(traced, 0, traced=True))
    assert plain["folder"] == ""
    assert (tmp_path / "run" / record["folder"] / "steps").read_text() == "5:8"
    assert record["wall_s"] == []  # a profiler makes them useless


def test_the_steps_of_the_trainer_are_iterations_that_end_with_their_slowest_rank(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    for rank, times in enumerate(([0.5, 0.25], [0.25, 0.75])):
        lines = [json.dumps({"step": step, "step_time_s": time}) for step, time in enumerate(times, 1)]
        (metrics / f"rank-{rank}.jsonl").write_text("\n".join([*lines, '{"step": 3, "ste']))
    assert read_iterations(tmp_path / "none", tmp_path).wall_s == [0.5, 0.75]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ('{"wall_s": 0}', "line 1: wall_s must be a number of seconds above 0; got '0'"),
        ('{"wall_s": 1}\n{"wall": 1}', "line 2: wall_s must be a number of seconds above 0; got 'None'"),
        ('{"wall_s": 1, "cpu_s": 1}\n{"wall_s": 1}', "line 2: cpu_s must be in all lines or in none"),
        ('{"wall_s": NaN}', "line 1: wall_s must be"),
    ],
)
def test_lines_that_are_no_times_are_refused_with_their_number(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "iterations.jsonl"
    file.write_text(text)
    with pytest.raises(NoIterations, match=message):
        read_iterations(file, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON with programs and runs"),
        ('{"programs": [], "runs": [[0, 0, false]]}', "IndexError"),
        ('{"programs": [{"nam": "x"}], "runs": []}', "TypeError"),
    ],
)
def test_an_argument_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        parse_plan(text)


def test_a_run_that_is_planned_twice_is_refused() -> None:
    programs = [{"name": "x", "benchmark": "x", "command": ["true"]}]
    with pytest.raises(InvalidPlan, match="got 1 repeated"):
        parse_plan(json.dumps({"programs": programs, "runs": [[0, 0, False], [0, 0, False]]}))
