"""Line charts: points above the limit of the axis."""

from __future__ import annotations

import re

import pytest

from muster.tracing.page.charts import LinePlot, LineSeries, Outlier, line_chart

FAST = LineSeries("rank 0", "c0", tuple((step, 0.02) for step in range(1, 61)))


def test_an_outlier_within_the_axis_is_drawn_at_its_value() -> None:
    """The limit of 42 ms is rounded up to 60 ms: 50 ms is drawn at its value, 80 ms is not."""
    inside, outside = Outlier(30, 0.05, "c0", "step 30: 50.0 ms"), Outlier(40, 0.08, "c0", "step 40: 80.0 ms")
    curve = LineSeries("rank 0", "c0", (*FAST.points, (61, 0.042)))
    chart = line_chart(
        [curve], LinePlot(title="t", y_from_zero=True, y_is_time=True, y_limit=0.042, outliers=(inside, outside))
    )
    assert ">60 ms</text>" in chart
    (circle,) = re.findall(r'<circle class="dot c0" cx="([\d.]+)" cy="([\d.]+)" r="2.5"><title>(.*?)</title>', chart)
    assert circle[2] == inside.label
    zero, top = height_of("0", chart), height_of("60 ms", chart)
    assert abs(float(circle[1]) - (zero + (top - zero) * 0.05 / 0.06)) < 0.1
    (triangle,) = re.findall(r'<path class="dot c0" d="M[\d.]+ ([\d.]+)h8l-4 -7z"><title>(.*?)</title>', chart)
    assert triangle[1] == outside.label
    assert abs(float(triangle[0]) - top - 3) < 0.1
    assert f">{outside.label}</text>" in chart
    assert f">{inside.label}</text>" not in chart


def test_only_the_highest_outlier_is_labelled() -> None:
    slow = (Outlier(30, 0.05, "c0", "step 30: 50.0 ms"), Outlier(31, 0.055, "c0", "step 31: 55.0 ms"))
    curve = LineSeries("rank 0", "c0", (*FAST.points, (61, 0.042)))
    chart = line_chart([curve], LinePlot(title="t", y_from_zero=True, y_is_time=True, y_limit=0.042, outliers=slow))
    assert "l-4 -7z" not in chart
    place = re.search(r'cy="([\d.]+)" r="2.5"><title>step 31', chart)
    name = re.search(r'y="([\d.]+)" text-anchor="start">step 31: 55.0 ms</text>', chart)
    assert place is not None
    assert name is not None
    assert abs(float(name[1]) - float(place[1]) - 4) < 0.2


def height_of(tick: str, chart: str) -> float:
    found = re.search(rf'y="([\d.]+)" text-anchor="end">{tick}</text>', chart)
    assert found is not None
    return float(found[1]) - 4


@pytest.mark.parametrize("value", [0.0, 1e-300, 5.0, -1e99, 1e99])
def test_a_curve_of_equal_values_of_any_size_is_drawn(value: float) -> None:
    """A run may report anything as its loss."""
    curve = LineSeries("loss", "c0", ((1, value), (2, value)))
    chart = line_chart([curve], LinePlot("t"))
    (path,) = re.findall(r'<path class="curve c0" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', chart)
    assert path[1] == path[3]
    assert 0 <= float(path[1]) <= 240
