"""Live updates: what changed is sent to all browsers, what did not change to none, and the cluster is asked once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.dashboard.serving import ReadStateClient, cookie, events, get, request, serving
from tests.engine.objects import nodes, queue
from tests.state.observed_states import NOW, admitted, named, observed_state
from tests.tracing.run_folders import metrics_line, run_folder
from tests.visibility.states import leader, two_queues

from muster.dashboard.live import MAX_VIEWERS, PERIOD_S, LiveUpdates, TooManyViewers
from muster.dashboard.reader import MAX_AGE_S, PageReader
from muster.dashboard.render import without_ages
from muster.errors import ClusterError
from muster.model import Wait
from muster.tracing.collect.spool_collector import CollectorOptions, start_collector
from muster.visibility.list_types import JobSummaryList, QueueSummaryList
from muster.visibility.state import ReadState
from muster.visibility.types import ItemMeta, Preemption
from muster.workload.observed import ObservedState


class Rounds(LiveUpdates):
    """Live updates whose rounds the test runs, of pages whose content it sets."""

    def __init__(self) -> None:
        self.contents: dict[str, str] = {}
        self.rendered: list[str] = []
        super().__init__(self._content)

    def _content(self, target: str) -> str:
        self.rendered.append(target)
        return self.contents[target]

    def round(self) -> None:
        self._send_changes()


def test_each_page_is_rendered_once_a_round_for_all_who_see_it_and_sent_only_if_it_changed() -> None:
    updates = Rounds()
    updates.contents = {"/": "a", "/jobs": "x"}
    with updates.viewer("/") as first, updates.viewer("/") as second, updates.viewer("/jobs") as other:
        updates.round()
        assert updates.rendered == ["/", "/jobs"]
        assert [viewer.wait(0) for viewer in (first, second, other)] == ["a", "a", "x"]
        updates.round()
        assert [viewer.wait(0) for viewer in (first, second, other)] == [None, None, None]
        updates.contents["/"] = "b"
        updates.round()
        assert [viewer.wait(0) for viewer in (first, second, other)] == ["b", "b", None]
    updates.rendered.clear()
    updates.round()
    assert updates.rendered == []


def test_a_time_that_passes_is_no_change() -> None:
    updates = Rounds()
    time = '<p><time datetime="{}" data-form="relative">{}</time></p>'
    updates.contents = {"/": time.format("1970-01-01T00:00:00Z", "3s ago")}
    with updates.viewer("/") as viewer:
        updates.round()
        assert viewer.wait(0) is not None
        updates.contents["/"] = time.format("1970-01-01T00:00:00Z", "4s ago")
        updates.round()
        assert viewer.wait(0) is None
        updates.contents["/"] = time.format("1970-01-01T00:00:02Z", "2s ago")
        updates.round()
        assert viewer.wait(0) is not None


def test_who_comes_later_gets_the_present_content_and_a_slow_browser_only_the_newest() -> None:
    updates = Rounds()
    updates.contents = {"/": "a"}
    with updates.viewer("/") as slow:
        updates.round()
        updates.contents["/"] = "b"
        updates.round()
        assert slow.wait(0) == "b"
        with updates.viewer("/") as late:
            updates.round()
            assert late.wait(0) == "b"


def test_the_number_of_pages_that_are_kept_current_is_bounded() -> None:
    updates = Rounds()
    with ExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            stack.enter_context(updates.viewer("/"))
        with pytest.raises(TooManyViewers), updates.viewer("/"):
            pass
    with updates.viewer("/"):
        pass


def test_a_browser_above_the_bound_gets_503_and_when_to_ask_again() -> None:
    with serving(ReadStateClient(state=leader(two_queues()))) as server, ExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            stack.enter_context(server.updates.viewer("/"))
        found = request(server, "/events/", Cookie=cookie(server))
        assert (found.status, found.headers["retry-after"]) == (503, "10")


def test_a_page_gets_a_new_reason_and_then_the_error_of_the_cluster_and_then_recovers() -> None:
    def waits(message: str) -> dict[str, Wait]:
        return {"b": Wait("b", "QuotaExceeded", message, 1, NOW + 60)}

    client = ReadStateClient(state=leader(two_queues(named("b")), waits("needs 16 GPUs")))
    with serving(client) as server, events(server, "/pending?queue=default") as contents:
        assert "needs 16 GPUs" in next(contents)
        client.state = leader(two_queues(named("b")), waits("needs <8> GPUs"))
        await_text(contents, "needs &lt;8&gt; GPUs")
        client.error = ClusterError("no operator answers")
        await_text(contents, "no operator answers")
        client.error = None
        await_text(contents, "needs &lt;8&gt; GPUs")


def await_text(contents: Iterator[str], text: str) -> None:
    """Returns at the first content with the text. One before may be of a round that began before the change."""
    assert any(text in content for content in contents)


def test_a_bug_in_a_page_is_shown_on_it_and_live_updates_continue() -> None:
    client = ReadStateClient(state=leader(two_queues(named("b"))))
    with serving(client) as server, events(server, "/jobs") as contents:
        assert "<strong>b</strong>" in without_links(next(contents))
        client.error = RuntimeError("a <bug>")
        assert "this is a bug in Muster: RuntimeError: a &lt;bug&gt;" in next(contents)
        assert get(server, "/jobs").status == 500
        client.error = None
        assert "<strong>b</strong>" in without_links(next(contents))


def without_links(page: str) -> str:
    return re.sub("</?a[^>]*>", "", page)


def test_the_content_sent_is_that_of_the_page() -> None:
    client = ReadStateClient(state=leader(two_queues(*map(named, "abc"))))
    with serving(client) as server:
        for target in ("/", "/jobs?phase=Pending", "/pending", "/nodes", "/preemptions"):
            page = get(server, target).text
            (address,) = re.findall(r'data-events="([^"]*)"', page)
            with events(server, address.removeprefix("/events")) as contents:
                ids = re.findall(r'<section id="([^"]*)"', next(contents))
            assert ids
            assert ids == re.findall(r'<section id="([^"]*)"', page)


def many_nodes(count: int) -> ObservedState:
    return observed_state(admitted("a"), nodes=tuple(nodes(count)), queues=(queue("root"), queue(parent="root")))


def evicted(count: int) -> ReadState:
    names = [ItemMeta(name=f"p{number}", namespace="default", uid=f"p{number}") for number in range(count)]
    found = [Preemption(metadata=name, queue="default", reason="Reclaimed", message="", at=NOW) for name in names]
    return leader(two_queues(), preemptions=tuple(found))


CHANGES: list[tuple[str, Callable[[int], ReadState]]] = [
    ("/", lambda number: leader(two_queues(*map(named, "abc"[:number])))),
    ("/pending", lambda number: leader(two_queues(*map(named, "abc"[:number])))),
    ("/jobs", lambda number: leader(two_queues(*map(named, "abc"[:number])))),
    ("/timeline", lambda number: leader(two_queues(*map(admitted, "abc"[:number])))),
    ("/nodes", lambda number: leader(many_nodes(number))),
    ("/nodes/n0", lambda number: leader(two_queues(*[admitted("a")] * (number - 1)))),
    ("/preemptions", evicted),
]


@pytest.mark.parametrize(("target", "state"), CHANGES, ids=[target for target, _ in CHANGES])
def test_a_change_is_on_the_page_two_seconds_after_it_at_the_latest(
    target: str, state: Callable[[int], ReadState]
) -> None:
    """Rounds begin a period apart, so at the latest one that begins `2 - PERIOD_S` after the change must have it. What
    was read just before the change is kept meanwhile, for all pages."""
    client, now = ReadStateClient(state=state(1)), [0.0]
    with serving(client, lambda: NOW) as server:
        assert server.updates._period_s == PERIOD_S
        server.pages.reader._clock = lambda: now[0]
        before = server.pages.live_content(target)
        client.state = state(2)
        now[0] += 2.0 - PERIOD_S
        assert without_ages(server.pages.live_content(target)) != without_ages(before)


def test_log_events_loss_and_traces_of_a_job_are_on_its_page_two_seconds_later_at_the_latest(tmp_path: Path) -> None:
    job, now = admitted("a"), [0.0]
    client = ReadStateClient(run_root=tmp_path, state=leader(two_queues(job)), kept_jobs={"a": job})
    run_folder(tmp_path / "a", steps=10)
    with serving(client, lambda: NOW) as server:
        server.pages.reader._clock = lambda: now[0]
        server.pages.live_content("/jobs/default/a")
        client.logs = {("trainer", 0): ["a new line"]}
        client.kept_events = [{"at": NOW, "type": "Normal", "reason": "NewEvent", "message": "", "count": 1}]
        with (tmp_path / "a" / "metrics" / "rank-0.jsonl").open("a") as metrics:
            metrics.write(metrics_line(1234))
        assert start_collector(CollectorOptions(tmp_path / "a", "trainer", 0), NOW).collect_finished(NOW)
        now[0] += 2.0 - PERIOD_S
        content = server.pages.live_content("/jobs/default/a")
    assert [text in content for text in ("a new line", "NewEvent", "<dd>1,234", "20 to 22")] == [True] * 4


def test_connections_end_with_the_server() -> None:
    with ExitStack() as stack:
        with serving(ReadStateClient(state=leader(two_queues()))) as server:
            contents = stack.enter_context(events(server, "/"))
            next(contents)
        assert list(contents) == []


def test_what_several_pages_ask_within_a_second_is_read_once_and_then_anew() -> None:
    client = ReadStateClient(state=leader(two_queues(named("b"))))
    now = [0.0]
    reader = PageReader(client.read, lambda: now[0])
    for _ in range(2):
        reader.page(JobSummaryList, limit=1)
        reader.all(QueueSummaryList)
    assert len(client.urls) == 2
    now[0] += MAX_AGE_S
    reader.page(JobSummaryList, limit=1)
    assert len(client.urls) == 3
    assert len(reader._answers) == 1


def test_threads_that_ask_at_the_same_time_wait_for_one_request() -> None:
    client = ReadStateClient(state=leader(two_queues(named("b"))))
    requested, go = threading.Event(), threading.Event()

    def slow(url: str) -> object:
        requested.set()
        assert go.wait(60)
        return client.read(url)

    reader = PageReader(slow, lambda: 0.0)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(reader.page(JobSummaryList, limit=1).items))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert requested.wait(60)
    go.set()
    for thread in threads:
        thread.join()
    assert (found, len(client.urls)) == ([1] * 5, 1)


def test_an_error_is_raised_to_all_who_asked_and_not_kept_longer_than_an_answer() -> None:
    client = ReadStateClient(state=leader(two_queues()), error=ClusterError("away"))
    now = [0.0]
    reader = PageReader(client.read, lambda: now[0])
    for _ in range(2):
        with pytest.raises(ClusterError, match="away"):
            reader.page(JobSummaryList, limit=1)
    assert len(client.urls) == 1
    client.error = None
    now[0] += MAX_AGE_S
    assert reader.page(JobSummaryList, limit=1).items == []


def test_a_slow_result_of_another_source_is_kept_for_ten_times_as_long_as_it_took() -> None:
    now, reads = [100.0], []

    def read() -> int:
        reads.append(now[0])
        now[0] += 2.0
        return len(reads)

    reader = PageReader(lambda url: None, lambda: now[0])
    assert reader.remember("curves", read, 1.5) == 1
    now[0] = 121.9
    assert reader.remember("curves", read, 1.5) == 1
    now[0] = 122.0
    assert reader.remember("curves", read, 1.5) == 2


def test_the_error_of_a_slow_read_is_not_kept_once_the_read_works() -> None:
    now, reads = [0.0], []

    def read() -> str:
        reads.append(now[0])
        if len(reads) == 1:
            now[0] += 60.0
            raise ClusterError("the API server does not answer", reason="Unreachable")
        return "alice"

    reader = PageReader(lambda url: None, lambda: now[0])
    with pytest.raises(ClusterError, match="does not answer"):
        reader.remember("user name", read, 5.0)
    assert reader.remember("user name", read, 5.0) == "alice"


def test_a_page_names_the_process_that_answered_it_whatever_other_pages_read_meanwhile() -> None:
    client = ReadStateClient(state=leader(two_queues(named("b"))))
    reader = PageReader(client.read, lambda: 0.0)
    first, second = reader.for_one_page(), reader.for_one_page()
    first.page(JobSummaryList, limit=1)
    assert [first.source is None, second.source is None] == [False, True]
    second.page(JobSummaryList, limit=1)
    assert (second.source, len(client.urls)) == (first.source, 1)
