"""The numbers of the pages are those that `muster` prints, from the same answers of the read API."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import usage_listing, used
from tests.dashboard.serving import ReadStateClient, get, serving
from tests.engine.objects import nodes
from tests.state.observed_states import admitted, named, observed_state, pod
from tests.visibility.states import leader, two_queues

from muster.local.client import LocalClient


class Client(ReadStateClient):
    """What `muster` and the dashboard ask the daemon of this host."""

    nodes = LocalClient.nodes
    queues = LocalClient.queues


def page(client: Client, target: str) -> str:
    with serving(client) as server:
        found = get(server, target)
    assert found.status == 200, found.text
    return found.text


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    job, (first, second) = admitted("a"), nodes(2)
    hosts = (first, replace(second, cordoned=True))
    queues = two_queues().queues
    state = leader(
        observed_state(job, named("b"), nodes=hosts, queues=queues, pods={job.metadata.uid: (pod(job, 0, "n0"),)})
    )
    found = Client(run_root=tmp_path, state=state)
    monkeypatch.setattr("muster.cli.options._connect_local", lambda start: found)
    return found


def test_nodes(client: Client, muster: Muster) -> None:
    heading, *lines = muster("nodes").out.splitlines()
    assert heading.split()[:3] == ["NODE", "FLAVOR", "GPU"]
    printed = [line.split() for line in lines]
    assert [row[0] for row in printed] == ["n0", "n1"]
    html = page(client, "/nodes")
    shown = re.findall(r'<span class="node-name">(.*?)</span> <span class="node-use">(\S+) gpu<', html)
    assert shown == [(row[0], next(word for word in row if "/" in word)) for row in printed]
    assert [" ".join(row).endswith("cordoned") for row in printed] == [False, True]
    assert re.findall(r'<span class="node-state">(\w+)<', html) == ["Cordoned"]


def test_queues(client: Client, muster: Muster) -> None:
    shown = words(page(client, "/"))
    for row in muster("queues", "--json").rows:
        (amounts,) = row["resources"]
        used_now, guaranteed = (amounts[column].get("nvidia.com/gpu", "0") for column in ("used", "guaranteed"))
        assert f"{row['name']} {row['admitted']} {row['waiting']} gpu {used_now} used of {guaranteed}" in shown


@pytest.mark.parametrize("by", ["queue", "namespace", "user"])
def test_usage(client: Client, muster: Muster, by: str) -> None:
    client.kept_usage = usage_listing(
        [used("red", 0, 8, 4), used("blue", 1234.56), used("green", 1e-6), used("red", 99, resource="cpu")]
    )
    printed = [line.split()[:4] for line in muster("usage", "--by", by).out.splitlines()[1:-1]]
    cells = re.findall(r'<td class="name">(.*?)</td>\s*<td>(.*?)</td>\s*<td class="n used">(.*?)</td>\s*'
                       r'<td class="resource">(.*?)</td>', page(client, f"/usage?by={by}"))  # fmt: skip
    assert [[words(cell) for cell in row] for row in cells] == printed
    assert [call[1] for call in client.calls if call[0] == "usage"] == [by, by]
    assert len(printed) == 3
