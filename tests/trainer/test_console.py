"""Progress lines, durations and counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster import text
from muster_components.trainer.reporter import first_step_line, format_count, format_duration, progress_line


def test_progress_on_a_cpu() -> None:
    line = progress_line(step=20, steps=60, loss=2.312, tokens_per_s=12345.4, step_time_s=0.52, eta_s=20.8)
    assert line == "step 20/60  loss 2.31  12,345 tok/s  0.52 s/step  ETA 21s"


def test_progress_on_a_gpu_names_mfu_and_memory() -> None:
    line = progress_line(
        step=1,
        steps=2,
        loss=2,
        tokens_per_s=1e6,
        step_time_s=0.0316,
        eta_s=4000,
        mfu=0.488,
        peak_memory_bytes=54 * 10**9,
    )
    assert line == "step 1/2  loss 2.00  1,000,000 tok/s  31.6 ms/step  ETA 1h06m  MFU 48.8%  peak 50.3 GiB"


def test_the_line_of_the_first_step_has_no_speed() -> None:
    assert first_step_line(step=1, steps=60, loss=5.6, step_time_s=26.73) == "step 1/60  loss 5.60  first step 26.7 s"


@given(st.floats(-10, 1e8))
def test_durations_are_formatted_as_by_the_command_line(seconds: float) -> None:
    assert format_duration(seconds) == text.format_duration(seconds)


def test_durations_and_counts() -> None:
    assert [format_duration(s) for s in (-1, 0.6, 59.5, 3599, 3600)] == ["0s", "1s", "1m00s", "59m59s", "1h00m"]
    assert [format_count(n) for n in (512, 857_216, 10_800_000, 8_030_000_000)] == ["512", "857k", "10.8M", "8.03B"]
