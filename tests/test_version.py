"""One version, in pyproject.toml: what else names it agrees."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tools.version import PLACES, mismatches, version

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (*PLACES, "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_this_checkout_names_one_version() -> None:
    assert list(mismatches(ROOT)) == []


@pytest.mark.parametrize("name", PLACES)
def test_a_file_that_names_another_version_is_named_with_its_line(checkout: Path, name: str) -> None:
    path = checkout / name
    before = path.read_text()
    path.write_text(before.replace(version(), "9.9.9"))
    found = list(mismatches(checkout))
    assert found
    for mismatch in found:
        file, line, text = mismatch.split(":", 2)
        assert file == name
        assert version() in before.splitlines()[int(line) - 1]
        assert "got 9.9.9" in text


def test_a_file_that_lost_its_version_is_named(checkout: Path) -> None:
    (checkout / "helm/muster/Chart.yaml").write_text("name: muster\n")
    assert [mismatch.split(":")[0] for mismatch in mismatches(checkout)] == ["helm/muster/Chart.yaml"]


def test_a_release_needs_its_tag_and_its_part_of_the_changelog(checkout: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text("## [Unreleased]\n")
    assert len(list(mismatches(checkout, "v9.9.9"))) == 2
    changelog.write_text(f"## [Unreleased]\n\n## [{version()}] - 2026-12-01\n")
    assert list(mismatches(checkout, f"v{version()}")) == []
    assert len(list(mismatches(checkout, version()))) == 1  # without the v


def test_make_takes_the_version_from_there() -> None:
    made = subprocess.run(["make", "--dry-run", "images"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"--tag {version()} " in made.stdout
