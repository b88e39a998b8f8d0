"""What the `muster` command imports: each start of it waits for that."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import muster.cli.views.job_text, muster.cli.views.jobs, muster.cli.watch, muster.local.client
print(*sorted({"muster.quota", "muster.scheduling", "numpy"} & set(sys.modules)))
"""


def test_commands_about_jobs_on_this_host_import_neither_the_scheduler_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_the_module_of_the_command_that_is_called_is_imported() -> None:
    script = """
import sys
from muster.cli.app import cli
cli.make_context("muster", ["--cluster", "local", "jobs"])
print(*sorted(name for name in sys.modules if name.startswith(("muster.cli.", "pydantic", "muster.api"))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["muster.cli.app", "muster.cli.options", "muster.cli.output"]


def test_the_command_reads_no_descriptions_of_the_api_types_and_others_do() -> None:
    script = """
import sys
import muster.cli, muster.cli.app
muster.cli.app.main = lambda: None
if "command" in sys.argv:
    muster.cli.main()
from muster.api.spec import TrainingJobSpec
print(TrainingJobSpec.model_fields["queue"].description is not None)
"""
    for argument, described in (("command", "False"), ("library", "True")):
        done = subprocess.run([sys.executable, "-c", script, argument], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == described
