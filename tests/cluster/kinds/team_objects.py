"""Objects of other kinds in the namespace team-a of an installed chart, as a user would create them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.cluster.chart import GROUP
from tests.cluster.controlplane.api import Api, Refused

Json = dict[str, Any]
TEAM = "namespaces/team-a"
JOB_SETS = f"/apis/jobset.x-k8s.io/v1alpha2/{TEAM}/jobsets"
TRAINER = f"/apis/trainer.kubeflow.org/v1alpha1/{TEAM}"
_POD = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "i"}]}
JOB: Json = {"name": "node", "template": {"spec": {"template": {"spec": _POD}}}}
"""An entry of `replicatedJobs`."""
LABELLED_JOB: Json = {**JOB, "template": {**JOB["template"], "metadata": {"labels": {"muster.dev/queue": "default"}}}}
"""One whose Jobs have the label of their JobSet."""


def create(api: Api, path: str, kind: str, name: str, spec: Json) -> Json:
    """An object in queue default, not suspended."""
    version = path.removeprefix("/apis/").partition(f"/{TEAM}")[0]
    meta = {"name": name, "labels": {"muster.dev/queue": "default"}}
    return api.create(path, {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def is_held(api: Api, path: str, kind: str, spec: Json) -> bool:
    """Whether the policies suspend such an object by now."""
    try:
        return create(api, f"{path}?dryRun=All", kind, "try", spec)["spec"].get("suspend") is True
    except Refused:
        return False


def phase(api: Api, name: str) -> str:
    """The phase of the object of this name; "" before it has one."""
    found = api.items(f"{GROUP}/{TEAM}/workloads")
    return next((str(one["status"]["phase"]) for one in found if one["spec"]["objectRef"]["name"] == name), "")


LATE_KINDS = {"jobsets.jobset.x-k8s.io", "trainjobs.trainer.kubeflow.org"}


def kind_events(api: Api, since: str) -> dict[str, set[str]]:
    """Kinds by the reason of Events about them from this time on, as RFC 3339 in UTC."""
    found = defaultdict[str, set[str]](set)
    for one in api.items("/apis/events.k8s.io/v1/namespaces/default/events"):
        if (one.get("eventTime") or "") >= since:
            found[one["reason"]].add(one["regarding"]["name"])
    return found
