"""The dashboard in Chromium, of a real daemon: the numbers of `muster`, live, by keyboard, without JavaScript."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.browsing import PATHS, enter, many_jobs, press
from tests.dashboard.serving import ReadStateClient, serving
from tests.dashboard.traced_runs import collect, later
from tests.local.support import eventually, shell_job
from tests.state.observed_states import NOW, named
from tests.tracing.browser import PROGRAM, TIMEOUT_S, Browser, Tab, chromium, served_by_muster
from tests.tracing.run_folders import run_folder
from tests.visibility.states import leader, two_queues

from muster.api import spec
from muster.api.spec.job_status import LastFailure
from muster.dashboard.page import MAX_ROWS
from muster.local.client import LocalClient
from muster.model import Wait
from muster.visibility.state import ReadState
from muster.workload.conditions import explain_phase

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
]
UNTIL_STOPPED = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>\'"&'


def muster_dashboard(home: Path) -> AbstractContextManager[str]:
    """`muster dashboard`, ended by Ctrl-C; yields the address that it prints last."""
    return served_by_muster("dashboard", "--no-browser", MUSTER_HOME=str(home))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def client() -> Iterator[LocalClient]:
    """A daemon of two virtual nodes with a running job and two that wait in another queue."""
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as home:
        client = LocalClient.up(home, nodes="2x8")
        client.apply([_queue("company", None, 16), _queue("prod", "company", 8), _queue("research", "company", 0)])
        client.submit(shell_job("runs", UNTIL_STOPPED, gpus=8, replicas=2, queue="prod"))
        eventually(lambda: client.job("runs").status.phase == "Running")
        for name in ("first", "second"):
            client.submit(shell_job(name, UNTIL_STOPPED, gpus=8, queue="research"))
        eventually(lambda: sorted(job.status.queue_position or 0 for job in client.jobs()) == [0, 1, 2])
        try:
            yield client
        finally:
            client.down(force=True)


def _queue(name: str, parent: str | None, gpus: int) -> spec.Queue:
    resources = [{"flavor": "local", "guaranteed": {"nvidia.com/gpu": gpus}}]
    fields: dict[str, Any] = {"parent": parent, "namespaceSelector": {}, "resources": resources}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": fields})


def errors(browser: Browser, tab: Tab) -> list[str]:
    """What the page's console and its security policy complained about."""
    tab.value("1")  # all earlier events have arrived
    own = [event for event in browser.events if event.get("sessionId") == tab.session]
    entries = [event["params"]["entry"]["text"] for event in own if event["method"] == "Log.entryAdded"]
    return entries + [str(event["params"]) for event in own if event["method"] == "Runtime.exceptionThrown"]


def press_mouse(tab: Tab, kind: str, selector: str) -> None:
    """`mousePressed` or `mouseReleased` in the middle of an element."""
    box = tab.value(
        f"JSON.parse(JSON.stringify(document.querySelector({json.dumps(selector)}).getBoundingClientRect()))"
    )
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
    tab.call("Input.dispatchMouseEvent", type=kind, **at)


def cells(tab: Tab, selector: str) -> list[list[str]]:
    """The texts of the cells of table rows."""
    rows = f"[...document.querySelectorAll({json.dumps(selector)})]"
    found: list[list[str]] = json.loads(
        tab.value(f"JSON.stringify({rows}.map((row) => [...row.children].map((cell) => cell.innerText.trim())))")
    )
    return found


def test_queues_and_jobs_have_the_numbers_of_the_command_line(browser: Browser, client: LocalClient, url: str) -> None:
    tab = enter(browser, url)
    shown = {row[0]: row for row in cells(tab, "#queues tbody tr:first-child")}
    for queue in client.queues():
        row = shown.pop(queue["name"])
        assert row[1:3] == [str(queue["admitted"] or ""), str(queue["waiting"] or "")]
        if queue["name"] == "default":  # its only resource is pods
            continue
        (amounts,) = queue["resources"]
        gpus = [amounts[column].get("nvidia.com/gpu", "0") for column in ("used", "guaranteed", "borrowed")]
        assert row[3:4] + row[5:8] == ["gpu", *gpus[:2], gpus[2] if gpus[2] != "0" else ""]
    assert shown == {}
    tab = enter(browser, url, "/jobs")
    listed = {row[0]: row[1:3] for row in cells(tab, "#jobs tbody tr")}
    assert listed == {f"default/{job.metadata.name}": [job.spec.queue, job.status.phase] for job in client.jobs()}
    tab = enter(browser, url, "/pending")
    waiting = {row[1]: (row[0], row[4]) for row in cells(tab, "#queue-research tbody tr")}
    assert waiting == {
        f"default/{job.metadata.name}": (str(job.status.queue_position), " ".join(explain_phase(job.status)))
        for job in client.jobs()
        if job.status.phase == "Pending"
    }
    assert "Capacity is held by prod (16 gpu of local, 8 borrowed)" in tab.value("document.body.innerText")
    assert errors(browser, tab) == []


