"""What the operator creates for a job, and variants that the chart's admission policies refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Object = dict[str, Any]
KEY = "muster-operator-collector-key"

OWNER = {
    "apiVersion": "muster.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "j",
    "uid": "6f6f0f0e-0000-4000-8000-000000000000",
    "controller": True,
    "blockOwnerDeletion": True,
}
SECOND = {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "6f6f0f0e-0000-4000-8000-000000000001"}
OWNED = {"ownerReferences": [OWNER]}
TWICE_OWNED = {"ownerReferences": [OWNER, SECOND]}
POD: Object = {
    "metadata": {"generateName": "p-", **OWNED},
    "spec": {"containers": [{"name": "c", "image": "x"}], "initContainers": [{"name": "i", "image": "x"}]},
}
SECRET: Object = {"metadata": {"name": "j-12345-collector", **OWNED}, "stringData": {"token": "x"}}
OWN_KEY: Object = {"metadata": {"name": KEY}, "data": {"key": "eA=="}}
SELECTOR = {"muster.dev/job-uid": OWNER["uid"], "muster.dev/index": "0"}
SERVICE: Object = {
    "metadata": {"name": "j-12345", **OWNED},
    "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": SELECTOR},
}


GROUP: Object = {
    "metadata": {"name": "j-12345", **OWNED},
    "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
}
GROUPS = "/apis/scheduling.k8s.io/v1alpha2"


def changed(change: Callable[[Object], Any]) -> Object:
    pod = copy.deepcopy(POD)
    change(pod)
    return pod


def service(**fields: Any) -> Object:
    return {**SERVICE, "spec": {**SERVICE["spec"], **fields}}


def secret(name: str = SECRET["metadata"]["name"], **fields: Any) -> Object:
    return {**SECRET, "metadata": {**SECRET["metadata"], "name": name}, **fields}


def host(field: str) -> Object:
    return changed(lambda pod: pod["spec"].update({field: True}))


def owned_by(**fields: Any) -> Object:
    return changed(lambda pod: pod["metadata"].update(ownerReferences=[{**OWNER, **fields}]))


def privileged(kind: str) -> Object:
    return changed(lambda pod: pod["spec"][kind][0].update(securityContext={"privileged": True}))


def capable(kind: str, capability: str) -> Object:
    context = {"capabilities": {"add": ["IPC_LOCK", capability]}}
    return changed(lambda pod: pod["spec"][kind][0].update(securityContext=context))


def host_path(pod: Object) -> None:
    pod["spec"]["volumes"] = [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/etc"}}]


PRIVILEGES = {
    "a privileged container": (privileged("containers"), "privileged"),
    "a privileged init container": (privileged("initContainers"), "privileged"),
    "a capability of the node": (capable("containers", "SYS_ADMIN"), "privileged"),
    "that capability, as runtimes take it too": (capable("initContainers", "cap_sys_admin"), "privileged"),
    "all capabilities": (capable("containers", "ALL"), "privileged"),
    "a hostPath volume": (changed(host_path), "hostPath"),
    "the host's network": (host("hostNetwork"), "hostNetwork"),
    "the host's processes": (host("hostPID"), "hostPID"),
    "the host's IPC": (host("hostIPC"), "hostIPC"),
}


STRANGERS = {
    "without an owner": changed(lambda pod: pod["metadata"].pop("ownerReferences")),
    "of a Job": owned_by(apiVersion="batch/v1", kind="Job"),
    "of a kind of that name in another group": owned_by(apiVersion="example.com/v1"),
    "that a job does not control": owned_by(controller=False),
    "with a second owner, which keeps it when the first is absent": {**POD, "metadata": {"name": "p", **TWICE_OWNED}},
}
KINDS = {"pods": POD, "secrets": SECRET, "services": SERVICE, "podgroups": GROUP}

SERVICES = {
    "of a load balancer": service(type="LoadBalancer", clusterIP="", ports=[{"port": 80}]),
    "that is another name": service(type="ExternalName", clusterIP="", externalName="example.com"),
    "with a port of every node": service(type="NodePort", clusterIP="", ports=[{"port": 80}]),
    "with an address": service(clusterIP="", ports=[{"port": 80}]),
    "with external addresses": service(externalIPs=["192.0.2.1"]),
    "that selects other pods": service(selector={"app": "theirs"}),
    "that selects pods of another job": service(selector={"muster.dev/job-uid": "another"}),
    "that selects nothing": service(selector={}),
}
ACCOUNT = {"kubernetes.io/service-account.name": "default"}
TOKEN = {"type": "kubernetes.io/service-account-token"}
SECRETS = {
    "with another name": secret("credentials"),
    "with the name of another job": secret("k-12345-collector"),
    "with another key": secret(stringData={"password": "x"}),
    "with one key more": secret(stringData={"token": "x", "password": "x"}),
    "without a key": secret(stringData={}),
    "with the token of an account": {**SECRET, **TOKEN, "metadata": {**SECRET["metadata"], "annotations": ACCOUNT}},
}
OWN_SECRETS = {
    "with another name": {**OWN_KEY, "metadata": {"name": "other"}},
    "with another key": {**OWN_KEY, "data": {"token": "eA=="}},
    "with the token of an account": {**OWN_KEY, **TOKEN, "metadata": {"name": KEY, "annotations": ACCOUNT}},
}
