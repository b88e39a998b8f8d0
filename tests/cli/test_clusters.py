"""Which cluster is meant: options before the environment, this host where nothing is said."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient

from muster.cli.clusters import Choice, in_front, target
from muster.errors import InvalidSpec
from muster.kubernetes.access import Target


@pytest.mark.parametrize(
    ("choice", "environ", "meant"),
    [
        (Choice(), {}, None),
        (Choice(), {"KUBECONFIG": "/some/file"}, None),
        (Choice(), {"MUSTER_CLUSTER": "kubernetes"}, Target()),
        (Choice(), {"MUSTER_CONTEXT": "prod"}, Target(context="prod")),
        (Choice(), {"MUSTER_CLUSTER": "local", "MUSTER_CONTEXT": "prod"}, None),
        (Choice(cluster="kubernetes"), {}, Target()),
        (Choice(cluster="local"), {"MUSTER_CLUSTER": "kubernetes", "MUSTER_CONTEXT": "prod"}, None),
        (Choice(cluster="kubernetes"), {"MUSTER_CLUSTER": "local"}, Target()),
        (Choice(context="test"), {"MUSTER_CONTEXT": "prod", "MUSTER_CLUSTER": "local"}, Target(context="test")),
        (Choice(kubeconfig="/a"), {}, Target(kubeconfig="/a")),
        (Choice(kubeconfig="/a"), {"MUSTER_CONTEXT": "prod"}, Target("/a", "prod")),
    ],
)
def test_options_count_before_the_environment(choice: Choice, environ: dict[str, str], meant: Target | None) -> None:
    assert target(choice, environ) == meant


@pytest.mark.parametrize(
    ("choice", "environ", "field"),
    [
        (Choice(cluster="moon"), {}, "--cluster"),
        (Choice(), {"MUSTER_CLUSTER": "moon"}, "MUSTER_CLUSTER"),
        (Choice(cluster="local", context="prod"), {}, "--cluster"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(choice: Choice, environ: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        target(choice, environ)
    assert error.value.field == field


def test_the_options_may_stand_after_the_verb() -> None:
    assert in_front(["jobs", "--context", "prod", "--json"]) == ["--context", "prod", "jobs", "--json"]
    assert in_front(["logs", "a", "--kubeconfig=f", "-f"]) == ["--kubeconfig=f", "logs", "a", "-f"]
    assert in_front(["scale", "a", "--", "--context"]) == ["scale", "a", "--", "--context"]
    assert in_front(["jobs", "--context"]) == ["--context", "jobs"]


def test_a_kubeconfig_that_is_not_there_is_named(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("jobs", "--kubeconfig", "/nowhere/config", "--json")
    assert ended.code == 4
    assert '"reason": "NoKubeconfig"' in ended.err
    assert "/nowhere/config" in ended.err


def test_this_host_is_meant_where_nothing_is_said(cluster: MemoryClient, muster: Muster) -> None:
    assert muster("jobs", "--json").rows == []
    assert muster("jobs", "--cluster", "local", "-A", "--json").rows == []
