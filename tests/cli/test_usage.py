"""`muster usage`."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient, usage_listing, used

from muster.cli.views.usage import chart_of
from muster.visibility.usage import UsageQuery

GPU = "nvidia.com/gpu"


def test_a_line_has_hours_and_a_chart_with_a_column_per_day_largest_first(
    muster: Muster, cluster: MemoryClient
) -> None:
    cluster.kept_usage = usage_listing(
        [used("red", 0, 8, 4), used("blue", 16, 0, 0.01), used("blue", 99, resource="cpu")]
    )
    ended = muster("usage")
    heading, first, second, period = ended.out.splitlines()
    assert (ended.code, heading.split()) == (0, ["QUEUE", "FLAVOR", "USED", "LARGEST", "PER", "DAY"])
    assert first.split() == ["blue", "h200", "16.010", "GPU-hours", "16.000", "█", "▁"]
    assert second.split() == ["red", "h200", "12.000", "GPU-hours", "8.000", "█▄"]
    assert first.index("█") == second.index("█") - 1
    assert period.startswith("2026-09-")
    assert " to now, 2026-" in period, "not the end of the day, which is to come"
    assert period.endswith("a column is a day, the highest of a line is LARGEST")


def test_cpu_is_shown_where_nothing_else_was_used(muster: Muster, cluster: MemoryClient) -> None:
    cluster.kept_usage = usage_listing([used("red", 1, resource="cpu")])
    assert "core-hours" in muster("usage").words


def test_a_job_of_seconds_does_not_show_as_zero(muster: Muster, cluster: MemoryClient) -> None:
    cluster.kept_usage = usage_listing([used("red", 1234.56), used("blue", 10 / 3600), used("green", 1e-6)])
    lines = [line.split()[:3] for line in muster("usage").out.splitlines()[1:4]]
    assert lines == [["red", "h200", "1,234.6"], ["blue", "h200", "0.003"], ["green", "h200", "<0.001"]]


def test_without_usage_it_says_so(muster: Muster, cluster: MemoryClient) -> None:
    assert muster("usage", "--by", "user").out == "no usage in this period\n"
    assert cluster.calls == [("usage", "user")]


def test_json_has_every_item_with_its_steps(muster: Muster, cluster: MemoryClient) -> None:
    cluster.kept_usage = usage_listing([used("red", 2), used("red", 1, resource="cpu")])
    rows = muster("usage", "--json").rows
    assert [(row["resource"], row["hours"], len(row["points"])) for row in rows] == [(GPU, 2.0, 1), ("cpu", 1.0, 1)]


@pytest.mark.parametrize(
    "words", [("--since", "soon"), ("--since", "0s"), ("--until", "never"), ("--by", "team"), ("--step", "week")]
)
def test_an_invalid_option_is_refused_with_its_name(
    muster: Muster, cluster: MemoryClient, words: tuple[str, str]
) -> None:
    ended = muster("usage", *words, "--json")
    assert (ended.code, ended.error["field"]) == (2, words[0])


def test_a_period_that_ends_before_it_begins_is_refused_with_the_options(muster: Muster, cluster: MemoryClient) -> None:
    ended = muster("usage", "--since", "7d", "--until", "8d")
    assert ended.code == 2
    assert "--since must be before --until 8d; got '7d'" in ended.err


def test_a_period_of_too_many_steps_is_refused_with_the_option(
    muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(parameters: object, namespace: object) -> None:
        UsageQuery(step="hour", since=0.0, until=1e9).period(1e9)

    monkeypatch.setattr(cluster, "usage", refuse)
    ended = muster("usage", "--since", "4000d", "--step", "hour", "--json")
    assert (ended.code, ended.error["field"]) == (2, "--since")
    assert ended.error["message"].startswith("--since: the period must have at most 1000 steps")


def test_the_smallest_usage_has_a_visible_character() -> None:
    assert chart_of([0.0, 0.001, 50.0, 100.0]) == " ▁▄█"
    assert chart_of([0.0, 0.0]) == "  "


def test_a_period_of_few_steps_has_a_column_for_each(muster: Muster, cluster: MemoryClient) -> None:
    cluster.kept_usage = usage_listing([used("red", 2, 4, 1)], days=3)
    assert muster("usage").out.splitlines()[1].endswith("▄█▂")


def test_a_queue_that_used_only_cpu_has_a_line_beside_queues_with_gpus(muster: Muster, cluster: MemoryClient) -> None:
    cluster.kept_usage = usage_listing(
        [used("gpus", 2), used("gpus", 9, resource="cpu"), used("team", 5, resource="cpu")]
    )
    lines = [line.split()[:4] for line in muster("usage").out.splitlines()[1:3]]
    assert lines == [["gpus", "h200", "2.000", "GPU-hours"], ["team", "h200", "5.000", "core-hours"]]
