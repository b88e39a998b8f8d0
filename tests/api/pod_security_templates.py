"""Pod templates, and the field by which each level of the Pod Security Standards refuses them; "" where it does not."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]
HARDENED: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
OF_POD: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
FIRST = "spec.containers[0]"
CONTEXT = f"{FIRST}.securityContext"


def template(context: Json = HARDENED, of_pod: Json = OF_POD, container: Json | None = None, **pod: Any) -> Json:
    """A template of one container that `restricted` allows, unless an argument changes that."""
    first = {"name": "main", "image": "x", "securityContext": context, **(container or {})}
    return copy.deepcopy({"spec": {"securityContext": of_pod, "containers": [first], **pod}})


def volume(**source: Any) -> Json:
    return template(volumes=[{"name": "v", **source}])


def hardened(**fields: Any) -> Json:
    return template({**HARDENED, **fields})


def pod_with(**fields: Any) -> Json:
    return template(of_pod={**OF_POD, **fields})


def capabilities(*added: str) -> Json:
    return hardened(capabilities={"drop": ["ALL"], "add": list(added)})


ANNOTATED = {
    **template(),
    "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}},
}
SIDECAR = {"name": "side", "image": "x"}
UNSET = template({}, {})

BOTH = {
    "the host's network": (template(hostNetwork=True), "spec.hostNetwork"),
    "the host's processes": (template(hostPID=True), "spec.hostPID"),
    "the host's IPC": (template(hostIPC=True), "spec.hostIPC"),
    "a hostPath": (volume(hostPath={"path": "/"}), "spec.volumes[0].hostPath"),
    "a sysctl of the node": (
        pod_with(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        "spec.securityContext.sysctls[0]",
    ),
    "no AppArmor, by its annotation": (
        ANNOTATED,
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/main]",
    ),
    "no AppArmor": (pod_with(appArmorProfile={"type": "Unconfined"}), "spec.securityContext.appArmorProfile.type"),
    "no seccomp": (pod_with(seccompProfile={"type": "Unconfined"}), "spec.securityContext.seccompProfile.type"),
    "no seccomp in a container": (hardened(seccompProfile={"type": "Unconfined"}), f"{CONTEXT}.seccompProfile.type"),
    "another SELinux type": (hardened(seLinuxOptions={"type": "spc_t"}), f"{CONTEXT}.seLinuxOptions.type"),
    "an SELinux user": (pod_with(seLinuxOptions={"user": "system_u"}), "spec.securityContext.seLinuxOptions.user"),
    "an SELinux role": (hardened(seLinuxOptions={"role": "system_r"}), f"{CONTEXT}.seLinuxOptions.role"),
    "a privileged container": (template({"privileged": True}), f"{CONTEXT}.privileged"),
    "a privileged init container": (
        template(initContainers=[{**SIDECAR, "securityContext": {"privileged": True}}]),
        "spec.initContainers[0].securityContext.privileged",
    ),
    "RDMA's capability": (capabilities("IPC_LOCK"), f"{CONTEXT}.capabilities.add"),
    "a port of the host": (
        template(container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
        f"{FIRST}.ports[0].hostPort",
    ),
    "a probe of another host": (
        template(container={"livenessProbe": {"httpGet": {"host": "example.com", "port": 80}}}),
        f"{FIRST}.livenessProbe.httpGet.host",
    ),
    "a hook to another host": (
        template(container={"lifecycle": {"preStop": {"tcpSocket": {"host": "example.com", "port": 80}}}}),
        f"{FIRST}.lifecycle.preStop.tcpSocket.host",
    ),
}
"""What `baseline` refuses, and `restricted` too."""
RESTRICTED = {
    "no settings": (UNSET, f"{CONTEXT}.allowPrivilegeEscalation"),
    "escalation": (hardened(allowPrivilegeEscalation=True), f"{CONTEXT}.allowPrivilegeEscalation"),
    "all default capabilities": (template({"allowPrivilegeEscalation": False}), f"{CONTEXT}.capabilities.drop"),
    "a default capability": (capabilities("CHOWN"), f"{CONTEXT}.capabilities.add"),
    "root": (hardened(runAsUser=0), f"{CONTEXT}.runAsUser"),
    "root in the pod": (pod_with(runAsUser=0), "spec.securityContext.runAsUser"),
    "perhaps root": (template(of_pod={"seccompProfile": {"type": "RuntimeDefault"}}), f"{CONTEXT}.runAsNonRoot"),
    "root allowed": (hardened(runAsNonRoot=False), f"{CONTEXT}.runAsNonRoot"),
    "root allowed in the pod": (pod_with(runAsNonRoot=False), "spec.securityContext.runAsNonRoot"),
    "seccomp of the node": (template(of_pod={"runAsNonRoot": True}), f"{CONTEXT}.seccompProfile.type"),
    "a volume of a network file system": (volume(nfs={"server": "a", "path": "/"}), "spec.volumes[0].nfs"),
    "a sidecar without settings": (
        template(initContainers=[{**SIDECAR, "restartPolicy": "Always"}]),
        "spec.initContainers[0].securityContext.allowPrivilegeEscalation",
    ),
}
"""What only `restricted` refuses."""
ALLOWED = {
    "hardened": template(),
    "hardened per container": template({**HARDENED, **OF_POD}, {}),
    "a low port": capabilities("NET_BIND_SERVICE"),
    "volumes": template(
        volumes=[
            {"name": "a", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "c", "secret": {"secretName": "s"}},
            {"name": "d", "configMap": {"name": "m"}},
        ]
    ),
    "a safe sysctl": pod_with(sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]),
    "a type of containers": hardened(seLinuxOptions={"type": "container_t", "level": "s0:c1,c2"}),
    "a probe of its own": template(container={"livenessProbe": {"httpGet": {"port": 80}}}),
    "a user": pod_with(runAsUser=1000, fsGroup=1000, appArmorProfile={"type": "RuntimeDefault"}),
}
