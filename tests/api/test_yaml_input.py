"""Reading of YAML: accepted texts and errors with their place."""

from __future__ import annotations

import contextlib
import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.api.yaml_objects import JOB, QUEUE, changed, refusal

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.yaml_input import load_objects
from muster.api.yaml_input.field_errors import field_path, parse_field_path
from muster.api.yaml_input.source_map import MAX_DOCUMENTS
from muster.errors import InvalidSpec


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
        ("a: *missing\n", "jobs.yaml:1:4: malformed YAML: found undefined alias"),
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


def test_errors_are_collected_up_to_a_number_and_the_first_are_shown() -> None:
    unknown = "".join(f"  zz{i}: 1\n" for i in range(5000))
    *shown, more = str(refusal(changed("  roles:", f"{unknown}  roles:"))).splitlines()
    assert (len(shown), "at least" in more) == (12, True)
    *shown, more = str(refusal("---\n".join(["kind: Queu\n"] * 900))).splitlines()
    assert (len(shown), "at least" in more) == (12, True)


@pytest.mark.parametrize("text", ["x" * (4 * 2**20 + 1), "[" * 100 + "]" * 100, "- " * 500 + "a"])
def test_what_is_too_large_or_too_deep_is_refused(text: str) -> None:
    assert refusal(text).reason == "TooLarge"


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
