"""Contents of the images: locked for each image separately, complete, and only what it runs."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints"
TORCHES = sorted(path.stem.removeprefix("torch-") for path in CONSTRAINTS.glob("torch-*.txt"))

# Run in a fresh interpreter: the distributions of everything that the operator and the dashboard import.
IMPORTED = """
import importlib, json, pkgutil, sys
from importlib.metadata import packages_distributions
before = set(sys.modules)
import muster.dashboard, muster_operator
for package in (muster_operator, muster.dashboard):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
loaded = set(sys.modules) - before
files = sorted(module.__file__ for name in loaded if name.partition(".")[0] in ("muster", "muster_operator")
               if (module := sys.modules[name]).__file__)
found = packages_distributions()
names = sorted({name for module in loaded for name in found.get(module.partition(".")[0], ())})
print(json.dumps([names, files]))
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(*layers: str) -> dict[str, Requirement]:
    """What these files install on this Python and platform, by name."""
    found = {}
    for layer in layers:
        for line in (CONSTRAINTS / "images" / f"{layer}.txt").read_text().splitlines():
            if line and line[0] not in " #":
                requirement = Requirement(line.removesuffix(" \\"))
                if requirement.marker is None or requirement.marker.evaluate():
                    found[canonical(requirement.name)] = requirement
    return found


def missing(pinned: dict[str, Requirement]) -> Iterator[str]:
    """Requirements of packages in the list that the list does not satisfy, as pip checks them. Packages that are not
    installed here in the pinned version are skipped."""
    for name, pin in pinned.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.version not in pin.specifier:
            continue
        for text in distribution.requires or ():
            requested = Requirement(text)
            if requested.marker is not None and not requested.marker.evaluate({"extra": ""}):
                continue
            pinned_too = pinned.get(canonical(requested.name))
            if pinned_too is None or str(pinned_too.specifier).removeprefix("==") not in requested.specifier:
                yield f"{name} requires {requested}, pinned is {pinned_too}"


def test_the_package_lists_are_complete() -> None:
    assert list(missing(pins("operator"))) == []
    assert list(missing(pins("trainer"))) == []


@pytest.mark.matrix
def test_the_trainers_image_has_all_requirements_of_torch() -> None:
    pytest.importorskip("torch")
    version = ".".join(importlib.metadata.version("torch").split(".")[:2])
    assert list(missing(pins("trainer", f"torch-{version}"))) == []


@pytest.mark.parametrize("torch", TORCHES)
def test_every_torch_has_a_list_for_the_image_that_repeats_nothing(torch: str) -> None:
    above = pins(f"torch-{torch}")
    assert canonical("torch") in above
    assert above.keys() & pins("trainer").keys() == set()
    assert "sympy" in above


def test_pins_of_torchx_do_not_apply_to_the_images() -> None:
    for layers in (("trainer",), ("trainer", f"torch-{TORCHES[0]}")):
        version = next(iter(pins(*layers)["urllib3"].specifier)).version
        assert Version(version).major >= 2
    assert "urllib3" not in pins("operator")


def test_no_image_has_a_package_of_kubeflow_pipelines() -> None:
    names = {path.stem: pins(path.stem).keys() for path in (CONSTRAINTS / "images").glob("*.txt")}
    assert {"operator", "trainer"} <= names.keys()
    assert [name for name, found in names.items() if any("kfp" in one for one in found)] == []


def test_the_operators_image_has_only_what_the_operator_and_the_dashboard_import() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    names, files = json.loads(done.stdout)
    imported = {canonical(name) for name in names} - {"muster"}
    assert set(pins("operator")) == imported
    modules = {module for name in imported for module in top_level(name)}
    later = {(module, Path(file).name) for file in files for module in imports_of(Path(file))}
    own = {*sys.stdlib_module_names, "muster", "muster_operator"}
    users_only = {("kubernetes", "config.py"), ("websocket", "sync_client.py")}  # a login by a program, `muster exec`
    assert {pair for pair in later if pair[0] not in own | modules} == users_only


def top_level(distribution: str) -> Iterable[str]:
    """Top-level modules of a distribution."""
    packages = importlib.metadata.packages_distributions()
    return (module for module, names in packages.items() if distribution in map(canonical, names))


def imports_of(file: Path) -> Iterator[str]:
    """Packages that a file imports, also in functions."""
    tree = ast.parse(file.read_text())
    only_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
