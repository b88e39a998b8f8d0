"""Fields that this host does not support."""

from __future__ import annotations

from typing import Any

import pytest
from tests.local.support import container_job, has

from muster.errors import InvalidSpec
from muster.local.environment import INTERPRETER_ANNOTATION, MAX_ARGUMENT_BYTES
from muster.local.job_checks import check_local_support

BASE = {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("container", "pod", "message"),
    [
        ({}, {"volumes": [{"name": "data"}]}, "spec.volumes: 'data': there are no volumes on this host"),
        ({"volumeMounts": [{"name": "data"}]}, {}, "containers[0].volumeMounts: there are no volumes"),
        ({}, {"initContainers": [{"name": "fetch"}]}, "spec.initContainers: 'fetch': init containers do not run"),
        ({}, {"containers": [{"command": ["true"]}] * 2}, "spec.containers: must be one"),
        (
            {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {}}}]},
            {},
            "env[0].valueFrom: 'T': there are no secrets",
        ),
        ({"env": [{"name": "A=B", "value": "c"}]}, {}, "env[0].name: must be a name without '='"),
        ({"env": [{"name": "", "value": "c"}]}, {}, "env[0].name: must be a name without '='"),
        ({"env": [{"name": "A", "value": "b\0c"}]}, {}, "env[0].value: must not contain the character NUL"),
        ({"command": ["true", "a\0b"]}, {}, "containers[0].command[1]: must not contain the character NUL"),
        ({"args": ["a\0b"]}, {}, "containers[0].args[0]: must not contain the character NUL"),
        (
            {"env": [{"name": "A", "value": "b" * MAX_ARGUMENT_BYTES}]},
            {},
            f"env[0].value: must have at most {MAX_ARGUMENT_BYTES} bytes",
        ),
        ({"args": ["a" * (MAX_ARGUMENT_BYTES + 1)]}, {}, "containers[0].args[0]: must have at most"),
        ({"envFrom": [{"secretRef": {}}]}, {}, "containers[0].envFrom: there are no secrets"),
        ({"lifecycle": {"preStop": {}}}, {}, "containers[0].lifecycle: hooks do not run"),
        ({"command": []}, {}, "containers[0].command: must not be empty"),
        ({"command": ["no-such-program"]}, {}, "command: program 'no-such-program' not found"),
        ({"command": ["/no/such/program"]}, {}, "command: program '/no/such/program' not found"),
        ({"workingDir": "/no/such/folder"}, {}, "workingDir: must be a folder on this host; got '/no/such/folder'"),
        ({"args": ["nowhere.py", "--out", "new.py"]}, {}, "args[0]: the script 'nowhere.py' does not exist in "),
    ],
)
def test_unsupported_fields_are_refused_by_name(container: dict[str, Any], pod: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        check_local_support(container_job(container, pod), BASE)
    assert message in str(refusal.value)
    assert refusal.value.field.startswith("spec.roles[0].template.spec.")


def test_priority_classes_are_refused() -> None:
    with pytest.raises(InvalidSpec, check=has("'high'", field="spec.priorityClassName")):
        check_local_support(container_job({}, priorityClassName="high"), BASE)


def test_fields_that_only_a_container_needs_are_ignored_with_a_notice() -> None:
    notices = check_local_support(
        container_job({"image": "torch:2.13", "readinessProbe": {"exec": {}}}, {"hostNetwork": True}), BASE
    )
    assert [notice.split(".")[-1] for notice in notices] == [
        f"{field} is ignored on this host" for field in ("hostNetwork", "image", "readinessProbe")
    ]


@pytest.mark.parametrize("value", ["/\0", "/" + "a" * MAX_ARGUMENT_BYTES])
def test_an_interpreter_with_which_no_process_can_start_is_refused(value: str) -> None:
    job = container_job({})
    job = job.model_copy(
        update={"metadata": job.metadata.model_copy(update={"annotations": {INTERPRETER_ANNOTATION: value}})}
    )
    field = f"metadata.annotations[{INTERPRETER_ANNOTATION}]"
    with pytest.raises(InvalidSpec, check=has("must ", field=field)):
        check_local_support(job, BASE)
