"""What the release workflow does before it publishes, and what Dependabot watches."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PINS = {str(path.relative_to(ROOT)) for path in (ROOT / "constraints").rglob("*.txt")}


def scripts() -> dict[str, str]:
    """The scripts of the job that publishes, in order, by the names of their steps."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"]["build"]["steps"] if "run" in step}


def test_images_of_a_release_are_built_on_a_base_that_is_named_by_its_digest() -> None:
    (built,) = (script for script in scripts().values() if "make images" in script)
    assert re.search(r"digest=\$\(skopeo inspect", built)
    assert 'BASE="${BASE%:*}@$digest"' in built


def test_pins_and_images_are_scanned_for_known_vulnerabilities_before_anything_is_pushed() -> None:
    names = list(scripts())
    scan, push = names.index("Known vulnerabilities of pins and images"), names.index("Push")
    assert names.index("Images, on a base that is named by its digest") < scan < push
    script = scripts()[names[scan]]
    assert re.search(r"osv-scanner@v\d+\.\d+\.\d+$", script, re.MULTILINE)
    (listed,) = re.findall(r"for pins in (.*); do", script)
    scanned = {str(path.relative_to(ROOT)) for pattern in listed.split() for path in ROOT.glob(pattern)}
    assert {name for name in PINS if name.startswith("constraints/images/")} <= scanned <= PINS
    assert "for image in operator trainer;" in script


SCANNER = """#!/bin/sh
echo "$@" >> scans
case "$*" in
  *--lockfile*torch-*) exit $OF_PINS ;;
  *"scan image"*operator*) exit $OF_IMAGE ;;
esac
"""


@pytest.mark.parametrize(
    ("of_pins", "of_image", "passes"),
    [(0, 0, True), (0, 1, True), (1, 0, False), (127, 0, False), (0, 127, False)],
    ids=["nothing found", "an image has some", "a pin has one", "pins were not scanned", "an image was not scanned"],
)
def test_the_scan_stops_a_release_for_a_vulnerable_pin_and_where_the_scan_itself_fails(
    tmp_path: Path, of_pins: int, of_image: int, *, passes: bool
) -> None:
    """The step as it is, with a scanner that finds that. Without a network the real one fails: it ends with 127."""
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    (tmp_path / "osv-scanner").write_text(SCANNER)
    (tmp_path / "go").write_text(
        '#!/bin/sh\nmkdir -p "$GOBIN" && cp osv-scanner "$GOBIN/" && chmod +x "$GOBIN/osv-scanner"\n'
    )
    (tmp_path / "go").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OF_PINS": str(of_pins), "OF_IMAGE": str(of_image)}
    step = ["bash", "-e", "-c", scripts()["Known vulnerabilities of pins and images"]]
    done = subprocess.run(step, cwd=tmp_path, env=variables, capture_output=True, check=False)
    assert (done.returncode == 0) == passes, done.stderr
    scans = (tmp_path / "scans").read_text()
    if passes:
        assert scans.count("scan source") == 3 + len(list((ROOT / "constraints" / "images").glob("*.txt")))
        assert [f"muster-{name}.tar" in scans for name in ("operator", "trainer")] == [True, True]


def test_dependabot_watches_all_that_is_pinned() -> None:
    updates: list[dict[str, Any]] = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    watched = {one["package-ecosystem"]: one.get("directories", [one.get("directory")]) for one in updates}
    assert set(watched) == {"github-actions", "gomod", "pip"}
    assert {f"/{Path(name).parent}" for name in PINS} == set(watched["pip"])
