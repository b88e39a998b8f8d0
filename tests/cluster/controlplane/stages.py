"""Behaviour of pods on nodes without a kubelet: KWOK's stages, and the annotations that control them.

A pod that is bound starts at once, gets ready at once, runs for ever, and stops at once when it is deleted. Annotations
change that, pod by pod; they may be put on a pod while it runs. A value may be a list with one entry for each
attempt of the job, as in "3,0": 3 in attempt 0, and 0 in every later one.

| annotation (kwok.muster.dev/...) | what it does |
|---|---|
| stuck | the containers never start; the value is the reason they wait for, e.g. ImagePullBackOff |
| start-seconds | from bound to Running |
| ready-seconds | from Running to Ready |
| run-seconds | from Ready to the end |
| exit-code | the containers end with it; at once when run-seconds is missing |
| exit-reason | why, e.g. OOMKilled; else Completed or Error |
| sidecar-seconds | how long native sidecars outlive the other containers |
| stop-seconds | from the deletion to the end; the grace period bounds it, and then the exit code is 137 |
| stop-exit-code | the exit code after a deletion; else 143 |
| ip | the pod's address, such as one of loopback where a process of the test answers in its place |

Seconds may have a fraction. A timer begins anew when the pod changes. The node stage follows KWOK's own
(Apache License 2.0); there is no heartbeat, so that whatever a test writes into a node's status stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.cluster.controlplane import pod_status
from tests.cluster.controlplane.pod_status import ATTEMPT, PREFIX

Json = dict[str, Any]


def write_stages(path: Path, log: Path) -> Path:
    """Write every stage into one file for KWOK's --config, and that `log` is what every container has logged."""
    spec = {"logs": [{"logsFile": str(log), "previousLogsFile": str(log), "follow": True}]}
    logs = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterLogs", "metadata": {"name": "all"}, "spec": spec}
    path.write_text(yaml.safe_dump_all([*STAGES, logs], sort_keys=False))
    return path


def _stage(name: str, kind: str, when: list[Json], steps: list[Json], delay: Json | None = None) -> Json:
    spec: Json = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": [{"jq": expression} for expression in when]},
        "steps": steps,
    }
    if delay:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _is(key: str, *values: str) -> Json:
    return {"key": key, "operator": "In", "values": list(values)}


def _is_not(key: str, *values: str) -> Json:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _exists(key: str, there: bool = True) -> Json:
    return {"key": key, "operator": "Exists" if there else "DoesNotExist"}


def _status(template: str) -> Json:
    return {"patch": {"subresource": "status", "root": "status", "template": template}}


def _value(name: str) -> str:
    """A jq expression: the annotation's value for the pod's attempt; nothing where it is missing or empty."""
    return (
        f'((.metadata.annotations["{PREFIX}{name}"] // "") | split(",")) as $values'
        f' | ((.metadata.labels["{ATTEMPT}"] // "0") | tonumber) as $attempt'
        ' | ($values[[$attempt, ($values | length) - 1] | min] // "") | select(. != "")'
    )


def _after(expression: str) -> Json:
    """A delay of as many seconds as the jq expression says; none where it says nothing."""
    return {"durationMilliseconds": 0, "durationFrom": {"jq": {"expression": f'{expression} | . + "s"'}}}


DELETED = ".metadata.deletionTimestamp"
PHASE = ".status.phase"
READY = '.status.conditions.[] | select(.type == "Ready") | .status'
ENDED = ".status.containerStatuses.[0].state.terminated"
STOP = f'[([({_value("stop-seconds")}), "0"] | .[0] | tonumber), (.metadata.deletionGracePeriodSeconds // 0)] | min'

STAGES = [
    _stage(
        "pod-start",
        "Pod",
        [_exists(DELETED, False), _is(PHASE, "Pending"), _exists(_value("stuck"), False)],
        [_status(pod_status.STARTED)],
        _after(_value("start-seconds")),
    ),
    _stage(
        "pod-stuck",
        "Pod",
        [
            _exists(DELETED, False),
            _is(PHASE, "Pending"),
            _exists(_value("stuck")),
            _exists(".status.containerStatuses.[0]", False),
        ],
        [_status(pod_status.STUCK)],
    ),
    _stage(
        "pod-ready",
        "Pod",
        [_exists(DELETED, False), _is(PHASE, "Running"), _is_not(READY, "True"), _exists(ENDED, False)],
        [_status(pod_status.READY)],
        _after(_value("ready-seconds")),
    ),
    _stage(
        "pod-end",
        "Pod",
        [
            _exists(DELETED, False),
            _is(PHASE, "Running"),
            _is(READY, "True"),
            _exists(f"({_value('run-seconds')}), ({_value('exit-code')})"),
        ],
        [_status(pod_status.ENDED)],
        _after(_value("run-seconds")),
    ),
    _stage(
        "pod-end-sidecars",
        "Pod",
        [_exists(DELETED, False), _is(PHASE, "Running"), _exists(ENDED)],
        [_status(pod_status.SIDECARS_ENDED)],
        _after(_value("sidecar-seconds")),
    ),
    _stage(
        "pod-stop",
        "Pod",
        [_exists(DELETED), _is(PHASE, "Running")],
        [_status(pod_status.STOPPED)],  # pod-remove follows: one deletion only, since it goes by the name
        _after(f"{STOP} | tostring"),
    ),
    _stage("pod-remove", "Pod", [_exists(DELETED), _is_not(PHASE, "Running")], [{"delete": True}]),
    _stage("node-initialize", "Node", [_exists(READY, False)], [_status(pod_status.NODE)]),
]
