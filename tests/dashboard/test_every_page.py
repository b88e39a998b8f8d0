"""What holds for each page: names are text, one script and nothing of other servers, no environment, a bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from tests.cli.memory import usage_listing
from tests.dashboard.serving import ReadStateClient, get, serving
from tests.engine.objects import flavor, nodes, queue
from tests.state.observed_states import NOW, admitted, named, observed_state
from tests.visibility.states import leader, two_queues

from muster.api import spec
from muster.dashboard.server import DashboardServer
from muster.kinds.trainingjob.adapter import training_jobs
from muster.model import RolePlacement, Wait
from muster.visibility.types import ItemMeta, Preemption, UsageSummary
from muster.workload import transitions

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b]0;x\x07\u202e"
SECRET = "hf_a-secret-of-the-job"
IN_PATH = quote(HOSTILE, safe="")
PAGES = [
    "/",
    "/pending",
    "/jobs",
    "/jobs/NAMESPACE/JOB",
    "/timeline",
    "/nodes",
    "/nodes/NODE",
    "/preemptions",
    "/usage",
]


class Elements(HTMLParser):
    """The elements of a page: names and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def with_secret(job: spec.TrainingJob) -> spec.TrainingJob:
    (role,) = job.spec.roles
    (container,) = role.template.spec.containers
    container = container.model_copy(update={"env": [{"name": "HF_TOKEN", "value": SECRET}]})
    pod = role.template.spec.model_copy(update={"containers": [container]})
    role = role.model_copy(update={"template": role.template.model_copy(update={"spec": pod})})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"roles": [role]})})


def renamed(job: spec.TrainingJob, name: str) -> spec.TrainingJob:
    meta = job.metadata.model_copy(update={"name": name, "namespace": HOSTILE})
    spec = job.spec.model_copy(update={"queue": HOSTILE})
    return with_secret(job.model_copy(update={"metadata": meta, "spec": spec}))


@pytest.fixture(scope="module")
def hostile() -> Iterator[DashboardServer]:
    """Every name and every text that an object can have is `HOSTILE`, and the environment of the jobs has a secret."""
    placement = (RolePlacement("trainer", "any", ((HOSTILE, 2),)),)
    runs = named("a")
    runs = runs.model_copy(update={"status": transitions.admit(runs.status, placement, NOW - 5)})
    leaf = queue("leaf", gpus=None, parent="root")
    node = replace(nodes(1)[0], name=HOSTILE, labels={"rack": HOSTILE, HOSTILE: HOSTILE})
    preempted = Preemption(
        metadata=ItemMeta(name=HOSTILE, namespace=HOSTILE, uid="p"),
        queue=HOSTILE, reason=HOSTILE, message=HOSTILE, at=NOW - 60,
    )  # fmt: skip
    observed = observed_state(
        renamed(runs, HOSTILE),
        renamed(named("b"), "waits"),
        nodes=(node,),
        flavors=(flavor(levels={"rack": "rack"}),),
        queues=(
            queue("root"),
            leaf.model_copy(update={"metadata": leaf.metadata.model_copy(update={"name": HOSTILE})}),
        ),
    )
    waits = {"b": Wait("b", "QuotaExceeded", HOSTILE, 1, NOW + 60)}
    client = ReadStateClient(state=leader(observed, waits, preemptions=(preempted,)))
    client.kept_jobs = {job.metadata.name: job for job in training_jobs(observed.workloads)}
    client.logs = {("trainer", 0): [HOSTILE]}
    client.kept_events = [{"at": NOW, "type": "Normal", "reason": HOSTILE, "message": HOSTILE, "count": 1}]
    used = UsageSummary(
        metadata=ItemMeta(name=HOSTILE),
        by="user",
        flavor=HOSTILE,
        resource=f"example.com/{HOSTILE}",
        hours=3,
        points=[],
    )
    client.kept_usage = usage_listing([used])
    with serving(client, lambda: NOW + 10) as server:
        yield server


def page(server: DashboardServer, target: str) -> str:
    for placeholder in ("NAMESPACE", "JOB", "NODE"):
        target = target.replace(placeholder, IN_PATH)
    found = get(server, target)
    assert found.status == 200, found.text
    return found.text


@pytest.mark.parametrize("target", PAGES)
def test_hostile_names_and_messages_are_text(hostile: DashboardServer, target: str) -> None:
    html = page(hostile, target)
    assert "&lt;script&gt;alert(1)" in html
    elements = Elements(html).found
    assert [tag for tag, _ in elements if tag in ("img", "iframe", "object", "embed", "base")] == []
    assert [name for _, attributes in elements for name in attributes if name.startswith("on") or name == "style"] == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", html)


@pytest.mark.parametrize("target", PAGES)
def test_a_page_has_one_script_and_refers_to_this_server_alone(hostile: DashboardServer, target: str) -> None:
    elements = Elements(page(hostile, target)).found
    assert [attributes for tag, attributes in elements if tag == "script"] == [
        {"src": "/static/dashboard.js", "defer": None}
    ]
    addresses = [
        value for _, attributes in elements for name, value in attributes.items() if name in ("src", "href", "action")
    ]
    assert [one for one in addresses if not re.match(r"(/(?!/)|#)", one or "")] == []


@pytest.mark.parametrize("target", PAGES)
def test_no_page_has_the_environment_of_a_job(hostile: DashboardServer, target: str) -> None:
    assert SECRET not in page(hostile, target)


@pytest.mark.parametrize(("target", "requests"), [("/", 4), ("/pending", 2), ("/jobs", 2), ("/timeline", 2)])
def test_of_5000_jobs_a_page_has_a_bounded_size_and_makes_few_requests(target: str, requests: int) -> None:
    jobs = [*map(admitted, "abc"), *(named(f"job-{number:05}") for number in range(4_997))]
    waits = {
        job.metadata.uid: Wait(job.metadata.uid, "QuotaExceeded", "needs 16 GPUs", number + 1, NOW + 60)
        for number, job in enumerate(jobs[3:])
    }
    client = ReadStateClient(state=leader(two_queues(*jobs), waits))
    with serving(client, lambda: NOW) as server:
        found = get(server, target)
    assert (found.status, len(client.urls)) == (200, requests)
    assert len(found.text) < 150_000
