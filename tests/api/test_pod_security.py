"""Pod templates against the Pod Security Standards. tests/cluster/test_pod_security.py compares with the API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.objects import job, queue, refused
from tests.api.pod_security_templates import ALLOWED, BOTH, FIRST, RESTRICTED, UNSET, template

from muster.api.pod_security import NO_VIOLATIONS, pod_security_violations
from muster.api.spec import Queue, TrainingJob
from muster.api.validation import nearest_pod_security
from muster.kinds.trainingjob.submit import check_pod_security

Json = dict[str, Any]


@pytest.mark.parametrize(("bad", "field"), BOTH.values(), ids=BOTH)
def test_what_baseline_forbids_is_named_by_its_field(bad: Json, field: str) -> None:
    found = pod_security_violations(bad)
    assert found.baseline.startswith(field)
    assert found.restricted.startswith(field)
    assert not found.at("privileged")


@pytest.mark.parametrize(("bad", "field"), RESTRICTED.values(), ids=RESTRICTED)
def test_what_restricted_forbids_is_named_by_its_field(bad: Json, field: str) -> None:
    found = pod_security_violations(bad)
    assert found.restricted.startswith(field)
    assert not found.baseline


@pytest.mark.parametrize("good", ALLOWED.values(), ids=ALLOWED)
def test_a_hardened_template_passes(good: Json) -> None:
    assert pod_security_violations(good) is NO_VIOLATIONS


def test_all_fields_of_a_template_without_settings_are_named_and_many_are_counted() -> None:
    named = [sentence.split()[0].rpartition("securityContext.")[2] for sentence in
             pod_security_violations(UNSET).restricted.split("; ")]  # fmt: skip
    assert named == ["allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile.type", "capabilities.drop"]
    many = template(volumes=[{"name": f"v{at}", "hostPath": {"path": "/"}} for at in range(9)])
    assert pod_security_violations(many).baseline.endswith("; and 3 more")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from(["", "ALL", "Unconfined"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "metadata",
                    "annotations",
                    "containers",
                    "initContainers",
                    "volumes",
                    "hostPath",
                    "securityContext",
                    "capabilities",
                    "add",
                    "drop",
                    "seccompProfile",
                    "type",
                    "seLinuxOptions",
                    "user",
                    "sysctls",
                    "name",
                    "ports",
                    "hostPort",
                    "lifecycle",
                    "preStop",
                    "httpGet",
                    "host",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["spec", "metadata"]), VALUES))
def test_a_template_of_any_form_is_checked_without_an_error(anything: Json) -> None:
    found = pod_security_violations(anything)
    assert bool(found.restricted) >= bool(found.baseline)


def tree(**levels: str | None) -> list[Queue]:
    """A queue for each level, each below the one before it."""
    names = list(levels)
    parents = [None, *names]
    return [
        queue(name, above, **({} if level is None else {"podSecurity": level}))
        for (name, level), above in zip(levels.items(), parents, strict=False)
    ]


def test_a_queue_has_the_level_of_the_nearest_queue_above_it_that_sets_one() -> None:
    queues = {one.metadata.name: one for one in tree(root="restricted", team=None, legacy="privileged", leaf=None)}
    assert [nearest_pod_security(name, queues) for name in queues] == [
        "restricted", "restricted", "privileged", "privileged",
    ]  # fmt: skip
    (unset,) = tree(a=None)
    assert nearest_pod_security("a", {"a": unset}) is None


def of_template(pod: Json, in_queue: str) -> TrainingJob:
    wanted = job(queue=in_queue).model_dump(mode="json", by_alias=True, exclude_unset=True)
    wanted["spec"]["roles"][0]["template"] = pod
    return TrainingJob.model_validate(wanted)


def test_a_template_that_the_queue_forbids_is_refused_at_submit_by_field() -> None:
    queues = tree(root="restricted", team=None)
    message = refused("PodRejected", check_pod_security, of_template(UNSET, "team"), queues)
    assert message.startswith(
        "spec.roles[0].template: podSecurity of queue team is restricted: "
        f"{FIRST}.securityContext.allowPrivilegeEscalation must be false; "
    )
    check_pod_security(of_template(template(), "team"), queues)
    check_pod_security(of_template(UNSET, "a"), tree(a=None))
    check_pod_security(of_template(UNSET, "a"), tree(a="baseline"))
