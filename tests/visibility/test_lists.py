"""Lists of the read API: pages, selectors, and namespaces that a client may not read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.state.observed_states import admitted, named
from tests.visibility.states import batch_job, failed, in_namespace, in_state, leader, names, read, two_queues

from muster.api.spec import TrainingJob
from muster.errors import InvalidSpec, NotFound
from muster.model import Wait
from muster.visibility import lists
from muster.visibility.list_types import JobSummaryList, QueueSummaryList
from muster.visibility.reader import read_list
from muster.visibility.requests import decode_token, encode_token, parse_request
from muster.visibility.types import BASE_PATH


@given(st.sets(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from("uvwxyz")), max_size=12), st.integers(1, 5))
def test_the_pages_have_every_job_once_in_order(jobs: set[tuple[str, str]], limit: int) -> None:
    state = leader(two_queues(*(in_namespace(named(name), space) for space, name in jobs)))
    seen: list[tuple[str, str]] = []
    query = f"limit={limit}"
    while True:
        page = read(state, f"jobs?{query}")
        seen += [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page["items"]]
        assert len(page["items"]) <= limit
        assert page["metadata"]["remainingItemCount"] == len(jobs) - len(seen)
        if not page["metadata"]["continue"]:
            break
        query = f"limit={limit}&continue={page['metadata']['continue']}"
    assert seen == sorted(jobs)


def test_a_job_that_is_deleted_between_two_pages_hides_no_other() -> None:
    before = leader(two_queues(*(named(name) for name in "abcd")))
    after = leader(two_queues(*(named(name) for name in "acd")))
    token = read(before, "jobs?limit=2")["metadata"]["continue"]
    assert names(read(after, f"jobs?limit=2&continue={token}")) == ["c", "d"]


def test_a_page_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_PAGE_BYTES", 1)
    page = read(leader(two_queues(*(named(name) for name in "abc"))), "jobs")
    assert (names(page), page["metadata"]["remainingItemCount"]) == (["a"], 2)


@pytest.mark.parametrize("plural", ["jobs", "pendingjobs"])
def test_jobs_of_namespaces_that_the_client_may_not_read_are_left_out(plural: str) -> None:
    state = leader(two_queues(in_namespace(named("a"), "mine"), in_namespace(named("b"), "theirs")))

    def mine(namespace: str) -> bool:
        return namespace == "mine"

    assert names(read(state, plural, mine)) == ["a"]
    assert names(read(state, f"namespaces/theirs/{plural}", mine)) == []
    with pytest.raises(NotFound, match="does not exist"):
        read(state, f"namespaces/theirs/{plural}/b", mine)
    # Sums of queues contain them: they say how much is left for others.
    assert read(state, "queues", mine)["items"][0]["pending"] == 2


def test_selectors_select_by_queue_and_phase() -> None:
    state = leader(two_queues(admitted("a"), named("b"), named("c", queue="other")))
    assert names(read(state, "jobs?fieldSelector=queue%3Ddefault")) == ["a", "b"]
    assert names(read(state, "jobs?fieldSelector=queue%3D%3Ddefault,phase%3DPending")) == ["b"]
    assert names(read(state, "pendingjobs?fieldSelector=queue%3Dother")) == ["c"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("continue=%%%", "continue"),
        ("continue=e30=", "continue"),
        ("fieldSelector=spec.queue%3Da", "fieldSelector"),
        ("fieldSelector=queue!%3Da", "fieldSelector"),
        ("labelSelector=a%3Db", "labelSelector"),
        ("watch=true", "watch"),
        ("name=a", "name"),
        ("fieldSelector=" + "a" * 5000, "query"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(query: str, field: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{field}: ") as refused:
        parse_request(f"{BASE_PATH}/jobs?{query}")
    assert (refused.value.field, refused.value.reason) == (field, "BadRequest")


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("name", (-1.5, "uid")),
        ("name", ("a",)),
        ("created", ("a", "b")),
        ("created", (0.0, -1.5, "a", "b")),
        ("state", (-1.5, "a", "b")),
    ],
)
def test_a_token_of_another_list_or_order_is_refused(sort: str, key: tuple[str | float, ...]) -> None:
    with pytest.raises(InvalidSpec, match=r"^continue: .* of a list of jobs with the same sort"):
        read(leader(two_queues(named("a"))), f"jobs?sort={sort}&continue={encode_token(key)}")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON_VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2)


@given(JSON_VALUES | st.lists(st.text() | st.floats()))
@example(1.5)
@example("a")
@example({"a": "b"})
@example(["a", 1])
@example(["a", True])
@example(["a", None])
@example(["a", []])
@example(["a", {}])
def test_a_token_of_any_json_value_is_a_key_exactly_if_it_is_a_list_of_texts_and_floats(value: Any) -> None:
    token = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    if isinstance(value, list) and all(type(part) in (str, float) for part in value):
        assert repr(decode_token(token)) == repr(tuple(value))  # by text: NaN is not equal to itself
    else:
        with pytest.raises(InvalidSpec, match=r"^continue: must be the value of an earlier page"):
            decode_token(token)


@given(st.text(max_size=30) | st.binary(max_size=30).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_text_that_is_no_json_as_a_token_is_refused(text: str) -> None:
    assume(not _is_json(text))
    with pytest.raises(InvalidSpec, match=r"^continue: must be the value of an earlier page"):
        decode_token(text)


def _is_json(token: str) -> bool:
    try:
        json.loads(base64.urlsafe_b64decode(token.encode()))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "route", ["", "pods", "jobs/a", "jobs/a/b/c", "namespaces/x/queues", "namespaces/x/jobs/a/log", "preemptions/a"]
)
def test_other_routes_do_not_exist(route: str) -> None:
    with pytest.raises(NotFound, match="resources: queues, nodes, jobs, curves, pendingjobs, preemptions"):
        parse_request(f"{BASE_PATH}/{route}")


def test_a_reader_gets_all_pages() -> None:
    state = leader(two_queues(*(named(name) for name in "abcde")))
    requested: list[str] = []

    def get(url: str) -> Any:
        requested.append(url)
        joint = "&" if "?" in url else "?"
        return read(state, f"{url.removeprefix(BASE_PATH + '/')}{joint}limit=2")

    found = read_list(get, "jobs", JobSummaryList, parameters={"fieldSelector": "phase=Pending"})
    assert [job.metadata.name for job in found.items] == list("abcde")
    assert (len(requested), found.source.cycle) == (3, "t-7")
    assert _names(get) == ["root", "default"]


def _names(get: Callable[[str], Any]) -> list[str]:
    return [queue.metadata.name for queue in read_list(get, "queues", QueueSummaryList).items]


def test_jobs_are_sorted_by_name_age_or_state_on_all_pages() -> None:
    def created(job: TrainingJob, at: float) -> TrainingJob:
        return job.model_copy(update={"metadata": job.metadata.model_copy(update={"creation_timestamp": at})})

    jobs = [created(named("a"), 1.0), created(admitted("b"), 2.0), created(named("c"), 3.0), created(named("d"), 3.0)]
    state = leader(two_queues(*jobs))

    def pages(sort: str) -> list[str]:
        found, after = [], ""
        while True:
            page = read(state, f"jobs?limit=1&sort={sort}{after}")
            found += names(page)
            if not page["metadata"].get("continue"):
                return found
            after = f"&continue={page['metadata']['continue']}"

    assert [pages(sort) for sort in ("", "name", "created", "state")] == [
        ["a", "b", "c", "d"], ["a", "b", "c", "d"], ["c", "d", "b", "a"], ["b", "c", "d", "a"],
    ]  # fmt: skip
    with pytest.raises(InvalidSpec, match="sort: must be one of name, created, state, recent, start; got 'age'"):
        read(state, "jobs?sort=age")


def test_jobs_with_nodes_come_before_those_that_ended_last_and_others() -> None:
    jobs = [
        *(in_state(admitted(name), phase="Succeeded", finished_at=at) for name, at in (("a", 1.0), ("b", 3.0))),
        *(in_state(named(name), estimated_start=at) for name, at in (("c", None), ("d", 9.0), ("e", 5.0))),
        admitted("f"),
        failed("g", ""),  # its last process has not ended yet
    ]
    state = leader(two_queues(*jobs), {"d": Wait("d", "QuotaExceeded", "", 1, 4.0)})
    assert names(read(state, "jobs?sort=recent")) == ["f", "g", "b", "a", "c", "d", "e"]
    assert names(read(state, "jobs?sort=start&fieldSelector=phase%3DPending")) == ["d", "e", "c"]
    page = read(state, "jobs?sort=recent&limit=3")
    assert names(read(state, f"jobs?sort=recent&continue={page['metadata']['continue']}")) == ["a", "c", "d", "e"]


def test_pending_jobs_are_sorted_by_position_those_without_one_last() -> None:
    waits = {name: Wait(name, "QuotaExceeded", "", position) for name, position in (("a", 3), ("b", 1), ("d", 2))}
    state = leader(two_queues(*map(named, "abcd"), admitted("e")), waits)
    assert names(read(state, "pendingjobs")) == ["a", "b", "c", "d"]
    page = read(state, "pendingjobs?sort=position&limit=2")
    assert names(page) == ["b", "d"]
    token = page["metadata"]["continue"]
    assert names(read(state, f"pendingjobs?sort=position&continue={token}")) == ["a", "c"]
    with pytest.raises(InvalidSpec, match="continue: must be of a list of pendingjobs with the same sort"):
        read(state, f"pendingjobs?continue={token}")
    with pytest.raises(InvalidSpec, match="sort: must be one of name, position; got 'state'"):
        read(state, "pendingjobs?sort=state")


def test_objects_of_other_kinds_are_listed_with_jobs_also_of_the_same_name() -> None:
    observed = two_queues(named("a"), named("b"))
    both = leader(replace(observed, workloads=(*observed.workloads, batch_job("b", priority=3))))
    page = read(both, "jobs?limit=2")
    rest = read(both, f"jobs?limit=2&continue={page['metadata']['continue']}")
    found = [(item["metadata"]["name"], item["objectKind"]) for item in (*page["items"], *rest["items"])]
    assert found == [("a", "TrainingJob"), ("b", "Job"), ("b", "TrainingJob")]
    waiting = read(both, "pendingjobs?fieldSelector=queue%3Ddefault")["items"]
    assert [one["priority"] for one in waiting if one["objectKind"] == "Job"] == [3]
    assert read(both, "namespaces/default/jobs/b")["objectKind"] == "TrainingJob"
    alone = leader(replace(observed, workloads=(batch_job("b"),)))
    one = read(alone, "namespaces/default/jobs/b")
    assert (one["objectKind"], one["maxPods"], one["phase"]) == ("Job", 2, "Pending")
