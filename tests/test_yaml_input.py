"""What a person reads when the YAML is wrong, and what is accepted when it is right."""

from __future__ import annotations

import contextlib
import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.yaml_input import load_objects
from muster.api.yaml_input.field_errors import field_path, parse_field_path
from muster.api.yaml_input.source_map import MAX_DOCUMENTS
from muster.errors import InvalidSpec

JOB = """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: llama, namespace: team-a}
spec:
  queue: research
  roles:
  - name: trainer
    replicas: 4
    template:
      spec:
        containers:
        - command: [python, train.py]
          resources: {limits: {nvidia.com/gpu: 8}}
"""
QUEUE = "apiVersion: muster.dev/v1alpha1\nkind: Queue\nmetadata: {name: research}\n"


def refusal(text: str | bytes) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        load_objects(text, "jobs.yaml")
    return caught.value


def changed(old: str, new: str, text: str = JOB) -> str:
    assert old in text
    return text.replace(old, new)


def test_several_documents_become_objects_in_order() -> None:
    flavor = "apiVersion: muster.dev/v1alpha1\nkind: Flavor\nmetadata: {name: h200}\n"
    found = load_objects(f"{flavor}---\n{QUEUE}---\n---\n{JOB}---\n---\n")
    assert [type(item) for item in found] == [Flavor, Queue, TrainingJob]
    assert isinstance(found[2], TrainingJob)
    assert found[2].spec.roles[0].template.spec.containers[0].resources.limits == {"nvidia.com/gpu": "8"}


def test_json_is_read_as_the_yaml_that_it_is() -> None:
    (job,) = load_objects(JOB)
    assert load_objects(job.model_dump_json(by_alias=True, exclude_none=True)) == [job]


def test_status_and_what_the_server_fills_in_are_ignored() -> None:
    described = changed("name: llama,", "name: llama, uid: abc, resourceVersion: '7', generation: 3,")
    (job,) = load_objects(described + "status: {phase: Running}\n")
    assert isinstance(job, TrainingJob)
    assert (job.metadata.uid, job.metadata.generation, job.status.phase) == ("", 1, "Pending")


def test_what_kubernetes_knows_and_we_do_not_is_kept_in_a_pod_template() -> None:
    text = changed(
        "- command:", "- livenessProbe: {exec: {command: [true]}}\n          command:".replace("true", "'x'")
    )
    (job,) = load_objects(text)
    assert isinstance(job, TrainingJob)
    assert job.spec.roles[0].template.spec.containers[0].model_extra == {"livenessProbe": {"exec": {"command": ["x"]}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3\n", "jobs.yaml:2:2: malformed YAML: did not find expected ',' or ']' while parsing a flow"),
        ("a:\n  b: 1\n c: 2\n", "jobs.yaml:3:2: malformed YAML: did not find expected key"),
        ("a:\n\t- b\n", "jobs.yaml:2:1: malformed YAML: found character that cannot start any token"),
        ("a: 1\nb: \x01\n", "jobs.yaml:2:4: malformed YAML: control characters are not allowed"),
        (b"a: 1\nbc: \xff\n", "jobs.yaml:2:5: the byte 0xff is not UTF-8; save the file as UTF-8 text"),
        ("a: 1\nb: 2\na: 3\n", "jobs.yaml:3:1: the key 'a' is already at line 1; keep one of them"),
        ("a: !!python/object:os.system x\n", "jobs.yaml:1:4: the tag"),
        ("a: !!set {x, y}\n", "jobs.yaml:1:4: the tag"),
        ("? [a]\n: 1\n", "jobs.yaml:1:3: a key must be a scalar"),
        ("a: &x [*x]\n", "jobs.yaml:1:4: an alias must not refer to a node that contains it"),
        ("a: *nobody\n", "jobs.yaml:1:4: malformed YAML: found undefined alias"),
    ],
)
def test_malformed_yaml_is_named_by_line_and_column(text: str | bytes, message: str) -> None:
    error = refusal(text)
    assert error.reason == "MalformedYaml"
    assert str(error).startswith(message)


def test_a_tab_is_named_as_what_it_is() -> None:
    assert "indented with a tab: YAML requires spaces" in str(refusal("a:\n\t- b\n"))


def test_an_alias_bomb_is_refused_without_being_built() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    error = refusal(bomb)
    assert (error.reason, "aliases expand to more than" in str(error)) == ("TooLarge", True)


def test_the_number_of_documents_is_bounded_empty_ones_included() -> None:
    assert len(load_objects("---\n" * (MAX_DOCUMENTS - 1) + "---\n" + QUEUE)) == 1
    error = refusal("---\n" * 40 + "---\n" * MAX_DOCUMENTS + QUEUE)
    assert (error.reason, str(MAX_DOCUMENTS) in str(error)) == ("TooLarge", True)
    assert str(error).startswith(f"jobs.yaml:{MAX_DOCUMENTS + 1}: ")


def test_what_aliases_stand_for_counts_over_all_documents_of_a_text() -> None:
    values = [f"a: &a [{', '.join(['x'] * 1000)}]\nb: [{', '.join(['*a'] * 300)}]\n"] * 2
    assert "aliases expand to more than" not in str(refusal(values[0]))
    assert refusal("---\n".join(values)).reason == "TooLarge"


def test_an_honest_alias_and_a_merge_are_read() -> None:
    resources = "- &a {flavor: x, guaranteed: &g {cpu: 4}, limit: *g}\n  - {<<: *a, flavor: y}"
    text = f"{QUEUE}spec:\n  resources:\n  {resources}\n"
    (queue,) = load_objects(text)
    assert isinstance(queue, Queue)
    assert [(item.flavor, item.limit) for item in queue.spec.resources] == [("x", {"cpu": "4"}), ("y", {"cpu": "4"})]


