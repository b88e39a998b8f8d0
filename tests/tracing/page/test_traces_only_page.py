"""docs/tasks/traces-only.md: every cause, and commands that exist; the analysis needs only the packages it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from muster.cli.app import cli
from muster.tracing.verdicts.types import Cause

PAGE = (Path(__file__).parents[3] / "docs" / "tasks" / "traces-only.md").read_text()


def test_the_page_explains_every_cause_of_a_verdict_and_no_other() -> None:
    table = PAGE.split("## Verdicts")[1].split("## Beside")[0]
    causes = {
        cause
        for row in table.splitlines()
        if row.startswith("| `")
        for cause in re.findall(r"`([\w-]+)`", row.split("|")[1])
    }
    assert causes == {str(cause) for cause in Cause}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`muster ((?:trace \w+|\w+))", PAGE))))
def test_the_commands_of_the_page_exist(command: str) -> None:
    found: click.Command | None = cli
    for name in command.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None


def test_the_analysis_imports_neither_torch_nor_kubernetes() -> None:
    modules = "report, frames, reader, trace_tables, memory, hang.hang_report, merge.merged_trace"
    code = "import sys\n" + "\n".join(f"import muster.tracing.{module}" for module in modules.split(", "))
    code += "\nprint(sorted({'torch', 'kubernetes', 'pandas', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
