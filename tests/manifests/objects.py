"""Objects that are right, objects that show something wrong, and edits that are not allowed.

`tests/manifests` holds pydantic to them, `tests/cluster/test_api.py` the API server itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """An object with one fault: the field, as the API server names it, and a part of what each of the two says."""

    name: str
    item: Object
    field: str
    server: str
    python: str


def job(name: str = "j", role: Object | None = None, pod: Object | None = None, **spec: Any) -> Object:
    """A job of one role; `role` and `pod` are laid over its parts."""
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], **(pod or {})}}
    roles = [{"name": "trainer", "template": template, **(role or {})}]
    return _object("TrainingJob", name, {"roles": roles, **spec}) | {"metadata": {"name": name, "namespace": "default"}}


def queue(name: str = "q", **spec: Any) -> Object:
    """A queue."""
    return _object("Queue", name, spec)


def flavor(name: str = "f", **spec: Any) -> Object:
    """A flavor."""
    return _object("Flavor", name, spec)


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _asks(amounts: Object) -> Object:
    return {"containers": [{"name": "main", "resources": {"limits": amounts}}]}


def _quota(**amounts: Object) -> Object:
    return queue(resources=[{"flavor": "h200", **amounts}])


def _selects(line: Object) -> Object:
    return queue(namespaceSelector={"matchExpressions": [line]})


def _levels(*levels: tuple[str, str]) -> Object:
    return flavor(topology=[{"name": name, "nodeLabel": label} for name, label in levels])


def _whole(replicas: int = 1, **resources: Object) -> Object:
    return job(role={"replicas": replicas}, pod={"resources": resources})


_LABELLED = {"metadata": {"labels": {"a b": "x"}}, "spec": {"containers": [{}]}}
_CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
_ROLE = {"name": "a", "template": {"spec": {"containers": [{}]}}}
_ELASTIC = _ROLE | {"replicas": 8, "minReplicas": 2}
_POD = "spec.roles[0].template.spec"

GOOD: tuple[Object, ...] = (
    job(),
    job("a" * 46),
    job(queue="research", priority=-5, maxRuntimeSeconds=1, stallTimeoutSeconds=31_622_400, ttlSecondsAfterFinished=0),
    job(priorityClassName="high"),
    job(
        dependsOn=[{"job": "prepare"}, {"job": "check", "outcome": "NotSucceeded"}, {"job": "last", "outcome": "Any"}],
        singleton="nightly",
        beginTime="2026-12-01T18:00:00Z",
        startDeadline="2026-12-02T06:00:00.5Z",
        cancelIfUnsatisfiable=True,
    ),
    job(array={"indices": "0-99", "parallelism": 10}),
    job(array={"indices": "3,5-8,00007", "cancel": "1-2", "retries": 3}),
    job(array={"indices": "0-9"}, dependsOn=[{"job": "prepare", "eachIndex": True}]),
    job("a" * 41, array={"indices": "0-9999", "parallelism": 500}),
    job(flavors=["h200", "a100-spot"], topology={"required": "block", "preferred": "rack"}),
    job(trace={"startStep": 1, "steps": 1000, "ranks": [0, 7]}),
    job(failurePolicy={"maxRestarts": 0, "rules": [{"onExitCodes": [1, 255], "action": "FailJob"}]}),
    job(failurePolicy={"rules": [{"onPodConditions": ["DisruptionTarget"], "action": "RestartElsewhere"}]}),
    job(roles=[_ROLE | {"essential": False}, _ROLE | {"name": "b", "replicas": 8, "minReplicas": 2}]),
    job(roles=[_ELASTIC], elasticReplicas=2),
    job(roles=[_ELASTIC, _ROLE | {"name": "b"}], elasticReplicas=8),
    job(role={"replicas": 100_000, "minReplicas": 100_000}),
    job(pod=_asks({"cpu": "1500m", "memory": "16Gi", "nvidia.com/gpu": 8, "ephemeral-storage": "1e12", "x/y": "+1e0"})),
    job(pod=_asks({"memory": "4611686018427387904"})),
    job(pod=_asks({"a/a": "2000m", "a/b": "1009000m", "a/c": "1.5k", "a/d": "3.0", "a/e": "9007199254740993"})),
    job(pod=_asks({"a/a": "9007199254740993000m", "a/b": "4Ei", "a/c": "1e18", "a/d": "0.5Ki", "a/e": "0.9999999999"})),
    _quota(limit={"a/a": "4611686018427387903", "a/b": "4611.686018427387904P", "a/c": "4503599627370497.0"}),
    job(role={"replicas": 3}, pod=_asks({"memory": "1537228672809129301"})),
    _whole(requests={"cpu": 64, "memory": "512Gi"}, limits={"hugepages-2Mi": "1Gi"}),
    _whole(3, requests={"memory": "1537228672809129301"}),
    job(pod={"resourceClaims": []}),
    job(
        pod={
            "initContainers": [
                {"name": "side", "image": "y", "restartPolicy": "Always", "ports": [{"containerPort": 1}]}
            ],
            "containers": [{"name": "main", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]}],
            "nodeSelector": {"a": "b"},
            "affinity": {
                "podAffinity": {},
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["3"]}]}]
                    }
                },
            },
            "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "", "tolerationSeconds": 5}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "imagePullSecrets": [{"name": "registry"}],
            "overhead": {"cpu": "10m"},
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
        }
    ),
    job(
        pod={
            "containers": [
                {
                    "name": "main",
                    "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                    "volumeMounts": [{"name": "runs", "mountPath": "/data", "subPathExpr": "$(A)", "readOnly": False}],
                    "securityContext": {"runAsUser": 1000, "seLinuxOptions": {"level": "s0"}, "privileged": False},
                }
            ],
            "volumes": [{"name": "runs", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "etc", "hostPath": {"path": "/"}}],
            "securityContext": {"fsGroup": 5},
            "hostNetwork": True,
            "serviceAccountName": "trainer",
        }
    ),
    {key: value for key, value in queue().items() if key != "spec"},
    queue(parent="company", weight=0.5, maxPriority=1000, halfLifeSeconds=3600, namespaceSelector={}),
    _selects({"key": "org", "operator": "NotIn", "values": ["a"]}),
    _selects({"key": "org", "operator": "DoesNotExist"}),
    _quota(guaranteed={"cpu": 2, "memory": "1024Mi"}, limit={"cpu": "2000m", "memory": "1Gi"}, lend={"cpu": "1"}),
    _quota(guaranteed={"nvidia.com/gpu": 16}, limit={"cpu": 1}),
    flavor(),
    flavor(nodeLabels={"gpu.model": "h200"}, tolerations=[{"key": "gpu", "operator": "Exists"}]),
    _levels(("block", "example.com/block"), ("rack", "example.com/rack")),
    flavor(nodeLabels={"a" * 63: "", "e" * 253 + "/A.b_c-d": "x" * 63, "a.b/c": "1"}),
    flavor(tolerations=[{"key": "", "operator": "Exists"}, {"key": "example.com/a", "value": "B_c"}]),
)

BAD: tuple[Bad, ...] = (
    Bad("no roles", job(roles=[]), "spec.roles", "should have at least 1 items", "at least 1 item"),
    Bad(
        "a name with a dot",
        job("a.b"),
        "metadata.name",
        "names of pods begin with it",
        "names of pods begin with it",
    ),
    Bad("a long name", job("a" * 53), "metadata.name", "at most 52", "at most 52"),
    Bad("names that add up", job("a" * 48), "metadata.name", "at most 63 characters", "at most 47 characters"),
    Bad(
        "an index that adds up",
        job("a" * 46, role={"replicas": 11}) | {"metadata": {"name": "a" * 47, "namespace": "default"}},
        "metadata.name",
        "at most 63 characters",
        "at most 46 characters",
    ),
    Bad("a role in capitals", job(role={"name": "A"}), "spec.roles[0].name", "should match", "should match"),
    Bad("two roles of one name", job(roles=[_ROLE, _ROLE]), "spec.roles[1]", "Duplicate value", "must be unique"),
    Bad("no role essential", job(role={"essential": False}), "spec.roles", "must be essential", "must be essential"),
    Bad("no replicas", job(role={"replicas": 0}), "spec.roles[0].replicas", "greater than or equal to 1", "to 1"),
    Bad("many replicas", job(role={"replicas": 100_001}), "spec.roles[0].replicas", "equal to 100000", "to 100000"),
    Bad(
        "least above most",
        job(role={"replicas": 2, "minReplicas": 3}),
        "spec.roles[0].minReplicas",
        "must be at most replicas",
        "must be at most replicas (2); got 3",
    ),
    Bad(
        "two priorities",
        job(priority=1, priorityClassName="high"),
        "spec.priorityClassName",
        "must not be set together with priority",
        "must not be set together with priority",
    ),
    Bad(
        "a job that waits for itself",
        job("a", dependsOn=[{"job": "b"}, {"job": "a"}]),
        "spec.dependsOn",
        "must not name the job itself",
        "must not name the job itself",
    ),
    Bad(
        "a job that waits twice for another",
        job(dependsOn=[{"job": "b"}, {"job": "b", "outcome": "Any"}]),
        "spec.dependsOn[1]",
        "Duplicate value",
        "must be unique",
    ),
    Bad(
        "an outcome that is none",
        job(dependsOn=[{"job": "b", "outcome": "ok"}]),
        "spec.dependsOn[0].outcome",
        "Unsupported value",
        "Input should be 'Succeeded'",
    ),
    Bad("a time that is none", job(beginTime="soon"), "spec.beginTime", "date-time", "must be a time"),
    Bad(
        "a deadline before the beginning",
        job(beginTime="2026-12-01T18:00:00Z", startDeadline="2026-12-01T18:00:00Z"),
        "spec.startDeadline",
        "must be after beginTime",
        "must be after beginTime",
    ),
    Bad("indices that are none", job(array={"indices": "0-"}), "spec.array.indices", "should match", "should match"),
    Bad(
        "too many at a time",
        job(array={"indices": "0", "parallelism": 501}),
        "spec.array.parallelism",
        "equal to 500",
        "equal to 500",
    ),
    Bad(
        "an array with a trace",
        job(array={"indices": "0-9"}, trace={"steps": 3}),
        "spec.trace",
        "must not be set together with array",
        "must not be set together with array",
    ),
    Bad(
        "each index of a job without any",
        job(dependsOn=[{"job": "prepare", "eachIndex": True}]),
        "spec.dependsOn",
        "eachIndex must not be true without array",
        "eachIndex must not be true without array",
    ),
    Bad(
        "an array whose names add up",
        job("a" * 42, array={"indices": "0-9"}),
        "metadata.name",
        "at most 63 characters",
        "at most 41 characters",
    ),
    Bad("a large priority", job(priority=2**31), "spec.priority", "equal to 2147483647", "equal to 2147483647"),
    Bad("a queue that is none", job(queue="../x"), "spec.queue", "should match", "should match"),
    Bad("no time to run", job(maxRuntimeSeconds=0), "spec.maxRuntimeSeconds", "equal to 1", "equal to 1"),
    Bad("years to run", job(maxRuntimeSeconds=10**9), "spec.maxRuntimeSeconds", "31622400", "31622400"),
    Bad("no time to start", job(startTimeoutSeconds=-1), "spec.startTimeoutSeconds", "equal to 1", "equal to 1"),
    Bad("no time to stall", job(stallTimeoutSeconds=0), "spec.stallTimeoutSeconds", "equal to 1", "equal to 1"),
    Bad("gone before", job(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished", "equal to 0", "equal to 0"),
    Bad("a trace before", job(trace={"startStep": 0, "steps": 1}), "spec.trace.startStep", "equal to 1", "equal to 1"),
    Bad("an endless trace", job(trace={"startStep": 1, "steps": 1001}), "spec.trace.steps", "to 1000", "to 1000"),
    Bad("a factor below 1", job(trace={"whenSlower": 0.5}), "spec.trace.whenSlower", "equal to 1.1", "equal to 1.1"),
    Bad("a rank below", job(trace={"startStep": 1, "steps": 1, "ranks": [-1]}), "spec.trace.ranks[0]", "to 0", "to 0"),
    Bad(
        "an exit code that is none",
        job(failurePolicy={"rules": [{"onExitCodes": [256], "action": "FailJob"}]}),
        "spec.failurePolicy.rules[0].onExitCodes[0]",
        "equal to 255",
        "equal to 255",
    ),
    Bad(
        "a rule for nothing",
        job(failurePolicy={"rules": [{"action": "FailJob"}]}),
        "spec.failurePolicy.rules[0]",
        "must have onExitCodes or onPodConditions",
        "must have onExitCodes or onPodConditions",
    ),
    Bad(
        "a rule that does what?",
        job(failurePolicy={"rules": [{"onExitCodes": [1], "action": "Retry"}]}),
        "spec.failurePolicy.rules[0].action",
        '"RestartGang", "RestartElsewhere", "FailJob"',
        "'RestartGang', 'RestartElsewhere' or 'FailJob'",
    ),
    Bad("no restarts", job(failurePolicy={"maxRestarts": -1}), "spec.failurePolicy.maxRestarts", "to 0", "to 0"),
    Bad("an unknown field", job(nonsense=1), "spec.nonsense", "unknown field", "not permitted"),
    Bad("no containers", job(pod={"containers": []}), f"{_POD}.containers", "at least 1 items", "at least 1 item"),
    Bad("a node", job(pod={"nodeName": "n"}), f"{_POD}.nodeName", "Muster chooses the node", "None"),
    Bad("a scheduler", job(pod={"schedulerName": "x"}), f"{_POD}.schedulerName", "Muster chooses the node", "None"),
    Bad(
        "a class of priority",
        job(pod={"priorityClassName": "x"}),
        f"{_POD}.priorityClassName",
        "set spec.priorityClassName of the job",
        "None",
    ),
    Bad("a restart of its own", job(pod={"restartPolicy": "Always"}), f"{_POD}.restartPolicy", '"Never"', "'Never'"),
    Bad(
        "a long goodbye",
        job(pod={"terminationGracePeriodSeconds": 86_401}),
        f"{_POD}.terminationGracePeriodSeconds",
        "to 86400",
        "to 86400",
    ),
    Bad(
        "a toleration that compares oddly",
        job(pod={"tolerations": [{"key": "a", "operator": "In"}]}),
        f"{_POD}.tolerations[0].operator",
        '"Equal", "Exists"',
        "'Equal' or 'Exists'",
    ),
    Bad(
        "an affinity without a label",
        job(
            pod={
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"operator": "Exists"}]}]
                        }
                    }
                }
            }
        ),
        "matchExpressions[0].key",
        "Required",
        "required",
    ),
    Bad(
        "a mount that is a word",
        job(pod={"containers": [{"name": "main", "volumeMounts": ["x"]}]}),
        f"{_POD}.containers[0].volumeMounts[0]",
        "must be of type object",
        "valid dictionary",
    ),
    Bad(
        "a user by name",
        job(pod={"securityContext": {"runAsUser": "root"}}),
        f"{_POD}.securityContext.runAsUser",
        "must be of type integer",
        "valid integer",
    ),
    Bad(
        "a debt", job(pod=_asks({"cpu": "-1"})), f"{_POD}.containers[0].resources.limits", "should match", "at least 0"
    ),
    Bad("a debt in numbers", job(pod=_asks({"cpu": -1})), "resources.limits.cpu", "equal to 0", "at least 0"),
    Bad(
        "part of a GPU",
        job(pod=_asks({"nvidia.com/gpu": "0.5"})),
        "resources.limits",
        "whole number",
        "must be a whole number",
    ),
    Bad(
        "part of more than a float tells apart",
        _quota(limit={"nvidia.com/gpu": "4503599627370497.5"}),
        "spec.resources[0].limit",
        "whole number",
        "must be a whole number",
    ),
    Bad(
        "the smallest part of a GPU of many",
        job(pod=_asks({"nvidia.com/gpu": "16777216.000000001"})),
        "resources.limits",
        "whole number",
        "must be a whole number",
    ),
    Bad(
        "part of nearly as many as can be",
        job(pod=_asks({"nvidia.com/gpu": "4611686018427387903.999"})),
        "resources.limits",
        "whole number",
        "must be a whole number",
    ),
    Bad("no quantity", job(pod=_asks({"cpu": "many"})), "resources.limits.cpu", "should match", "must be a quantity"),
    Bad(
        "more than anything can be",
        job(pod={"overhead": {"memory": "5E"}}),
        f"{_POD}.overhead",
        "must be less than 2^62",
        "must be less than 2^62",
    ),
    Bad(
        "more processors than anything can be",
        job(pod={"overhead": {"cpu": 2**60}}),
        f"{_POD}.overhead",
        "must be less than 2^62",
        "must be less than 2^62",
    ),
    Bad(
        "more pods than can be counted",
        job(role={"replicas": 100_000}, pod=_asks({"memory": "1Ei"})),
        "spec.roles[0].replicas",
        "must be less than 2^62",
        "must be less than 2^62",
    ),
    Bad(
        "a byte more than can be counted",
        job(role={"replicas": 3}, pod=_asks({"memory": "1537228672809129302"})),
        "spec.roles[0].replicas",
        "must be less than 2^62",
        "must be less than 2^62",
    ),
    Bad(
        "a byte more than can be counted of whole pods",
        _whole(3, limits={"memory": "1537228672809129302"}),
        "spec.roles[0].replicas",
        "must be less than 2^62",
        "must be less than 2^62",
    ),
    Bad(
        "a whole pod of no amount",
        _whole(requests={"cpu": "all"}),
        f"{_POD}.resources.requests.cpu",
        "should match",
        "must be a quantity",
    ),
    Bad(
        "a device that is claimed",
        job(pod={"resourceClaims": _CLAIMS}),
        f"{_POD}.resourceClaims",
        "not charged",
        "not charged",
    ),
    Bad(
        "no replicas of what asks for something",
        job(role={"replicas": 0}, pod=_asks({"cpu": 1})),
        "spec.roles[0].replicas",
        "greater than or equal to 1",
        "to 1",
    ),
    Bad(
        "elastic replicas of no elastic role",
        job(elasticReplicas=1),
        "spec.elasticReplicas",
        "exactly one elastic role",
        "exactly one elastic role",
    ),
    Bad(
        "elastic replicas of two elastic roles",
        job(roles=[_ELASTIC | {"name": "a"}, _ELASTIC | {"name": "b"}], elasticReplicas=3),
        "spec.elasticReplicas",
        "exactly one elastic role",
        "got a, b",
    ),
    *(
        Bad(
            f"{number} elastic replicas",
            job(roles=[_ELASTIC], elasticReplicas=number),
            "spec.elasticReplicas",
            "from minReplicas to replicas",
            "to replicas (8) of role a",
        )
        for number in (1, 9)
    ),
    *(
        Bad(f"an impossible label {what}", item, field, "label's name", "label's name")
        for what, item, field in (
            ("of a flavor", flavor(nodeLabels={"a b": "x"}), "spec.nodeLabels"),
            ("with two slashes", flavor(nodeLabels={"a/b/c": "x"}), "spec.nodeLabels"),
            ("that is long", flavor(nodeLabels={"a" * 64: "x"}), "spec.nodeLabels"),
            ("of a node selector", job(pod={"containers": [{}], "nodeSelector": {"-a": "x"}}), "nodeSelector"),
            ("of a template", job(role={"template": _LABELLED}), "template.metadata.labels"),
            ("of a namespace", queue(namespaceSelector={"matchLabels": {"a_": "x"}}), "matchLabels"),
        )
    ),
    *(
        Bad(f"an impossible {what}", item, field, "should match", "should match")
        for what, item, field in (
            ("label of a level", _levels(("rack", "a b")), "spec.topology[0].nodeLabel"),
            ("value of a label", flavor(nodeLabels={"a": "x y"}), "spec.nodeLabels.a"),
            ("key of a toleration", flavor(tolerations=[{"key": "a b", "operator": "Exists"}]), "tolerations[0].key"),
            ("value of a toleration", flavor(tolerations=[{"key": "a", "value": "-"}]), "tolerations[0].value"),
            ("label of a line", _selects({"key": "a b", "operator": "Exists"}), "matchExpressions[0].key"),
            ("value of a line", _selects({"key": "a", "operator": "In", "values": ["b c"]}), "values[0]"),
        )
    ),
    Bad("a queue without weight", queue(weight=0), "spec.weight", "greater than 0", "greater than 0"),
    Bad(
        "a guarantee above the limit",
        _quota(guaranteed={"memory": "2Gi"}, limit={"memory": 2**30}),
        "spec.resources[0].guaranteed",
        "at most the limit",
        "must be at most its limit (1073741824); got 2Gi",
    ),
    Bad(
        "a guarantee above the limit by a thousandth",
        _quota(guaranteed={"cpu": "1001m"}, limit={"cpu": 1}),
        "spec.resources[0].guaranteed",
        "at most the limit",
        "must be at most its limit (1); got 1001m",
    ),
    Bad("a debt to others", _quota(lend={"cpu": "-1"}), "spec.resources[0].lend.cpu", "should match", "at least 0"),
    Bad(
        "a flavor twice",
        queue(resources=[{"flavor": "a"}, {"flavor": "a"}]),
        "spec.resources[1]",
        "Duplicate value",
        "must be unique; got 'a' more than once; join the two entries",
    ),
    Bad("quota of no flavor", queue(resources=[{}]), "spec.resources[0].flavor", "Required", "required"),
    Bad(
        "In without values",
        _selects({"key": "a", "operator": "In"}),
        "matchExpressions[0]",
        "must be set with In",
        "must be set with",
    ),
    Bad(
        "Exists with values",
        _selects({"key": "a", "operator": "Exists", "values": ["b"]}),
        "matchExpressions[0]",
        "empty with Exists and DoesNotExist",
        "must be empty with operator Exists",
    ),
    Bad("a selector misspelt", queue(namespaceSelector={"matchLabel": {}}), "matchLabel", "unknown", "not permitted"),
    Bad("no time to forget", queue(halfLifeSeconds=0), "spec.halfLifeSeconds", "equal to 1", "equal to 1"),
    Bad("a level twice", _levels(("rack", "a"), ("rack", "b")), "spec.topology[1]", "Duplicate", "must be unique"),
    Bad("a label twice", _levels(("rack", "a"), ("block", "a")), "spec.topology", "must be unique", "must be unique"),
    Bad("a level without a label", _levels(("rack", "")), "spec.topology[0].nodeLabel", "at least 1", "at least 1"),
)
