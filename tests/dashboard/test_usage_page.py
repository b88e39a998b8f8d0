"""The page of usage over time."""

from __future__ import annotations

import re

import pytest
from tests.cli.memory import NOW, usage_listing
from tests.dashboard.serving import ReadStateClient, get, serving
from tests.state.observed_states import admitted
from tests.visibility.states import leader, two_queues

from muster.dashboard.pages.usage import CHART_HEIGHT, CHART_WIDTH, usage_rows
from muster.visibility.reader import Listing
from muster.visibility.types import ItemMeta, UsagePoint, UsageSummary

DAY = 86_400.0
SINCE = -(-NOW // DAY) * DAY - 10 * DAY


def used(name: str, *hours: float, resource: str = "nvidia.com/gpu") -> UsageSummary:
    points = [UsagePoint(at=SINCE + day * DAY, hours=one) for day, one in enumerate(hours) if one]
    return UsageSummary(
        metadata=ItemMeta(name=name), by="queue", flavor="h200", resource=resource, hours=sum(hours), points=points
    )


def page(found: Listing[UsageSummary], target: str, status: int = 200) -> tuple[str, ReadStateClient]:
    client = ReadStateClient(state=leader(two_queues(admitted("a"))))
    client.kept_usage = found
    with serving(client) as server:
        answer = get(server, target)
    assert answer.status == status, answer.text
    return answer.text, client


def test_rows_have_hours_largest_first_and_a_bar_for_each_day_with_usage() -> None:
    html, client = page(
        usage_listing(
            [
                used("red", 0, 8, 4),
                used("blue", 16, 0, 0.01),
                used("red", 99, resource="cpu"),
                used("team", 50, resource="cpu"),
            ]
        ),
        "/usage",
    )
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r'<td class="(?:name|n used)">(.*?)</td>', html)]
    assert cells == ["blue", "16.010", "red", "12.000", "team", "50.000"]
    assert html.count('<rect class="own"') == 5
    assert client.calls == [("usage", "queue")]


def test_bars_are_at_their_days_and_as_high_as_their_share_of_the_most_of_their_resource() -> None:
    rows = usage_rows([used("red", 0, 8), used("blue", 16)], SINCE, SINCE + 10 * DAY, DAY)
    (blue,), (red,) = (row.bars for row in rows)
    assert (blue.x, blue.height) == (0, CHART_HEIGHT)
    assert [red.x, red.height] == pytest.approx([CHART_WIDTH / 10, CHART_HEIGHT / 2])


def test_cpu_is_shown_where_nothing_else_was_used() -> None:
    rows = usage_rows([used("a", 3, resource="cpu")], SINCE, SINCE + DAY, DAY)
    assert [row.item.resource for row in rows] == ["cpu"]


def test_without_usage_the_page_says_so() -> None:
    html, client = page(usage_listing([]), "/usage?by=user&days=7")
    assert "No usage in this time." in html
    assert client.calls == [("usage", "user")]


def test_an_unknown_number_of_days_is_refused() -> None:
    html, _ = page(usage_listing([]), "/usage?days=2", 400)
    assert "days: must be one of 1, 7, 30, 90; got" in html
