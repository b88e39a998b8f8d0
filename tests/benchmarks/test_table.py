from typing import Any

from benchmarks.scale.table import details, figure, medians, overview


def row(scheduler: str, bound_s: float | None, case: str = "fill", **more: Any) -> dict[str, Any]:
    usual = {
        "case": case, "pods": 8, "scheduler": scheduler, "create_to_bound_s": bound_s, "create_to_ready_s": None,
        "operator_cpu_s": 1.0, "operator_rss_mib": 100.0, "writes_per_pod": 1.5, "partial_gangs": 0,
        "cpu_s": {"etcd": 2.0, "operator": 1.0}, "qps": 1000, "burst": 2000, "notes": {},
    }  # fmt: skip
    return usual | more


def test_of_each_number_the_median_is_taken_for_each_case_and_scheduler() -> None:
    rows = [row("muster", 3.0), row("native", 9.0), row("muster", 1.0), row("native", 7.0), row("muster", 20.0)]

    found = medians(rows)

    assert [(one["scheduler"], one["create_to_bound_s"], one["repetitions"]) for one in found] == [
        ("muster", 3.0, 3),
        ("native", 8.0, 2),
    ]


def test_numbers_within_a_row_have_medians_too_and_what_is_no_number_is_the_last_ones() -> None:
    notes = (
        {"decision_s": 0.3, "message": "a"},
        {"decision_s": 0.1, "message": "b"},
        {"decision_s": 0.2, "message": "c"},
    )

    (found,) = medians([row("muster", None, case="first-decision", notes=one, writes_agree=True) for one in notes])

    assert found["notes"] == {"decision_s": 0.2, "message": "c"}
    assert found["writes_agree"] is True
    assert found["create_to_bound_s"] is None


def test_counts_stay_whole() -> None:
    (found,) = medians([row("muster", 1.0), row("muster", 2.0)])

    assert (repr(found["pods"]), repr(found["qps"]), found["create_to_bound_s"]) == ("8", "1000", 1.5)


def test_what_failed_is_counted_and_does_not_move_the_median() -> None:
    rows = [row("kai", 4.0), row("kai", None, notes={"error": "TooSlow: x"}, operator_cpu_s=0.0), row("kai", 6.0)]

    (found,) = medians(rows)

    assert (found["create_to_bound_s"], found["operator_cpu_s"]) == (5.0, 1.0)
    assert (found["repetitions"], found["failed"]) == (2, 1)


def test_where_all_failed_the_row_says_so() -> None:
    (found,) = medians([row("kai", None, notes={"error": "TooSlow: x"})])

    assert (found["repetitions"], found["failed"], figure(found)) == (0, 1, "failed")


def test_a_cell_says_what_its_case_is_about() -> None:
    assert figure(row("muster", 12.345)) == "12.3"
    assert figure(row("muster", 161.4)) == "161"
    assert figure(row("muster", None, case="first-decision", notes={"decision_s": 0.031})) == "0.03"
    assert figure(row("muster", None, case="wait", notes={"pods_bound": 0}, operator_cpu_s=0.5)) == "0.50 CPU"
    partly = row("kube-scheduler", None, case="wait", notes={"pods_bound": 500}, operator_cpu_s=2.3)
    assert figure(partly) == "2.30 CPU (500 pods bound)"


def test_the_overview_compares_muster_with_the_best_of_the_gang_schedulers() -> None:
    rows = [
        row("muster", 4.0),
        row("kube-scheduler", 1.0),
        row("native", 8.0),
        row("kai", 5.0),
        row("muster", 2.0, "racks"),
    ]

    assert overview(rows, {"native", "kai"}).splitlines() == [
        "| case | muster | kube-scheduler | native | kai | muster : best gang scheduler |",
        "| --- | --- | --- | --- | --- | --- |",
        "| fill | 4 | 1 | 8 | 5 | 0.80 |",
        "| racks | 2 |  |  |  |  |",
    ]


def test_without_a_gang_scheduler_nothing_is_compared() -> None:
    assert overview([row("muster", 4.0)], {"native"}).splitlines()[0] == "| case | muster |"


def test_the_details_state_the_rate_and_the_reported_reason() -> None:
    line = details([row("muster", 1.0, notes={"message": "a | b"})]).splitlines()[2]

    assert line == "| fill | muster | 1 |  | 1 | 100 | 1.50 | 0 | 3 | 1000/2000 | a / b |"


def test_the_details_keep_the_error_of_what_failed() -> None:
    table = details([row("kai", None, notes={"error": "TooSlow: not in 400 s"})])

    assert "| failed: TooSlow: not in 400 s |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
