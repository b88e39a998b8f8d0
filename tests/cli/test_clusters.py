"""Which cluster is meant: options before the environment, this host where nothing is said."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient

from muster.cli.connect import ClusterOptions, hoist_options, resolve_context
from muster.errors import InvalidSpec
from muster.kube.config import KubeContext


@pytest.mark.parametrize(
    ("choice", "environ", "meant"),
    [
        (ClusterOptions(), {}, None),
        (ClusterOptions(), {"KUBECONFIG": "/some/file"}, None),
        (ClusterOptions(), {"MUSTER_CLUSTER": "kubernetes"}, KubeContext()),
        (ClusterOptions(), {"MUSTER_CONTEXT": "prod"}, KubeContext(context="prod")),
        (ClusterOptions(), {"MUSTER_CLUSTER": "local", "MUSTER_CONTEXT": "prod"}, None),
        (ClusterOptions(cluster="kubernetes"), {}, KubeContext()),
        (ClusterOptions(cluster="local"), {"MUSTER_CLUSTER": "kubernetes", "MUSTER_CONTEXT": "prod"}, None),
        (ClusterOptions(cluster="kubernetes"), {"MUSTER_CLUSTER": "local"}, KubeContext()),
        (
            ClusterOptions(context="test"),
            {"MUSTER_CONTEXT": "prod", "MUSTER_CLUSTER": "local"},
            KubeContext(context="test"),
        ),
        (ClusterOptions(kubeconfig="/a"), {}, KubeContext(kubeconfig="/a")),
        (ClusterOptions(kubeconfig="/a"), {"MUSTER_CONTEXT": "prod"}, KubeContext("/a", "prod")),
    ],
)
def test_options_count_before_the_environment(
    choice: ClusterOptions, environ: dict[str, str], meant: KubeContext | None
) -> None:
    assert resolve_context(choice, environ) == meant


@pytest.mark.parametrize(
    ("choice", "environ", "field"),
    [
        (ClusterOptions(cluster="moon"), {}, "--cluster"),
        (ClusterOptions(), {"MUSTER_CLUSTER": "moon"}, "MUSTER_CLUSTER"),
        (ClusterOptions(cluster="local", context="prod"), {}, "--cluster"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(choice: ClusterOptions, environ: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        resolve_context(choice, environ)
    assert error.value.field == field


def test_the_options_may_stand_after_the_verb() -> None:
    assert hoist_options(["jobs", "--context", "prod", "--json"]) == ["--context", "prod", "jobs", "--json"]
    assert hoist_options(["logs", "a", "--kubeconfig=f", "-f"]) == ["--kubeconfig=f", "logs", "a", "-f"]
    assert hoist_options(["scale", "a", "--", "--context"]) == ["scale", "a", "--", "--context"]
    assert hoist_options(["jobs", "--context"]) == ["--context", "jobs"]


def test_a_kubeconfig_that_is_not_there_is_named(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("jobs", "--kubeconfig", "/nowhere/config", "--json")
    assert ended.code == 4
    assert '"reason": "KubeconfigNotFound"' in ended.err
    assert "/nowhere/config" in ended.err


def test_this_host_is_the_default(cluster: MemoryClient, muster: Muster) -> None:
    assert muster("jobs", "--json").rows == []
    assert muster("jobs", "--cluster", "local", "-A", "--json").rows == []
