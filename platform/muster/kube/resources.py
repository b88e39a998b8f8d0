"""The resources of the API that Muster reads or writes, and their paths (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from muster.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As in objects: v1, coordination.k8s.io/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As kubectl names it, and the CRD that defines it: leases.coordination.k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, sub: str = "") -> str:
        """Path of the collection (of a namespace, or of all), of an object, or of its subresource. A cluster-scoped
        resource has no namespace; one that is given does not count. Names are escaped, since users write them; raises
        InvalidSpec for one that would change the path of the request."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if namespace is not None and self.namespaced:
            parts.append(f"namespaces/{_path_segment('namespace', namespace)}")
        parts.append(self.plural)
        if name is not None:
            parts.append(_path_segment("name", name))
        if sub:
            parts.append(sub)
        return "/".join(parts)


def _path_segment(field: str, name: str) -> str:
    """The escaped name. As in client-go, a name with `/` or `%` is refused: the API server would decode it first."""
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise InvalidSpec(f"{field}: must not be empty, '.' or '..', nor contain '/' or '%'; got {name!r}", field=field)
    return quote(name, safe="")


PODS = Resource("", "v1", "pods", "Pod", True)
SERVICES = Resource("", "v1", "services", "Service", True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
SECRETS = Resource("", "v1", "secrets", "Secret", True)
NODES = Resource("", "v1", "nodes", "Node", False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
CORE_EVENTS = Resource("", "v1", "events", "Event", True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
POD_GROUPS = tuple(
    Resource("scheduling.k8s.io", version, "podgroups", "PodGroup", True) for version in ("v1beta1", "v1alpha2")
)
"""In each version that we can write, newest first: Kubernetes 1.37, 1.36."""
TRAINING_JOBS = Resource("muster.dev", "v1alpha1", "trainingjobs", "TrainingJob", True)
QUEUES = Resource("muster.dev", "v1alpha1", "queues", "Queue", False)
FLAVORS = Resource("muster.dev", "v1alpha1", "flavors", "Flavor", False)
TRACE_CAPTURES = Resource("muster.dev", "v1alpha1", "tracecaptures", "TraceCapture", True)
WORKLOADS = Resource("muster.dev", "v1alpha1", "workloads", "Workload", True)
MUSTER_KINDS = {resource.kind: resource for resource in (TRAINING_JOBS, QUEUES, FLAVORS)}
"""The resource of each kind that `muster apply` and `muster delete` know."""
