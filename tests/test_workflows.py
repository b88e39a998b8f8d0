"""What runs with the rights of the repository: actions named by commit, no credentials left behind, few rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")

pytestmark = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def test_every_action_is_named_by_its_commit_with_its_version_beside_it(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert [line for line in lines if not PINNED.search(line)] == []
    assert sum("uses" in step for step in steps(path)) == len(lines)


def test_a_checkout_leaves_no_credentials_in_the_working_copy(path: Path) -> None:
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert {step["with"]["persist-credentials"] for step in checkouts} == {False}


def test_what_a_workflow_may_write_is_given_to_single_jobs(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_every_job_ends(path: Path) -> None:
    assert [name for name, job in jobs(path).items() if "timeout-minutes" not in job] == []


def test_no_script_is_put_together_from_what_a_stranger_may_name(path: Path) -> None:
    """Branches, titles and tags reach a script as variables, which a shell does not run."""
    scripts = [step["run"] for step in steps(path) if "run" in step]
    assert [script for script in scripts if re.search(r"\$\{\{\s*(github|inputs|steps)\.", script)] == []


def test_a_step_fails_where_any_command_of_a_pipe_fails(path: Path) -> None:
    """GitHub sets pipefail only where the shell is named."""
    named = yaml.safe_load(path.read_text()).get("defaults", {}).get("run", {}).get("shell")
    piped = [step for step in steps(path) if re.search(r"[^|]\|[^|]", step.get("run", ""))]
    assert [step for step in piped if step.get("shell", named) != "bash"] == []


def test_every_part_of_make_test_all_runs_in_some_job(path: Path) -> None:
    rest = re.search(r"^rest: ([a-z -]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rest is not None
    parts = ["check", "test", *rest[1].replace("integration", "slow cluster").split()]
    scripts = [re.search(r"\.ci/run(.*)$", step.get("run", "")) for step in steps(path)]
    targets = [target for script in scripts if script for target in script[1].split() or parts]
    assert sorted(targets) == sorted(parts)
