"""The oldest Kubernetes that we support takes our CRDs: it computes a higher cost of rules than newer ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from tests.cluster.controlplane.binaries import Binary, Unavailable, ensure
from tests.cluster.controlplane.catalogue import LEAST_KUBERNETES, OLDEST, pinned, version_in, written

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "helm" / "crds.yaml"
KINDS = ("trainingjobs", "queues", "flavors", "tracecaptures", "workloads")


@pytest.fixture(scope="module")
def oldest() -> Binary:
    try:
        return ensure([OLDEST])[OLDEST]
    except Unavailable as why:
        pytest.fail(str(why), pytrace=False)


def result(oldest: Binary, crds: Path) -> str:
    return subprocess.run([oldest.path, crds], capture_output=True, text=True, check=False).stdout


def test_the_oldest_kubernetes_accepts_our_crds(oldest: Binary) -> None:
    assert result(oldest, CRDS).splitlines() == [f"{kind}.muster.dev was looked at" for kind in KINDS]


def test_it_refuses_a_rule_that_newer_ones_accept(oldest: Binary, tmp_path: Path) -> None:
    jobs = next(yaml.safe_load_all(CRDS.read_text()))
    spec = jobs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    pod = spec["roles"]["items"]["properties"]["template"]["properties"]["spec"]["properties"]
    resources = pod["containers"]["items"]["properties"]["resources"]["properties"]
    (rule, *_) = resources["requests"]["x-kubernetes-validations"]
    rule["rule"] = "self.all(k, quantity(string(self[k])).compareTo(quantity('1')) >= 0)"
    dearer = tmp_path / "crds.yaml"
    dearer.write_text(yaml.safe_dump(jobs))
    assert "estimated rule cost exceeds budget" in result(oldest, dearer)


def test_it_is_the_version_that_the_docs_name() -> None:
    minor = version_in(pinned("oldest")["k8s.io/apiextensions-apiserver"])[1]
    assert (1, minor) == LEAST_KUBERNETES
    assert f"Kubernetes {written(LEAST_KUBERNETES)} or later" in (ROOT / "docs" / "start" / "install.md").read_text()