def test_what_merges_copy_counts_over_all_of_them() -> None:
    wide = f"x: &wide {{{', '.join(f'k{i}: 1' for i in range(20_000))}}}\ns: &small {{q: 1}}\n"
    error = refusal(f"{wide}m:\n  <<: [*wide, {', '.join(['*small'] * 20_000)}]\n")
    assert (error.reason, "aliases expand to more than" in str(error)) == ("TooLarge", True)


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "0" + "7" * 5000, "0b" + "1" * 20_000, "1" + "0" * 5000])
def test_a_number_of_too_many_digits_is_refused_at_its_place_without_being_written(number: str) -> None:
    error = refusal(f"a: 1\nb: {number}\n")
    assert (error.reason, str(error).startswith("jobs.yaml:2:4: "), len(str(error)) < 200) == (
        "MalformedYaml",
        True,
        True,
    )


@pytest.mark.parametrize(
    "text",
    [
        changed("gpu: 8", "gpu: 8, cpu: '" + "1" * 200_000 + "'"),
        changed("roles:", "? " + "rolls" * 40_000 + "\n  : 1\n  roles:"),
        "a: !!float " + "x" * 100_000,
        "a" * 100_000 + ": 1\n" + "a" * 100_000 + ": 2\n",
    ],
)
def test_a_message_about_a_long_value_is_short(text: str) -> None:
    assert len(str(refusal(text))) < 5000


def test_findings_are_sought_up_to_a_number_of_which_the_first_are_said() -> None:
    unknown = "".join(f"  zz{i}: 1\n" for i in range(5000))
    *shown, more = str(refusal(changed("  roles:", f"{unknown}  roles:"))).splitlines()
    assert (len(shown), "at least" in more) == (12, True)
    *shown, more = str(refusal("---\n".join(["kind: Queu\n"] * 900))).splitlines()
    assert (len(shown), "at least" in more) == (12, True)


@pytest.mark.parametrize("text", ["x" * (4 * 2**20 + 1), "[" * 100 + "]" * 100, "- " * 500 + "a"])
def test_what_is_too_large_or_too_deep_is_refused(text: str) -> None:
    assert refusal(text).reason == "TooLarge"


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
def test_a_wrong_kind_or_version_is_told(text: str, message: str) -> None:
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
            "5: spec.maxRuntimeSeconds: must be an integer; got '2:00:00'",
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


def test_everything_wrong_in_a_text_is_reported_at_once_in_the_order_of_lines() -> None:
    text = changed("replicas: 4", "replicas: 0\n    minReplica: 1") + f"---\n{QUEUE}spec: {{weight: 0}}\n"
    error = refusal(text)
    assert [line.split(": ")[1] for line in str(error).splitlines()] == [
        "spec.roles[0].replicas",
        "spec.roles[0].minReplica",
        "spec.weight",
    ]
    assert error.field == "spec.roles[0].replicas"


def test_the_same_object_twice_in_a_text_is_refused() -> None:
    assert str(refusal(f"{QUEUE}---\n{QUEUE}")) == (
        "jobs.yaml:7: metadata.name: Queue 'research' is already at line 3; keep one of them"
    )


@pytest.mark.parametrize("text", ["", "---\n---\n", "# only a comment\n"])
def test_a_text_without_an_object_is_refused(text: str) -> None:
    assert str(refusal(text)) == "jobs.yaml: must contain at least one object of kind TrainingJob, Queue, Flavor"


def test_the_example_of_the_design_is_accepted() -> None:
    text = textwrap.dedent("""\
        apiVersion: muster.dev/v1alpha1
        kind: TrainingJob
        metadata: {name: llama-8b, namespace: team-a}
        spec:
          queue: research
          priority: 0
          maxRuntimeSeconds: 7200
          stallTimeoutSeconds: 1800
          flavors: [h200]
          topology: {required: block, preferred: rack}
          roles:
          - name: trainer
            replicas: 4
            minReplicas: 2
            template: {spec: {containers: [{image: x, resources: {limits: {nvidia.com/gpu: 8}}}]}}
          failurePolicy: {maxRestarts: 3, rules: [{onExitCodes: [42], action: FailJob}]}
          trace: {startStep: 20, steps: 5, ranks: []}
          ttlSecondsAfterFinished: 86400
        """)
    (job,) = load_objects(text)
    assert job.model_dump(by_alias=True, mode="json", exclude_unset=True) == {
        **yaml.safe_load(text),
        "spec": {
            **yaml.safe_load(text)["spec"],
            "roles": [
                {
                    "name": "trainer",
                    "replicas": 4,
                    "minReplicas": 2,
                    "template": {
                        "spec": {"containers": [{"image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
                    },
                }
            ],
        },
    }


@given(st.text() | st.binary())
def test_any_text_is_either_read_or_refused(text: str | bytes) -> None:
    with contextlib.suppress(InvalidSpec):
        load_objects(text)


@given(st.data())
def test_a_job_with_any_value_at_any_place_is_either_read_or_refused(data: st.DataObject) -> None:
    """Numbers where lists belong, lists where names belong: never anything but an answer that names the field."""
    value = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    document = yaml.safe_load(JOB)
    place: Any = document
    key: Any = data.draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], dict | list) and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(range(len(place)) if isinstance(place, list) else sorted(place)))
    place[key] = data.draw(value)
    with contextlib.suppress(InvalidSpec):
        load_objects(yaml.safe_dump(document, allow_unicode=True))


def test_a_path_that_was_written_is_a_path_again() -> None:
    path = ("spec", "roles", 0, "limits", "nvidia.com/gpu")
    assert parse_field_path(field_path(path)) == path
