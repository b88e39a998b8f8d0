"""Errors of single fields in YAML: line, field, value and what is valid."""

from __future__ import annotations

import pytest
from tests.api.yaml_objects import QUEUE, changed, refusal

from muster.api.yaml_input import load_objects


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("roles:", "rolls:"), "jobs.yaml:6: spec.rolls: unknown field; did you mean 'roles'?"),
        (
            changed("queue:", "priorty: 3\n  queue:"),
            "jobs.yaml:5: spec.priorty: unknown field; did you mean 'priority'?",
        ),
        (
            changed("queue:", "max_runtime_seconds: 3\n  queue:"),
            "jobs.yaml:5: spec.max_runtime_seconds: unknown field; did you mean 'maxRuntimeSeconds'?",
        ),
        (
            changed("resources:", "resorces:"),
            ":13: spec.roles[0].template.spec.containers[0].resorces: unknown field; did you mean 'resources'?",
        ),
        (QUEUE + "spec: {xyzzy: 1}\n", "jobs.yaml:4: spec.xyzzy: unknown field; known here: parent, weight"),
    ],
)
def test_an_unknown_field_is_reported_with_the_nearest_known_one(text: str, message: str) -> None:
    assert message in str(refusal(text)).splitlines()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3\n", "jobs.yaml:1: must be an object with apiVersion, kind, metadata and spec; got 3"),
        (
            changed("TrainingJob", "TrainJob"),
            "jobs.yaml:2: kind: must be one of TrainingJob, Queue, Flavor; got 'TrainJob'; did you mean 'TrainingJob'?",
        ),
        (
            changed("TrainingJob", "Pod"),
            "jobs.yaml:2: kind: must be one of TrainingJob, Queue, Flavor; got 'Pod'",
        ),
        (changed("v1alpha1", "v1"), "jobs.yaml:1: apiVersion: must be muster.dev/v1alpha1; got 'muster.dev/v1'"),
        (changed("kind: TrainingJob\n", ""), "jobs.yaml:1: kind: must be one of TrainingJob, Queue, Flavor; got null"),
    ],
)
def test_a_wrong_kind_or_version_is_refused(text: str, message: str) -> None:
    assert str(refusal(text)) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("replicas: 4", "replicas: -1", "8: spec.roles[0].replicas: must be at least 1; got -1"),
        ("replicas: 4", "replicas: 0", "8: spec.roles[0].replicas: must be at least 1; got 0"),
        ("replicas: 4", "replicas: 1000000", "8: spec.roles[0].replicas: must be at most 100000; got 1000000"),
        ("replicas: 4", "replicas: '4'", "8: spec.roles[0].replicas: must be an integer; got '4'"),
        ("replicas: 4", "replicas: yes", "8: spec.roles[0].replicas: must be an integer; got true"),
        ("replicas: 4", "replicas: 1.5", "8: spec.roles[0].replicas: must be an integer; got 1.5"),
        (
            "replicas: 4",
            "replicas: 4\n    minReplicas: 5",
            "9: spec.roles[0].minReplicas: must be at most replicas (4); got 5",
        ),
        ("queue: research", "queue: ''", "5: spec.queue: must not be empty"),
        ("queue: research", "queue: 7", "5: spec.queue: must be a string; got 7 without quotes"),
        ("queue: research", "queue: Research!", "5: spec.queue: must consist of lower-case letters"),
        (
            "gpu: 8",
            "gpu: -8",
            '13: spec.roles[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]: must be at least 0',
        ),
        (
            "gpu: 8",
            "gpu: 8GB",
            "must be a quantity, a number with an optional suffix such as 500m, 2 or 16Gi; got '8GB'",
        ),
        ("gpu: 8", "gpu: true", "must be a quantity"),
        ("gpu: 8", "gpu: 0.5", "must be a whole number; got"),
        ("nvidia.com/gpu: 8", "nvidia.com/gpus: 8", "no such resource; did you mean 'nvidia.com/gpu'?"),
        ("nvidia.com/gpu: 8", "gpu: 8", "no such resource; did you mean 'nvidia.com/gpu'?"),
        ("queue: research", "trace: '20:25'", "must be a mapping; got '20:25'; for example {startStep: 20, steps: 5}"),
        ("gpu: 8", "gpu: 1e30", "must be less than 2^62"),
        (
            "gpu: 8",
            "memory: 4Ei",
            "nvidia.com/memory of all pods together must be less than 2^62; got 4 pods of 4Ei",
        ),
        (
            "spec:\n        con",
            "spec:\n        nodeName: n1\n        con",
            "spec.nodeName: must not be set, because Muster sets it; got 'n1'",
        ),
        (
            "spec:\n        con",
            "spec:\n        restartPolicy: Always\n        con",
            "must be 'Never'; got 'Always'",
        ),
        (
            "queue:",
            "maxRuntimeSeconds: 2:00:00\n  queue:",
            "5: spec.maxRuntimeSeconds: must be a duration such as 2h, 1h30m, 45s or a number of seconds; got '2",
        ),
        (
            "queue:",
            "trace: {startStep: 20, steps: 0}\n  queue:",
            "5: spec.trace.steps: must be at least 1; got 0",
        ),
        ("queue:", "trace:\n  queue:", None),
        ("name: llama,", "", "3: metadata.name: is required"),
        ("name: llama,", "name: ../../etc,", "3: metadata.name: must consist of lower-case letters"),
        (
            "name: llama,",
            "name: a.b,",
            "3: metadata.name: must be at most 52",
        ),
        ("name: llama,", f"name: {'a' * 53},", "3: metadata.name: must be at most 52"),
        ("team-a", "../x", "3: metadata.namespace: must consist of lower-case letters"),
        (
            "queue:",
            "failurePolicy: {rules: [{action: FailJob}]}\n  queue:",
            "5: spec.failurePolicy.rules[0]: must have onExitCodes or onPodConditions",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_line_field_value_and_what_would_be_right(
    old: str, new: str, message: str | None
) -> None:
    text = changed(old, new)
    if message is None:
        assert len(load_objects(text)) == 1
    else:
        assert message in str(refusal(text))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{weight: -1}", "4: spec.weight: must be greater than 0; got -1"),
        ("{weight: .nan}", "spec.weight: must be a finite number; got nan"),
        (
            "{resources: [{flavor: x, guaranteed: {cpu: 8}, limit: {cpu: 4}}]}",
            "4: spec.resources[0].guaranteed: cpu must be at most its limit (4); got 8",
        ),
        (
            "{resources: [{flavor: x}, {flavor: x}]}",
            "4: spec.resources: flavor must be unique; got 'x' more than once; join the two entries",
        ),
        (
            "{namespaceSelector: {matchExpressions: [{key: a, operator: Inn, values: [b]}]}}",
            "matchExpressions[0].operator: must be 'In', 'NotIn', 'Exists' or 'DoesNotExist'; got 'Inn'",
        ),
    ],
)
def test_a_wrong_queue_is_reported_so(spec: str, message: str) -> None:
    assert message in str(refusal(f"{QUEUE}spec: {spec}\n"))


