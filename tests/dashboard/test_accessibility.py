"""The pages of the dashboard in Chromium: contrast, keyboard, and the same content without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.cli.memory import usage_listing, used
from tests.dashboard.browsing import PATHS, choose, enter, many_jobs, press
from tests.dashboard.serving import ReadStateClient, serving
from tests.engine.objects import nodes
from tests.state.observed_states import NOW, named
from tests.tracing.browser import PROGRAM, Browser, chromium
from tests.visibility.states import failed, leader, two_queues

from muster.model import RolePlacement, Wait
from muster.visibility.state import ReadState
from muster.visibility.types import ItemMeta, Preemption
from muster.workload import transitions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def varied() -> ReadState:
    """Nodes in all states and with all shares of their GPUs used, and a job in each phase."""
    hosts = [*nodes(8)]
    hosts[5], hosts[6] = replace(hosts[5], ready=False), replace(hosts[6], cordoned=True)
    jobs = []
    for number, (phase, gpus) in enumerate(
        [("Running", 1), ("Admitted", 4), ("Terminating", 6), ("Running", 8), ("Succeeded", 8), ("Failed", 8)]
    ):
        job = named(f"{phase.lower()}-{number}", pods=1, gpus=gpus)
        status = transitions.admit(job.status, (RolePlacement("trainer", "any", ((f"n{number + 1}", 1),)),), NOW - 900)
        finished = {"finished_at": NOW - 60} if phase in ("Succeeded", "Failed") else {}
        jobs.append(job.model_copy(update={"status": status.model_copy(update={"phase": phase, **finished})}))
    jobs += [
        job.model_copy(update={"status": job.status.model_copy(update={"phase": phase})})
        for phase, job in (("Suspended", named("suspended")), ("Cancelled", named("cancelled")))
    ]
    observed = replace(two_queues(*jobs, named("waits"), failed("job", "RuntimeError")), nodes=tuple(hosts))
    found = Preemption(
        metadata=ItemMeta(name="waits", namespace="default", uid="p"),
        queue="default", reason="Reclaimed", message="for default/other", at=NOW - 60,
    )  # fmt: skip
    return leader(observed, {"waits": Wait("waits", "QuotaExceeded", "needs", 1, NOW + 600)}, preemptions=(found,))


CONTRASTS = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const paper = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = channels(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    const isShown = element.getClientRects().length && !element.closest("title, noscript");
    if (!walker.currentNode.data.trim() || !isShown) continue;
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ink = light(channels(element.closest("svg") ? style.fill : style.color)), ground = light(paper(element));
    const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) poor.push(`${contrast.toFixed(2)} ${walker.currentNode.data.trim()}`);
  }
  return poor;
})()"""
VARIED = [*PATHS[:3], "/jobs/default/job", *PATHS[4:]]


@pytest.mark.parametrize("path", VARIED)
def test_text_has_the_contrast_of_wcag_aa_in_both_colour_schemes(browser: Browser, path: str) -> None:
    client = ReadStateClient(state=varied())
    client.kept_usage = usage_listing([used("red", 0, 8, 4)])
    with serving(client, lambda: NOW) as server:
        for dark in (False, True):
            tab = enter(browser, server.url, path, dark=dark)
            assert tab.value(CONTRASTS) == []
            tab.close()


@pytest.mark.parametrize("path", VARIED)
def test_every_control_is_reached_with_the_keyboard_and_shows_the_focus(browser: Browser, path: str) -> None:
    controls = 'a[href], button, input:not([type="hidden"]), select, summary, [tabindex="0"]'
    with serving(ReadStateClient(state=varied()), lambda: NOW) as server:
        tab = enter(browser, server.url, path)
        # Asked for anew each time: the first event of the stream may replace them.
        found = f"[...document.querySelectorAll({json.dumps(controls)})]"
        count = tab.value(f"{found}.length")
        reached = []
        for _ in range(count):
            press(tab, "Tab")
            reached.append(tab.value(f"{found}.indexOf(document.activeElement)"))
            assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert sorted(reached) == list(range(count))
        tab.close()


def test_a_list_is_selected_with_the_keyboard_alone(browser: Browser) -> None:
    with many_jobs(3) as server:
        tab = enter(browser, server.url, "/jobs")
        while tab.value("document.activeElement.name !== 'phase'"):
            press(tab, "Tab")
        choose(tab, "F")
        while tab.value("document.activeElement.tagName !== 'BUTTON'"):
            press(tab, "Tab")
        press(tab, "Enter")
        tab.wait_for("location.search.includes('phase=Failed') && document.getElementById('jobs') !== null")
        assert "No jobs match" in tab.value("document.getElementById('jobs').innerText")


@pytest.mark.parametrize("path", VARIED)
def test_without_scripts_a_page_has_the_same_content(browser: Browser, path: str) -> None:
    texts = """[...live.querySelectorAll("h1, h2, p, td, th, dt, dd, li, option, svg title")].map((one) => {
      const copy = one.cloneNode(true);
      copy.querySelectorAll("time").forEach((time) => time.remove());
      return copy.textContent.trim();
    })"""  # `live` is the element of that id
    with serving(ReadStateClient(state=varied()), lambda: NOW) as server:
        tab = enter(browser, server.url, path)
        tab.wait_for("events?.readyState === EventSource.OPEN")
        live = tab.value(texts)
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.reload")
        tab.wait_for("document.readyState === 'complete' && document.getElementById('live') !== null")
        assert tab.value("document.getElementById('live').dataset.events !== undefined")
        assert tab.value(texts) == live
        assert len(live) > 3
        tab.close()


def test_without_scripts_a_list_is_selected(browser: Browser) -> None:
    with many_jobs(3) as server:
        tab = enter(browser, server.url, "/pending")
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.reload")
        tab.wait_for("document.readyState === 'complete' && document.querySelector('#filters select') !== null")
        tab.value("document.querySelector('#filters select').value = 'default'")
        tab.click("#filters button")
        tab.wait_for("location.search === '?queue=default' && document.getElementById('queue-default') !== null")