@pytest.mark.smoke
def test_a_change_is_shown_without_a_reload_and_the_focus_stays(
    browser: Browser, client: LocalClient, url: str
) -> None:
    tab = enter(browser, url, "/jobs")
    tab.value("window.loaded = 1; document.querySelector('#jobs a[href=\"/jobs?queue=research\"]').focus()")
    client.submit(shell_job("third", UNTIL_STOPPED, gpus=8, queue="research"))
    tab.wait_for("document.getElementById('jobs').innerText.includes('default/third')")
    assert tab.value("[window.loaded, document.activeElement.getAttribute('href')].join()") == "1,/jobs?queue=research"
    client.cancel("third")
    tab.wait_for("document.querySelector('#jobs .phase.Cancelled') !== null")
    client.delete_all([("TrainingJob", "third", "default")])
    tab.wait_for("!document.getElementById('jobs').innerText.includes('default/third')")
    assert tab.value("window.loaded") == 1
    assert errors(browser, tab) == []


def test_the_focus_stays_in_its_row_also_on_a_link_that_other_rows_have(browser: Browser) -> None:
    def state(*names: str) -> ReadState:
        return leader(two_queues(*(named(name) for name in names)))

    source = ReadStateClient(state=state("b", "c", "d"))
    with serving(source) as server:
        tab = enter(browser, server.url, "/jobs?sort=name")
        tab.value("[...document.querySelectorAll('#jobs a[href=\"/jobs?queue=default\"]')][1].focus()")
        source.state = state("a", "b", "c", "d")
        tab.wait_for("document.getElementById('jobs').innerText.includes('default/a')")
        assert tab.value("document.activeElement.closest('tr').querySelector('strong').textContent") == "c"
        assert tab.value("document.activeElement.getAttribute('href')") == "/jobs?queue=default"


def test_the_log_and_the_next_attempt_of_a_job_are_shown_as_they_come_and_the_earlier_one_can_be_chosen(
    browser: Browser, client: LocalClient, url: str, tmp_path: Path
) -> None:
    line = (
        "await() { while ! [ -e $1 ]; do sleep 0.05; done; }; "
        f"echo begin $MUSTER_ATTEMPT; await {tmp_path}/$MUSTER_ATTEMPT; echo later $MUSTER_ATTEMPT; "
        f"await {tmp_path}/fail; exit 1"
    )
    client.submit(shell_job("logs", line, failurePolicy={"maxRestarts": 1}))
    eventually(lambda: client.job("logs").status.phase == "Running")
    tab = enter(browser, url, "/jobs/default/logs")
    log = "(document.querySelector('#log .log')?.innerText.trim() ?? '')"
    tab.value("window.loaded = 1")
    tab.wait_for(f"{log} === 'begin 0'")
    (tmp_path / "0").touch()
    tab.wait_for(f"{log}.endsWith('later 0')")
    (tmp_path / "fail").touch()
    tab.wait_for(f"{log}.startsWith('begin 1')")
    tab.wait_for("document.getElementById('facts').innerText.includes('restarts 1')")
    assert tab.value("window.loaded") == 1
    tab.value("document.querySelector('select[name=attempt]').value = '0'")
    tab.click("#pod button")
    tab.wait_for(f"location.search.includes('attempt=0') && {log}.startsWith('begin 0')")
    (tmp_path / "1").touch()
    eventually(lambda: client.job("logs").status.phase == "Failed")
    client.delete_all([("TrainingJob", "logs", "default")])
    tab.close()


def test_every_page_is_reached_with_the_keyboard(browser: Browser, url: str) -> None:
    tab = enter(browser, url)
    press(tab, "Tab")
    assert tab.value("document.activeElement.className") == "skip"
    titles = []
    while tab.value("document.querySelector('nav a:last-child') !== document.activeElement"):
        press(tab, "Tab")
        titles.append(tab.value("document.activeElement.textContent"))
    assert titles == tab.value("[...document.querySelectorAll('header nav a')].map((one) => one.textContent)")
    press(tab, "Enter")
    tab.wait_for("location.pathname !== '/' && document.readyState === 'complete'")
    assert tab.value("document.querySelector('[aria-current=page]').textContent") == titles[-1]


