"""Runs pytest, and once more the tests that failed; what passes the second time is flaky, and is reported as such.

`python -m tools.rerun ARGUMENT...` takes the place of `python -m pytest ARGUMENT...` where .ci/run runs `make test`. It
adds what it found to the file that MUSTER_RERUN_REPORT names, one JSON object a line, for all pytest runs together.
`python -m tools.rerun --summary` prints that and fails where more than MAX_FLAKY tests were flaky. The second attempt
is a process of its own, one test at a time: fixtures are made anew, and each test has its whole timeout again.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPORT = "MUSTER_RERUN_REPORT"
MAX_FLAKY = 3
MAX_RERUN = 20  # above this, something is broken rather than flaky, and a second attempt would only take time
_FAILURES = "MUSTER_RERUN_FAILURES"
_SHOWN_LINES = 60


@dataclass(frozen=True, slots=True, eq=False)  # pytest keeps plugins in sets
class Failures:
    """The pytest plugin that writes down each failed test, in the process that collects the results of all workers."""

    path: Path
    config: pytest.Config
    texts: dict[str, str] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Shown at once, since a run of an hour can be interrupted before pytest shows its failures."""
        if report.failed and report.nodeid not in self.texts:
            self.texts[report.nodeid] = report.longreprtext
            terminal = self.config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line(f"\n{report.nodeid} has failed in its {report.when}:")
                terminal.write_line("\n".join(report.longreprtext.splitlines()[-_SHOWN_LINES:]))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail:  # -x, --maxfail: tests are left that nothing has run
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        self.path.write_text(json.dumps(self.texts))


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, in workers of xdist too."""
    if _FAILURES in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(os.environ[_FAILURES]), config))


def attempt(arguments: list[str]) -> tuple[int, dict[str, str]]:
    """Run pytest in a process of its own; its exit code, and how each failed test failed, by node id."""
    with tempfile.TemporaryDirectory(prefix="muster-rerun-") as folder:
        failures = Path(folder, "failures.json")
        command = [sys.executable, "-m", "pytest", "-p", "tools.rerun", *arguments]
        code = subprocess.run(command, env={**os.environ, _FAILURES: str(failures)}, check=False).returncode
        return code, json.loads(failures.read_text()) if failures.exists() else {}


def run(arguments: list[str]) -> int:
    """Run pytest, and again what failed; the exit code."""
    code, first = attempt(arguments)
    if code != pytest.ExitCode.TESTS_FAILED:
        record({}, first)
        return code
    if len(first) > MAX_RERUN:
        print(f"{len(first)} tests failed; at most {MAX_RERUN} are run again", flush=True)
        record({}, first)
        return code
    print(f"== running {len(first)} failed tests again, one at a time", flush=True)
    code, second = attempt([*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        second = first  # not known to have passed
    record({test: text for test, text in first.items() if test not in second}, second)
    return code


def record(flaky: dict[str, str], failed: dict[str, str]) -> None:
    """Add to the report."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a") as file:
            for outcome, tests in (("flaky", flaky), ("failed", failed)):
                for test, text in tests.items():
                    file.write(json.dumps({"outcome": outcome, "test": test, "failure": text}) + "\n")


def summary() -> int:
    """Print the report; 1 where there were too many flaky tests, or one that failed twice."""
    path = Path(os.environ[REPORT])
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    flaky = {record["test"]: record["failure"] for record in records if record["outcome"] == "flaky"}
    failed = sorted({record["test"] for record in records if record["outcome"] == "failed"})
    for test, text in flaky.items():
        print(f"---- {test}, at its first attempt")
        print("\n".join(text.splitlines()[-_SHOWN_LINES:]))
    print(f"flaky tests: {len(flaky)}" + (f", more than {MAX_FLAKY}" if len(flaky) > MAX_FLAKY else ""))
    for test in flaky:
        print(f"  {test}")
    if failed:
        print(f"failed tests: {len(failed)}")
        for test in failed:
            print(f"  {test}")
    return 1 if failed or len(flaky) > MAX_FLAKY else 0


if __name__ == "__main__":
    sys.exit(summary() if sys.argv[1:] == ["--summary"] else run(sys.argv[1:]))
