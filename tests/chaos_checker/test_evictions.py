"""A violation is reported when a gang is stopped or evicted before the reason is written."""

from __future__ import annotations

from tests.chaos_checker.history import History

STOPPED = "a pod is stopped after the reason is written"
NOMINATED = "a nomination is written before its victims are stopped"


def test_a_pod_of_an_admitted_gang_is_stopped() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.stop(key)
    assert history.rules == [STOPPED]


def test_a_pod_of_an_admitted_gang_is_removed_without_grace() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.remove("Pod", key)
    assert history.rules == [STOPPED]


def test_another_client_may_evict_a_pod() -> None:
    history = History()
    (key,) = history.running("a", "n0")
    history.stop(key, disrupted=True)
    assert history.rules == []


def created_again(wait_s: float) -> tuple[History, str]:
    """A pod that another client removed without grace, and the next one of its name a while later."""
    history = History()
    (key,) = history.running("a", "n0")
    history.stop(key, disrupted=True, grace=0)
    history.remove("Pod", key)
    history.wait(wait_s)
    history.pod("a", 0, "n0")
    return history, key


def test_a_late_delete_by_name_of_the_simulated_kubelet_may_hit_the_next_pod_of_that_name() -> None:
    history, key = created_again(8)
    history.stop(key, grace=0)
    assert history.rules == []


def test_the_next_pod_of_a_name_is_stopped_with_grace_or_much_later() -> None:
    for wait_s, grace in ((8, 3), (90, 0)):
        history, key = created_again(wait_s)
        history.stop(key, grace=grace)
        assert STOPPED in history.rules


def test_an_eviction_a_new_attempt_and_a_deleted_job_are_reasons() -> None:
    history = History()
    for number, reason in enumerate(("Evicted", "attempt", "deleted")):
        name = f"j{number}"
        (key,) = history.running(name, "n0")
        if reason == "Evicted":
            history.status(name, "Admitted", "Evicted", placement=["n0"])
        elif reason == "attempt":
            history.admit(name, "n0", attempt=1)
        else:
            history.remove("TrainingJob", f"ns/{name}")
        history.stop(key)
    assert history.rules == []


def test_a_victim_is_evicted_after_the_nomination_that_names_it_is_written() -> None:
    history = History()
    history.running("low", "n0")
    history.job("high")
    history.nominate("high", "n0", victims=("low",))
    history.status("low", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    assert history.rules == []


def test_a_victim_is_evicted_without_a_nomination() -> None:
    history = History()
    history.running("low", "n0")
    history.job("high")
    history.status("low", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    assert history.rules == [NOMINATED]


def test_a_victim_is_evicted_that_the_nomination_does_not_name() -> None:
    history = History()
    history.running("low", "n0")
    history.job("high")
    history.nominate("high", "n0", victims=("other",))
    history.status("low", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    assert history.rules == [NOMINATED]


def test_the_preemptor_may_have_been_deleted_a_moment_ago() -> None:
    history = History()
    history.running("low", "n0")
    history.job("high")
    history.remove("TrainingJob", "ns/high")
    history.wait(5)
    history.status("low", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    assert history.rules == []


def test_the_preemptor_was_deleted_long_ago() -> None:
    history = History()
    history.running("low", "n0")
    history.job("high")
    history.remove("TrainingJob", "ns/high")
    history.wait(15)
    history.status("low", "Admitted", "Evicted", placement=["n0"], eviction={"for": "uid-high"})
    assert history.rules == [NOMINATED]