def test_without_scripts_the_page_has_the_content_and_reloads_itself(
    browser: Browser, client: LocalClient, url: str
) -> None:
    tab = enter(browser, url, "/jobs")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.call("Page.reload")
    tab.wait_for("document.readyState === 'complete' && document.querySelector('#jobs tbody') !== null")
    client.submit(shell_job("fourth", UNTIL_STOPPED, gpus=8, queue="research"))
    tab.wait_for("document.getElementById('jobs')?.innerText.includes('default/fourth') === true")
    client.cancel("fourth")


@pytest.fixture(scope="module")
def url(client: LocalClient) -> Iterator[str]:
    with muster_dashboard(client._home.path) as url:
        yield url


def test_html_in_a_message_is_shown_as_text_and_runs_nothing(browser: Browser) -> None:
    with many_jobs(2, HOSTILE) as server:
        for path in ("/", "/pending", "/jobs"):
            tab = enter(browser, server.url, path)
            tab.wait_for("document.querySelector('#connection').textContent === ''")
            assert HOSTILE in tab.value("document.body.innerText")
            assert tab.value("window.hacked === undefined && document.querySelector('img') === null")
            assert errors(browser, tab) == []
            tab.close()


@pytest.mark.parametrize("path", ["/", "/pending", "/jobs", "/jobs/default/job-00001"])
def test_on_a_phone_every_reason_is_readable_without_scrolling_sideways(browser: Browser, path: str) -> None:
    right = "Array.from(document.querySelectorAll('td.message'), (one) => one.getBoundingClientRect().right)"
    with many_jobs(3) as server:
        tab = enter(browser, server.url, path, width=390)
        assert tab.value("document.querySelectorAll('td.message').length") > 0
        assert max(tab.value(right)) <= 390
        tab.close()


