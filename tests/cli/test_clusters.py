"""Which cluster is meant: options before the environment, this host where nothing is said."""

from __future__ import annotations

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job

from muster.cli.app import cli
from muster.cli.options import COMPLETE_ENV, ClusterOptions, hoist_options, resolve_context
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


def test_an_option_without_a_value_is_a_usage_error_that_names_it(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("jobs", "--context")
    assert ended.code == 2
    assert "--context" in ended.err


@pytest.mark.parametrize(
    ("words", "context"),
    [
        (["--context", "prod", "describe"], KubeContext(context="prod")),
        (["describe", "--context=prod"], KubeContext(context="prod")),
        (["--kubeconfig", "/a", "cancel", "llama"], KubeContext(kubeconfig="/a")),
        (["describe"], None),
    ],
)
def test_completion_asks_the_cluster_of_the_options_before_it(
    cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch, words: list[str], context: KubeContext | None
) -> None:
    calls: list[KubeContext | None] = []

    def client_of(context: KubeContext | None) -> MemoryClient:
        calls.append(context)
        return cluster

    monkeypatch.setattr("muster.cli.options._kubernetes_client", client_of)
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: client_of(None))
    cluster.kept_jobs = {"bert": job("bert")}
    assert [one.value for one in completions(words, "b")] == ["bert"]
    assert set(calls) == {context}


def test_completion_lists_the_jobs_of_the_namespace(cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may often list only the jobs of their own namespace."""
    monkeypatch.setattr("muster.cli.options._kubernetes_client", lambda context: cluster)
    bart = job("bart")
    elsewhere = bart.model_copy(update={"metadata": bart.metadata.model_copy(update={"namespace": "team-b"})})
    cluster.kept_jobs = {"bert": job("bert"), "bart": elsewhere}
    assert [one.value for one in completions(["--context", "prod", "describe"], "b")] == ["bert"]
    assert [one.value for one in completions(["describe", "-n", "team-b", "--context", "prod"], "b")] == ["bart"]


@pytest.mark.parametrize(
    ("words", "types"), [(["jobs", "--context"], []), (["describe", "a", "--kubeconfig"], ["file"])]
)
def test_the_value_of_a_cluster_option_is_completed_after_a_command(words: list[str], types: list[str]) -> None:
    assert [one.type for one in completions(words, "")] == types


def completions(words: list[str], incomplete: str) -> list[CompletionItem]:
    """What the shell offers after `muster WORDS`."""
    return ShellComplete(cli, {}, "muster", COMPLETE_ENV).get_completions(words, incomplete)


def test_a_kubeconfig_that_is_not_there_is_named(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("jobs", "--kubeconfig", "/nowhere/config", "--json")
    assert ended.code == 4
    assert '"reason": "KubeconfigNotFound"' in ended.err
    assert "/nowhere/config" in ended.err


def test_this_host_is_the_default(cluster: MemoryClient, muster: Muster) -> None:
    assert muster("jobs", "--json").rows == []
    assert muster("jobs", "--cluster", "local", "-A", "--json").rows == []
