"""The layout of ranks and their environment, without processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_components.launch.rank_layout import (
    InvalidLayout,
    RankLayout,
    rank_environment,
    read_rank_layout,
    threads_per_rank,
    usable_cores,
)


def test_outside_muster_there_is_one_pod() -> None:
    assert read_rank_layout({}, nproc=2) == RankLayout(nproc=2, run_id="local-0")


def test_ranks_are_numbered_across_pods() -> None:
    place = read_rank_layout(
        {"MUSTER_REPLICA": "2", "MUSTER_REPLICAS": "4", "MUSTER_RANK0_HOST": "h", "MUSTER_RANK0_PORT": "29500"}, nproc=8
    )
    assert (place.world_size, place.rank(0), place.rank(7)) == (32, 16, 23)


def test_ranks_have_the_variables_of_torchrun_and_of_the_user() -> None:
    place = RankLayout(nproc=2, replica=1, replicas=3, host="10.0.0.7", port=2345, run_id="u-0", role="trainer")
    found = rank_environment(place, 1, {"OMP_NUM_THREADS": "5", "HOME": "/h", "RANK": "stale"}, threads=4)
    expected = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3", "ROLE_NAME": "trainer", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "2345", "TORCHELASTIC_RUN_ID": "u-0",
        "OMP_NUM_THREADS": "5", "HOME": "/h",
    }  # fmt: skip
    assert expected.items() <= found.items()


def test_every_attempt_has_its_own_run_id() -> None:
    runs = {read_rank_layout({"MUSTER_JOB_UID": "u", "MUSTER_ATTEMPT": str(attempt)}, 1).run_id for attempt in range(3)}
    assert runs == {"u-0", "u-1", "u-2"}


def test_the_restart_count_of_torchelastic_is_the_attempt() -> None:
    found = [
        rank_environment(read_rank_layout({"MUSTER_ATTEMPT": str(attempt)}, 1), 0, {}, threads=1) for attempt in (0, 3)
    ]
    assert [one["TORCHELASTIC_RESTART_COUNT"] for one in found] == ["0", "3"]


def test_an_attempt_that_is_not_an_integer_is_rejected() -> None:
    with pytest.raises(InvalidLayout, match="MUSTER_ATTEMPT must be an integer of at least 0; got 'first'"):
        read_rank_layout({"MUSTER_ATTEMPT": "first"}, 1)


@pytest.mark.parametrize(("grace_s", "timeout_s"), [(30, 20), (120, 110), (20, 10), (12, 6), (2, 1), (0, 0)])
def test_the_stop_timeout_is_the_grace_period_minus_ten_seconds(grace_s: float, timeout_s: float) -> None:
    assert RankLayout(nproc=1, grace_s=grace_s).stop_timeout_s == timeout_s


def test_there_is_at_least_one_thread_per_rank() -> None:
    assert [threads_per_rank(cores, nproc) for cores, nproc in ((8, 2), (2, 2), (2, 8), (7, 2))] == [4, 1, 1, 3]


def test_the_limit_of_a_cgroup_is_used(tmp_path: Path) -> None:
    granted = tmp_path / "cpu.max"
    unlimited = usable_cores(tmp_path / "absent")
    granted.write_text("max 100000\n")
    assert usable_cores(granted) == unlimited
    granted.write_text("100000 100000\n")
    assert usable_cores(granted) == 1
    granted.write_text("50000 100000\n")
    assert usable_cores(granted) == 1
