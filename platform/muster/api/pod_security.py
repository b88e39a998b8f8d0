"""Kubernetes' Pod Security Standards, checked on a job's pod template: queues refuse templates by level (pure).

The rules and levels are those of the API server's own admission (k8s.io/pod-security-admission, version 1.36), which
checks pods of a namespace by its label. Two of its exceptions are left out, so that an answer does not depend on the
cluster's version: that for Windows, and that for pods with `hostUsers: false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

PodSecurityLevel = Literal["privileged", "baseline", "restricted"]
"""`privileged`: everything is allowed. `baseline`: no known way to privileges on the node. `restricted`: hardened."""

_Pod = Mapping[str, Any]
_MAX_VIOLATIONS = 6  # in one message
# tuples: a value of a template may be one that cannot be hashed
_BASELINE_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_HANDLERS = (
    ("livenessProbe",),
    ("readinessProbe",),
    ("startupProbe",),
    ("lifecycle", "postStart"),
    ("lifecycle", "preStop"),
)


@dataclass(frozen=True, slots=True)
class PodSecurityViolations:
    """What in a template a level forbids, as sentences that begin with the field; "" where the level allows it."""

    baseline: str = ""
    restricted: str = ""

    def at(self, level: PodSecurityLevel) -> str:
        """What this level forbids."""
        return {"privileged": "", "baseline": self.baseline, "restricted": self.restricted}[level]


NO_VIOLATIONS = PodSecurityViolations()


def pod_security_violations(template: Mapping[str, Any]) -> PodSecurityViolations:
    """The violations of a pod template as written. Values of a wrong type, which the API server refuses, count as
    absent."""
    baseline = list(_baseline(template))
    restricted = list(_restricted(_mapping(template.get("spec"))))
    if not baseline and not restricted:
        return NO_VIOLATIONS
    return PodSecurityViolations(_join(baseline), _join([*baseline, *restricted]))


def pod_security_message(queue: str, level: PodSecurityLevel, forbidden: str) -> str:
    """Why a queue refuses a template."""
    return f"podSecurity of queue {queue} is {level}: {forbidden}"


def _join(sentences: list[str]) -> str:
    more = len(sentences) - _MAX_VIOLATIONS
    return "; ".join([*sentences[:_MAX_VIOLATIONS], *([f"and {more} more"] if more > 0 else [])])


def _baseline(template: Mapping[str, Any]) -> Iterator[str]:
    pod = _mapping(template.get("spec"))
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield f"spec.{name} must not be true"
    for at, volume in _entries(pod.get("volumes"), "spec.volumes"):
        if volume.get("hostPath") is not None:
            yield f"{at}.hostPath must not be set"
    for at, sysctl in _entries(_mapping(pod.get("securityContext")).get("sysctls"), "spec.securityContext.sysctls"):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"{at}.name must be a safe sysctl; got {sysctl.get('name')!r}"
    for key, value in _mapping(_mapping(template.get("metadata")).get("annotations")).items():
        allowed = value in ("", "runtime/default") or str(value).startswith("localhost/")
        if key.startswith(_APPARMOR_ANNOTATION) and not allowed:
            yield f"metadata.annotations[{key}] must be runtime/default or localhost/*; got {value!r}"
    for at, context in _security_contexts(pod):
        yield from _baseline_context(at, context)
    for at, container in _containers(pod):
        yield from _baseline_container(at, container)


def _baseline_context(at: str, context: _Pod) -> Iterator[str]:
    """What is the same for a pod and a container."""
    if _mapping(context.get("windowsOptions")).get("hostProcess"):
        yield f"{at}.windowsOptions.hostProcess must not be true"
    for name in ("seccompProfile", "appArmorProfile"):
        profile = _mapping(context.get(name))
        if profile and profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{at}.{name}.type must be RuntimeDefault or Localhost; got {profile.get('type')!r}"
    options = _mapping(context.get("seLinuxOptions"))
    if (options.get("type") or "") not in _SELINUX_TYPES:
        yield f"{at}.seLinuxOptions.type must be a type of containers; got {options['type']!r}"
    for name in ("user", "role"):
        if options.get(name):
            yield f"{at}.seLinuxOptions.{name} must not be set"


def _baseline_container(at: str, container: _Pod) -> Iterator[str]:
    context = _mapping(container.get("securityContext"))
    if context.get("privileged"):
        yield f"{at}.securityContext.privileged must not be true"
    if (context.get("procMount") or "Default") != "Default":
        yield f"{at}.securityContext.procMount must be Default; got {context['procMount']!r}"
    added = [name for name in _texts(_mapping(context.get("capabilities")).get("add")) if name not in
             _BASELINE_CAPABILITIES]  # fmt: skip
    if added:
        yield f"{at}.securityContext.capabilities.add must not contain {', '.join(added)}"
    for place, port in _entries(container.get("ports"), f"{at}.ports"):
        if port.get("hostPort"):
            yield f"{place}.hostPort must not be set"
    for path in _HANDLERS:
        handler: _Pod = container
        for name in path:
            handler = _mapping(handler.get(name))
        for kind in ("httpGet", "tcpSocket"):
            if _mapping(handler.get(kind)).get("host"):
                yield f"{'.'.join((at, *path, kind))}.host must not be set"


def _restricted(pod: _Pod) -> Iterator[str]:
    for at, volume in _entries(pod.get("volumes"), "spec.volumes"):
        kinds = [kind for kind, source in volume.items() if source is not None and kind not in _VOLUMES]
        kinds = [kind for kind in kinds if kind not in ("name", "hostPath")]
        if kinds:
            yield f"{at}.{kinds[0]} must not be set; use a persistentVolumeClaim"
    of_pod = _mapping(pod.get("securityContext"))
    for at, context in _security_contexts(pod):
        if context.get("runAsUser") == 0:
            yield f"{at}.runAsUser must not be 0"
        if context.get("runAsNonRoot") is False:
            yield f"{at}.runAsNonRoot must not be false"
    for at, container in _containers(pod):
        place, context = f"{at}.securityContext", _mapping(container.get("securityContext"))
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{place}.allowPrivilegeEscalation must be false"
        if context.get("runAsNonRoot") is None and of_pod.get("runAsNonRoot") is not True:
            yield f"{place}.runAsNonRoot must be true, here or in spec.securityContext"
        if not _mapping(context.get("seccompProfile")) and not _mapping(of_pod.get("seccompProfile")):
            yield f"{place}.seccompProfile.type must be RuntimeDefault or Localhost, here or in spec.securityContext"
        capabilities = _mapping(context.get("capabilities"))
        if "ALL" not in _texts(capabilities.get("drop")):
            yield f"{place}.capabilities.drop must contain ALL"
        added = [name for name in _texts(capabilities.get("add")) if name in _BASELINE_CAPABILITIES]
        if added not in ([], ["NET_BIND_SERVICE"]):
            yield f"{place}.capabilities.add must contain nothing but NET_BIND_SERVICE; got {', '.join(added)}"


def _containers(pod: _Pod) -> Iterator[tuple[str, _Pod]]:
    for kind in ("initContainers", "containers"):
        yield from _entries(pod.get(kind), f"spec.{kind}")


def _security_contexts(pod: _Pod) -> Iterator[tuple[str, _Pod]]:
    """The security contexts of the pod and of its containers, with their paths."""
    yield "spec.securityContext", _mapping(pod.get("securityContext"))
    for at, container in _containers(pod):
        yield f"{at}.securityContext", _mapping(container.get("securityContext"))


def _entries(values: Any, path: str) -> Iterator[tuple[str, _Pod]]:
    """The entries of a list of objects, with their paths."""
    for number, value in enumerate(values if isinstance(values, list) else ()):
        yield f"{path}[{number}]", _mapping(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(values: Any) -> Iterable[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
