"""What the release workflow does before it publishes, and what Dependabot watches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def test_dependabot_watches_all_that_is_pinned() -> None:
    updates: list[dict[str, Any]] = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    watched = {one["package-ecosystem"]: one.get("directories", [one.get("directory")]) for one in updates}
    assert set(watched) == {"github-actions", "gomod", "pip"}
    assert {f"/{Path(name).parent}" for name in PINS} == set(watched["pip"])
