"""What .ci/run makes of tests that fail once, on projects of a few tests, each run as CI runs ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow

# A test of this project fails as often as its name says, counted in a file, since each run is a process of its own.
CONFTEST = """
import pathlib
import pytest

@pytest.fixture(scope="module")
def attempts(request):
    return pathlib.Path(request.config.rootpath)

@pytest.fixture
def fails(attempts, request):
    def check(times):
        count = attempts / (request.node.name.replace("/", "_") + ".attempts")
        done = int(count.read_text()) if count.exists() else 0
        count.write_text(str(done + 1))
        assert done >= times, f"attempt {done + 1}"
    return check
"""


class Project:
    """A folder of tests, and the report of all pytest runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report.jsonl"
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\ncache_dir = cache\n")

    def test(self, name: str, failures: int) -> None:
        with (self.folder / "test_it.py").open("a") as file:
            file.write(f"def test_{name}(fails):\n    fails({failures})\n\n")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What one pytest of `make test-all` does in .ci/run."""
        return self._python("-m", "tools.rerun", *arguments, ".")

    def summary(self) -> subprocess.CompletedProcess[str]:
        """What .ci/run prints at its end."""
        return self._python("-m", "tools.rerun", "--summary")

    def attempts(self, name: str) -> int:
        count = self.folder / f"test_{name}.attempts"
        return int(count.read_text()) if count.exists() else 0

    def recorded(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in self.report.read_text().splitlines() if self.report.exists() else ():
            record = json.loads(line)
            found.setdefault(record["outcome"], []).append(record["test"].partition("::test_")[2])
        return {outcome: sorted(tests) for outcome, tests in found.items()}

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        unset = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID", "PYTEST_CURRENT_TEST")
        environ = {name: value for name, value in os.environ.items() if name not in unset}
        environ |= {"PYTHONPATH": str(ROOT), "MUSTER_RERUN_REPORT": str(self.report)}
        environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # half the time of a start
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


WORKERS: dict[str, tuple[str, ...]] = {
    "in one process": (),
    "test by test": ("-n", "2", "--dist", "worksteal"),
    "file by file": ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--failed-first"),
}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS.keys())
def test_a_test_that_fails_once_is_run_again_and_named_as_flaky(project: Project, workers: tuple[str, ...]) -> None:
    project.test("steady", 0)
    project.test("once", 1)
    done = project.run(*workers)
    assert done.returncode == 0, done.stdout
    assert (project.attempts("steady"), project.attempts("once")) == (1, 2)
    assert project.recorded() == {"flaky": ["once"]}
    summary = project.summary()
    assert summary.returncode == 0
    assert "test_it.py::test_once" in summary.stdout
    assert "attempt 1" in summary.stdout  # how it failed


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["in one process", "with xdist"])
def test_a_test_that_fails_again_fails_the_run(project: Project, workers: tuple[str, ...]) -> None:
    project.test("steady", 0)
    project.test("once", 1)
    project.test("always", 99)
    done = project.run(*workers)
    assert done.returncode == 1
    assert (project.attempts("steady"), project.attempts("once"), project.attempts("always")) == (1, 2, 2)
    assert project.recorded() == {"flaky": ["once"], "failed": ["always"]}
    summary = project.summary()
    assert "test_it.py::test_always" in summary.stdout


@pytest.mark.parametrize(("flaky", "code"), [(3, 0), (4, 1)])
def test_more_than_three_flaky_tests_fail_the_whole_run(project: Project, flaky: int, code: int) -> None:
    for number in range(flaky):
        project.test(f"flaky_{number}", 1)
    assert project.run().returncode == 0
    assert len(project.recorded()["flaky"]) == flaky
    assert project.summary().returncode == code


def test_flaky_tests_of_several_pytest_runs_are_counted_together(project: Project) -> None:
    for number in range(4):
        project.test(f"flaky_{number}", 1)
    assert project.run("-k", "flaky_0 or flaky_1").returncode == 0
    assert project.summary().returncode == 0
    assert project.run("-k", "flaky_2 or flaky_3").returncode == 0
    assert project.summary().returncode == 1


def test_many_failures_are_no_flakiness_and_are_not_run_again(project: Project) -> None:
    for number in range(21):
        project.test(f"broken_{number}", 1)
    assert project.run().returncode == 1
    assert {project.attempts(f"broken_{number}") for number in range(21)} == {1}
    assert len(project.recorded()["failed"]) == 21


def test_the_fixtures_of_a_module_are_made_anew_for_the_second_attempt(project: Project) -> None:
    (project.folder / "test_it.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def server(request):\n"
        "    count = pathlib.Path('server.attempts')\n"
        "    made = int(count.read_text()) + 1 if count.exists() else 1\n"
        "    count.write_text(str(made))\n"
        "    assert made > 1, 'does not start'\n"
        "    return made\n\n"
        "def test_one(server): assert server == 2\n"
        "def test_two(server): assert server == 2\n"
    )
    assert project.run().returncode == 0
    assert project.recorded() == {"flaky": ["one", "two"]}


def test_a_folder_with_a_conftest_of_its_own_is_run_again(project: Project) -> None:
    project.test("once", 1)
    for name in ("one", "two"):  # pytest then calls hooks without some of its plugins, which it looks up in a set
        folder = project.folder / name
        folder.mkdir()
        (folder / "conftest.py").write_text(
            "def pytest_collection_modifyitems(): pass\n\ndef pytest_ignore_collect(): pass\n"
        )
        (folder / f"test_{name}.py").write_text("def test_passes(): pass\n")
    done = project.run("-n", "2")
    assert done.returncode == 0, done.stdout
    assert project.recorded() == {"flaky": ["once"]}


def test_a_worker_process_that_dies_counts_as_a_failure_of_its_test(project: Project) -> None:
    (project.folder / "test_it.py").write_text(
        "import os, pathlib\n"
        "def test_dies():\n"
        "    if not pathlib.Path('died').exists():\n"
        "        pathlib.Path('died').touch()\n"
        "        os._exit(9)\n"
    )
    assert project.run("-n", "1").returncode == 0
    assert project.recorded() == {"flaky": ["dies"]}


@pytest.mark.parametrize(
    ("source", "arguments", "code"),
    [
        ("import nothing_of_that_name\n", (), 2),  # pytest: interrupted
        ("def test_it(): pass\n", ("-k", "nothing"), 5),  # no test was selected
        ("def test_it(): pass\n", ("--no-such-option",), 4),
    ],
    ids=["a module that cannot be imported", "no test", "a wrong option"],
)
def test_what_is_no_failure_of_a_test_is_not_run_again(
    project: Project, source: str, arguments: tuple[str, ...], code: int
) -> None:
    (project.folder / "test_it.py").write_text(source)
    assert project.run(*arguments).returncode == code
    assert project.recorded() == {}


def test_a_run_that_stops_early_fails_although_its_second_attempt_passes(project: Project) -> None:
    project.test("once", 1)
    project.test("never_run", 99)
    assert project.run("-x").returncode != 0
    assert project.attempts("never_run") == 0


def test_without_any_failure_the_summary_says_so_and_passes(project: Project) -> None:
    project.test("steady", 0)
    assert project.run().returncode == 0
    summary = project.summary()
    assert (summary.returncode, summary.stdout.strip()) == (0, "flaky tests: 0")


@pytest.mark.smoke
def test_make_runs_pytest_through_the_module_that_ci_names_and_plainly_otherwise() -> None:
    def commands(*variables: str) -> list[str]:
        unset = ("RUNNER", "PYTEST", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")
        environ = {name: value for name, value in os.environ.items() if name not in unset}
        command = ["make", "--dry-run", "test-all", *variables]
        made = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
        return [line for line in made.stdout.splitlines() if " -m pytest " in line or " -m tools.rerun " in line]

    plain, again = commands(), commands("RUNNER=tools.rerun")
    assert len(plain) == 6  # unit, smoke, TorchX's nightly release, kfp, integration, kubelets
    assert again == [line.replace(" -m pytest ", " -m tools.rerun ") for line in plain]


def test_a_failure_is_shown_at_once_so_that_it_is_known_of_a_run_that_is_cut_off(project: Project) -> None:
    project.test("always", 99)
    with (project.folder / "test_it.py").open("a") as file:
        file.write("def test_that_ends_pytest():\n    import os\n    os._exit(70)\n")
    done = project.run()
    assert done.returncode == 70
    assert "test_it.py::test_always has failed in its call:" in done.stdout
    assert "AssertionError: attempt 1" in done.stdout
