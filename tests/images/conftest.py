"""The images of this checkout, built once, as archives; see tests/kubelets/archives.py."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.binaries import Unavailable
from tests.images.running import Image
from tests.kubelets import archives

HERE = Path(__file__).parent
SKIP = "MUSTER_SKIP_CLUSTER"


def _lacks() -> str:
    """Why this machine cannot build and run images in tests; "" if it can."""
    if os.geteuid() != 0:
        return "images are built and run as root in tests"
    programs = {"buildah": "buildah", "runc": "runc"}
    missing = sorted(package for program, package in programs.items() if shutil.which(program) is None)
    return f"apt-get install {' '.join(missing)}" if missing else ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacks = _lacks()
    for item in items:
        if HERE in item.path.parents and "built" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
            if os.environ.get(SKIP) == "1":
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}=1"))
            elif lacks:
                item.add_marker(pytest.mark.skip(reason=lacks))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the images before the timeout of any test starts, with visible progress."""
    if session.config.option.collectonly or os.environ.get(SKIP) == "1" or _lacks():
        return
    if any(HERE in item.path.parents and item.get_closest_marker("cluster") for item in session.items):
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled(), contextlib.suppress(Unavailable):
            archives.ensure()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """Operator and trainer, by name."""
    try:
        operator, trainer = archives.ensure()
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    folder = tmp_path_factory.mktemp("images")
    return {"operator": Image(operator, folder / "operator"), "trainer": Image(trainer, folder / "trainer")}