@pytest.mark.parametrize("path", PATHS)
def test_pages_fit_a_phone_in_both_colour_schemes(browser: Browser, path: str) -> None:
    papers = set()
    with many_jobs(3) as server:
        for dark in (False, True):
            tab = enter(browser, server.url, path, width=360, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            papers.add(tab.value("getComputedStyle(document.body).backgroundColor"))
            assert errors(browser, tab) == []
            tab.close()
    assert len(papers) == 2


def test_of_5000_jobs_a_page_has_a_bounded_part_and_the_way_to_the_others(browser: Browser) -> None:
    with many_jobs(5_000) as server:
        for path in ("/pending", "/jobs"):
            tab = enter(browser, server.url, path)
            assert len(cells(tab, "tbody tr")) == MAX_ROWS
            assert f"{5_000 - MAX_ROWS:,} more" in tab.value("document.body.innerText")
            tab.click("a[rel=next]")
            tab.wait_for(f"document.querySelector('tbody')?.innerText.includes('job-{2 * MAX_ROWS - 1:05}') === true")
            tab.close()


def test_of_the_jobs_of_a_daemon_pages_follow_each_other_and_a_new_job_is_shown_live(browser: Browser) -> None:
    count = 3 * MAX_ROWS  # and the first one: more than three pages
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as home:
        client = LocalClient.up(home, nodes="2x8")
        client.submit(shell_job("first", UNTIL_STOPPED, gpus=8, replicas=2))
        client.submit_all([shell_job(f"job-{n:04}", "true", gpus=8, replicas=2) for n in range(count)])
        try:
            with muster_dashboard(Path(home)) as url:
                tab = enter(browser, url, "/")
                tab.wait_for(f"document.getElementById('counts').textContent.includes('{count + 1}')")
                tab = enter(browser, url, "/jobs?sort=name")
                for page in range(3):
                    shown = [row[0] for row in cells(tab, "#jobs tbody tr")]
                    first = page * MAX_ROWS - 1
                    names = [f"default/job-{n:04}" for n in range(max(first, 0), first + MAX_ROWS)]
                    assert shown == ["default/first", *names][-MAX_ROWS:]
                    tab.click("a[rel=next]")
                    tab.wait_for(
                        f"document.querySelector('tbody')?.innerText.includes('{first + MAX_ROWS:04}') === true"
                    )
                tab = enter(browser, url, "/jobs?sort=created")
                client.submit(shell_job("newest", "true", gpus=8, replicas=2))
                tab.wait_for("document.querySelector('#jobs td').innerText === 'default/newest'")
        finally:
            client.down(force=True)


def test_html_in_the_log_of_a_job_is_shown_as_text_and_runs_nothing(
    browser: Browser, client: LocalClient, url: str, tmp_path: Path
) -> None:
    (tmp_path / "hostile").write_text(HOSTILE)
    client.submit(shell_job("hostile", f"cat {tmp_path}/hostile; exit 1", failurePolicy={"maxRestarts": 0}))
    eventually(lambda: client.job("hostile").status.phase == "Failed")
    tab = enter(browser, url, "/jobs/default/hostile")
    tab.wait_for(f"document.getElementById('log').innerText.includes({json.dumps(HOSTILE)})")
    assert tab.value("window.hacked === undefined && document.querySelector('img') === null")
    assert errors(browser, tab) == []
    client.delete_all([("TrainingJob", "hostile", "default")])
    tab.close()


def test_a_page_says_that_it_is_not_current_once_the_command_has_ended(browser: Browser) -> None:
    with many_jobs(1) as server:
        tab = enter(browser, server.url)
        tab.wait_for("events.readyState === EventSource.OPEN")
    tab.wait_for("document.getElementById('connection').textContent.startsWith('Not live')")


def test_a_link_that_is_being_pressed_is_replaced_only_after_the_click(browser: Browser) -> None:
    """Otherwise the button goes down on one element and up on another one, which is no click."""
    with many_jobs(1) as server:
        tab = enter(browser, server.url, "/pending")
        tab.wait_for("events?.readyState === EventSource.OPEN")
        press_mouse(tab, "mousePressed", "a[href^='/jobs/default/']")
        assert isinstance(server.pages._client, ReadStateClient)
        wait = Wait("job-00000", "QuotaExceeded", "needs 8 GPUs now", 1, NOW)
        server.pages._client.state = leader(two_queues(named("job-00000")), {"job-00000": wait})
        tab.wait_for("postponed !== null")
        press_mouse(tab, "mouseReleased", "a[href^='/jobs/default/']")
        tab.wait_for("location.pathname === '/jobs/default/job-00000'")


def test_a_part_with_selected_text_is_replaced_once_the_selection_ends(browser: Browser) -> None:
    with many_jobs(1) as server:
        tab = enter(browser, server.url, "/pending")
        tab.value("document.getSelection().selectAllChildren(document.querySelector('td.message'))")
        assert isinstance(server.pages._client, ReadStateClient)
        wait = Wait("job-00000", "QuotaExceeded", "needs 8 GPUs now", 1, NOW)
        server.pages._client.state = leader(two_queues(named("job-00000")), {"job-00000": wait})
        tab.wait_for("postponed !== null")
        assert "needs 16 GPUs" in tab.value("document.querySelector('td.message').innerText")
        tab.value("document.getSelection().removeAllRanges()")
        tab.wait_for("document.querySelector('td.message').innerText.includes('needs 8 GPUs now')")


def test_assets_are_small(browser: Browser) -> None:
    with many_jobs(1) as server:
        tab = enter(browser, server.url)
        assets = tab.value("performance.getEntriesByType('resource').map((one) => [one.name, one.decodedBodySize])")
    sizes = {re.sub(".*/", "", name): size for name, size in assets if "/static/" in name}
    assert sizes.keys() >= {"dashboard.css", "dashboard.js"}
    assert sum(sizes.values()) < 100_000


def test_a_report_that_is_being_built_is_shown_once_it_is(browser: Browser, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "runs" / "a", slow_rank=1)
    collect(run)
    source = ReadStateClient(run_root=run.parent, state=leader(two_queues(named("a"))))
    source.kept_jobs = {"a": named("a")}
    with serving(source, later) as server:
        tab = enter(browser, server.url, "/jobs/default/a/report")
        # Scripts cannot ask the report whether it is there: it is in a sandbox.
        eventually(lambda: any("Muster report" in page["title"] for page in browser.pages()), TIMEOUT_S)
        assert errors(browser, tab) == []


def test_the_last_line_of_a_failure_is_shown_and_stays_where_the_user_has_scrolled(browser: Browser) -> None:
    def state(message: str) -> ReadState:
        job = named("a")
        tail = "\n".join(f"line {number}" for number in range(200))
        failure = LastFailure.model_validate({"reason": message, "pod": "a-0", "logTail": tail})
        status = job.status.model_copy(update={"last_failure": failure})
        return leader(two_queues(job.model_copy(update={"status": status})))

    log = "document.querySelector('#state .log')"
    shown = f"{log}.getBoundingClientRect().bottom - {log}.querySelector('pre').getBoundingClientRect().bottom"
    source = ReadStateClient(state=state("ExitCode"))
    with serving(source) as server:
        tab = enter(browser, server.url, "/jobs/default/a")
        assert tab.value(f"{log}.scrollHeight > {log}.clientHeight")
        assert tab.value(f"{shown} >= 0"), "the end is visible"
        tab.value(f"{log}.scrollTop = -300")
        source.state = state("Another")
        tab.wait_for("document.getElementById('state').innerText.includes('Another')")
        assert tab.value(f"{log}.scrollTop") == -300
        assert errors(browser, tab) == []
