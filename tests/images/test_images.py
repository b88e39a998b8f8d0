"""The images: small, without torch where it is not needed, unprivileged, and reproducible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.images.running import Image
from tests.kubelets import archives
from tools.images import FILES, Builder, BuildOptions
from tools.images import build_images as build

ABSENT = ("torch", "torchx", "triton", "pytest", "pip", "setuptools")
LOOK = """
import importlib.util, json, os, sys
writable = [path for path in ("/", "/opt/muster", "/etc", "/tmp") if os.access(path, os.W_OK)]
names = json.loads(sys.argv[1])
there = [name for name in names if importlib.util.find_spec(name)]
print(json.dumps({"user": os.getuid(), "group": os.getgid(), "writable": writable, "there": there}))
"""
HAS = ("muster", "numpy", "muster_operator", "muster_components")


def test_the_operators_image_runs_unprivileged_with_a_read_only_root(built: dict[str, Image]) -> None:
    done = built["operator"].run("--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m muster_operator")


def test_the_dashboard_starts_in_the_operators_image(built: dict[str, Image]) -> None:
    done = built["operator"].run("python", "-m", "muster.dashboard", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m muster.dashboard")


@pytest.mark.parametrize("module", ["muster_components.launch", "muster.tracing.collector"])
def test_launcher_and_collector_start_in_the_trainers_image(built: dict[str, Image], module: str) -> None:
    done = built["trainer"].run("python", "-m", module, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("name", ["operator", "trainer"])
def test_an_image_has_what_it_needs_but_neither_torch_nor_tools(built: dict[str, Image], name: str) -> None:
    done = built[name].run("python", "-c", LOOK, json.dumps([*HAS, *ABSENT]))
    seen = json.loads(done.stdout or "null")
    expected = {"user": 65532, "group": 65532, "writable": ["/tmp"], "there": list(HAS)}
    assert seen == expected, done.stderr
    assert not [path for path in built[name].files(-1) if "/site-packages/torch/" in path]


@pytest.mark.parametrize("name", ["operator", "trainer"])
def test_an_image_has_its_labels(built: dict[str, Image], name: str) -> None:
    config = built[name].config["config"]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    found = {key: labels[key] for key in ("title", "licenses", "version")}
    assert found == {"title": f"muster-{name}", "licenses": "Apache-2.0", "version": archives.TAG}
    assert labels["description"]
    assert labels["base.name"]
    assert config["User"] == "65532:65532"
    assert ("Healthcheck" in config) == (name == "operator")


def test_an_image_adds_little_to_its_base(built: dict[str, Image]) -> None:
    sizes = {name: sum(entry.size for entry in image.files(-1).values()) for name, image in built.items()}
    assert 20e6 < sizes["operator"] < 300e6, sizes
    assert 20e6 < sizes["trainer"] < 200e6, sizes


def test_a_second_build_makes_the_same_layers(built: dict[str, Image], tmp_path: Path) -> None:
    created = built["trainer"].config["created"]
    build(["trainer"], BuildOptions("again", epoch_s=archives.epoch_s()), tmp_path)
    again = Image(tmp_path / "muster-trainer.tar", tmp_path / "trainer")
    assert again.layers == built["trainer"].layers
    assert again.config["created"] == created
    Builder.find().run("rmi", "localhost/muster-trainer:again")


def test_every_package_of_an_image_is_pinned_with_its_hash() -> None:
    constraints = Path(__file__).resolve().parents[2] / "constraints" / "images"
    for name in ("build", "operator", "trainer"):
        blocks = (constraints / f"{name}.txt").read_text().split("\n", 1)[1].strip().split("\n")
        pins = [line for line in blocks if not line.startswith(" ")]
        hashes = [line for line in blocks if line.strip().startswith("--hash=sha256:")]
        assert all("==" in pin for pin in pins)
        assert len(hashes) >= len(pins)
    for file in FILES.values():
        installs = [line for line in file.read_text().splitlines() if "pip" in line and " install " in line]
        assert len(installs) == 3
        assert all("--require-hashes" in line or "--no-index" in line for line in installs)
