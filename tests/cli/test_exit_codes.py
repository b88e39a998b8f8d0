"""Exit codes, errors and what holds for all verbs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job

import muster.cli.options
from muster.cli.app import cli
from muster.cli.options import complete_job_names, complete_phases
from muster.cli.output import ExitCode
from muster.errors import ClusterError, Conflict, DaemonError, InvalidSpec, InvalidTrace, MusterError, NotFound, Refused


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSpec("x"), 2),
        (InvalidTrace("x"), 2),
        (Refused("x"), 3),
        (NotFound("x"), 3),
        (Conflict("x"), 3),
        (ClusterError("x"), 4),
        (DaemonError("x"), 4),
        (MusterError("x"), 1),
        (FileNotFoundError(2, "No such file or directory", "f"), 2),
        (ZeroDivisionError("x"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(
    muster: Muster, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(start: bool) -> object:
        raise error

    monkeypatch.setattr("muster.cli.options._connect_local", fail)
    assert muster("jobs").code == code


def test_a_bug_prints_a_traceback_only_on_request(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: 1 / 0)
    ended = muster("jobs")
    assert {"Bug", "ZeroDivisionError", "MUSTER_DEBUG=1"} <= {*ended.words}
    assert "Traceback" not in ended.err
    monkeypatch.setenv("MUSTER_DEBUG", "1")
    assert "Traceback" in muster("jobs").err


def test_errors_are_json_when_json_is_asked_for_usage_errors_too(muster: Muster, cluster: MemoryClient) -> None:
    error = muster("describe", "missing", "--json").error
    assert (set(error), error["reason"], error["field"]) == ({"reason", "message", "field"}, "NotFound", "")
    assert "'missing'" in error["message"]
    ended = muster("jobs", "--nonsense", "--json")
    assert (ended.code, ended.error["reason"], ended.error["field"]) == (2, "Usage", "--nonsense")


def test_an_unknown_verb_is_an_error_with_the_nearest_verb(muster: Muster) -> None:
    ended = muster("queus")
    assert (ended.code, "Did you mean 'queues'?" in ended.err) == (2, True)


def test_the_help_lists_every_verb_and_the_exit_codes(muster: Muster) -> None:
    ended = muster("--help")
    assert ended.code == 0
    words = (
        "submit apply delete jobs queues nodes describe logs watch cancel suspend resume simulate replay report local"
    )
    for verb in words.split():
        assert f"\n  {verb} " in ended.out
    assert "3 refused or not found" in " ".join(ended.out.split())


def test_every_verb_has_help_and_a_json_form(muster: Muster) -> None:
    cli.load_all(click.Context(cli))
    for name, command in cli.commands.items():
        if not isinstance(command, click.Group):
            assert command.help, name
            options = {option for parameter in command.params for option in parameter.opts}
            assert ("--json" in options) != (name in ("exec", "port-forward")), name  # their output is the pod's


def test_colours_are_off_with_no_color_and_in_a_pipe(
    muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.kept_jobs = {"a": job("a")}
    assert "\x1b" not in muster("jobs").out
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in muster("jobs").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" in muster("jobs").out


def test_exit_codes_are_those_of_the_docs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text()
    for code in ExitCode:
        assert f"\n| {code.value} |" in page


def script(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "import muster.cli; muster.cli.main()", *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    program = (
        "import muster.cli.options as c, sys\n"
        "from muster.cli import main\n"
        "class Many:\n"
        "    def job_or_object(self, *a):\n"
        "        from muster.api.spec import TrainingJob\n"
        "        role = {'name': 't', 'template': {'spec': {'containers': [{}]}}}\n"
        "        return TrainingJob.model_validate({'metadata': {'name': 'a'}, 'spec': {'roles': [role]}})\n"
        "    def log_attempts(self, *a):\n"
        "        return {}\n"
        "    def log_lines(self, *a, **k):\n"
        "        yield from ('x' * 1000 for _ in range(100_000))\n"
        "c._connect_local = lambda start: Many()\n"
        "sys.argv = ['muster', 'logs', 'a']\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(100) == ExitCode.BROKEN_PIPE


def test_the_help_imports_nothing_heavy() -> None:
    """What makes a command line slow is what it imports."""
    program = (
        "import sys; sys.argv = ['muster', '--help']\n"
        "from muster.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'pydantic', 'numpy', 'torch', 'yaml', 'msgspec', 'fsspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_shell_is_offered_verbs_and_names(cluster: MemoryClient) -> None:
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "muster que", "COMP_CWORD": "1"}
    out, _ = script(**words).communicate()
    assert out.split() == ["plain,queues"]
    context = click.Context(cli)

    cluster.kept_jobs = {"llama": job("llama"), "bert": job("bert")}
    assert complete_job_names(context, cli.params[0], "ll") == ["llama"]


@pytest.mark.parametrize(
    ("incomplete", "offered"),
    [
        ("ru", ["Running"]),
        ("S", ["Suspended", "Succeeded"]),
        ("Running,F", ["Running,Failed"]),
        ("Failed,F", []),
        ("x", []),
    ],
)
def test_phases_are_completed_one_after_the_other(incomplete: str, offered: list[str]) -> None:
    assert complete_phases(click.Context(cli), cli.params[0], incomplete) == offered


def test_completion_is_silent_when_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(start: bool) -> object:
        raise DaemonError("not running")

    monkeypatch.setattr(muster.cli.options, "_connect_local", fail)
    assert complete_job_names(click.Context(cli), cli.params[0], "a") == []


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish/completions/muster.fish")]
)
def test_completion_is_installed_once_in_the_startup_file_of_the_shell(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert [muster("--install-completion").code for _ in range(2)] == [0, 0]
    assert (tmp_path / file).read_text().count(f"_MUSTER_COMPLETE={shell}_source muster") == 1
    assert "_MUSTER_COMPLETE" in muster("--show-completion").out


def test_an_unsupported_shell_is_an_error_that_names_the_supported_ones(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    ended = muster("--install-completion")
    assert (ended.code, ended.err.endswith("(Usage)\n")) == (2, True)
    assert "bash, zsh, fish" in ended.err
