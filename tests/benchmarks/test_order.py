from benchmarks.scale.order import Turn, turns


def test_schedulers_alternate_within_a_case_and_again_in_every_repetition() -> None:
    found = [(turn.number, turn.scheduler) for turn in turns(["gang"], ["muster", "native", "volcano"], 2, ())]

    assert found == [
        (0, "muster"), (0, "native"), (0, "volcano"),
        (1, "muster"), (1, "native"), (1, "volcano"),
    ]  # fmt: skip


def test_the_cases_of_a_repetition_come_before_the_next_repetition() -> None:
    assert [(turn.number, turn.case) for turn in turns(["a", "b"], ["muster"], 2, ())] == [
        (0, "a"), (0, "b"), (1, "a"), (1, "b"),
    ]  # fmt: skip


def test_a_case_of_musters_own_is_run_with_no_other_scheduler() -> None:
    assert list(turns(["fill", "reclaim"], ["muster", "kai"], 1, {"reclaim"})) == [
        Turn(0, "fill", "muster"), Turn(0, "fill", "kai"), Turn(0, "reclaim", "muster"),
    ]  # fmt: skip
