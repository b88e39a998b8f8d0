from pathlib import Path

import pytest
from benchmarks.scale.contender import Rate
from benchmarks.scale.peers.registry import BUILT, HERE, NAMES, Missing, contender


def test_what_kubernetes_brings_needs_no_path() -> None:
    names = ["kube-scheduler", "jobs", "native", "muster-jobs", "muster-job-sets"]
    assert [contender(name, None).name for name in HERE] == names


@pytest.mark.parametrize("name", BUILT)
def test_what_was_not_built_is_named_before_anything_starts(name: str, tmp_path: Path) -> None:
    with pytest.raises(Missing, match=f"--beside {name} needs --{name} PATH: a folder with {BUILT[name][1][0]}"):
        contender(name, None)
    with pytest.raises(Missing, match=f"there is no {BUILT[name][1][0]} in {tmp_path}"):
        contender(name, tmp_path)


@pytest.mark.parametrize("name", BUILT)
def test_a_path_may_be_the_folder_or_a_program_in_it(name: str, tmp_path: Path) -> None:
    for need in BUILT[name][1]:
        (tmp_path / need).touch()

    assert contender(name, tmp_path).name == name
    assert contender(name, tmp_path / BUILT[name][1][0]).name == name


def test_only_who_is_kube_scheduler_itself_runs_without_the_control_planes_own(tmp_path: Path) -> None:
    for need in {need for _, needs in BUILT.values() for need in needs}:
        (tmp_path / need).touch()

    alone = [name for name in NAMES if not contender(name, tmp_path).kube_scheduler]

    assert alone == ["kube-scheduler", "jobs", "native"]


def test_where_controllers_make_the_pods_they_have_the_same_rate() -> None:
    rate = Rate(300, 500)

    assert contender("jobs", None).controllers(rate)[:2] == ("--kube-api-qps=300", "--kube-api-burst=500")
    assert contender("native", None).controllers(rate) == ()
