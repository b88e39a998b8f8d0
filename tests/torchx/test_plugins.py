"""The nightlies of TorchX find Muster's schedulers in each of their sources of plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torchx.plugins", reason="TorchX 0.7.0 has entry points only")

from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

SHOWN = """
import json
from torchx import plugins
from torchx.schedulers import get_default_scheduler_name, get_scheduler_factories
factories = get_scheduler_factories()
created = [factories[name]("session") for name in ("muster_local", "muster")]
print(json.dumps({
    "names": list(factories),
    "default": get_default_scheduler_name(),
    "backends": [one.backend for one in created],
    "errors": [str(error) for error in plugins.registry().load_errors()],
}))
"""
NAMESPACE, ENTRY_POINTS, BOTH = "1", "2", "3"


@pytest.mark.parametrize("source", [NAMESPACE, ENTRY_POINTS, BOTH])
def test_the_schedulers_are_those_of_the_installed_torchx_and_ours(source: str) -> None:
    environ = os.environ | {"TORCHX_PLUGINS_SOURCE": source}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOWN], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == {
        "names": [*DEFAULT_SCHEDULER_MODULES, "muster_local", "muster"],
        "default": next(iter(DEFAULT_SCHEDULER_MODULES)),
        "backends": ["muster_local", "muster"],
        "errors": [],
    }


@pytest.mark.parametrize("source", [NAMESPACE, ENTRY_POINTS, BOTH])
def test_torchx_run_submits_in_each_source(source: str) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torchx.cli.main", "run", "-s", "muster", "--dryrun"),
            *("dist.torchrun", "-j", "2x4", "--script", "train.py", "--image", "registry/image:1"),
        ],
        env=os.environ | {"TORCHX_PLUGINS_SOURCE": source, "KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "kind: TrainingJob" in ran.stdout
    assert "registered via both" not in ran.stderr