def test_all_wrong_amounts_of_a_mapping_are_reported_at_once_each_at_its_line() -> None:
    limits = "{limits: {nvidia.com/gpu: 8}}"
    written = (
        "\n            limits:\n              cpu: two\n              memory: 4GiB\n              nvidia.com/gpu: -1"
    )
    assert str(refusal(changed(limits, written))).splitlines() == [
        f"jobs.yaml:{line}: spec.roles[0].template.spec.containers[0].resources.limits{message}"
        for line, message in (
            (15, ".cpu: must be a quantity, a number with an optional suffix such as 500m, 2 or 16Gi; got 'two'"),
            (16, ".memory: must be a quantity, a number with an optional suffix such as 500m, 2 or 16Gi; got '4GiB'"),
            (17, '["nvidia.com/gpu"]: must be at least 0; got -1'),
        )
    ]


def test_all_guarantees_above_a_limit_are_reported_at_once() -> None:
    quota = "guaranteed: {cpu: 8, memory: 2Gi, pods: 1}, limit: {cpu: 4, memory: 1Gi, pods: 1}"
    assert str(refusal(f"{QUEUE}spec: {{resources: [{{flavor: x, {quota}}}]}}\n")).splitlines() == [
        f"jobs.yaml:4: spec.resources[0].guaranteed: {message}"
        for message in ("cpu must be at most its limit (4); got 8", "memory must be at most its limit (1Gi); got 2Gi")
    ]
