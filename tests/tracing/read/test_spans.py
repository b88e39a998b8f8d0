"""Set operations on spans, compared with sets of single nanoseconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.tracing.read.spans import Spans, coverage, intersect, spans_from_pairs, total_ns, union

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def instants(spans: Spans) -> set[int]:
    return {t for s, e in zip(spans.start.tolist(), spans.end.tolist(), strict=True) for t in range(s, e)}


def is_disjoint_and_ordered(spans: Spans) -> bool:
    return bool((spans.start < spans.end).all() and (spans.end[:-1] < spans.start[1:]).all())


@given(pairs)
def test_a_union_covers_the_same_time_in_disjoint_ordered_spans(a: list[tuple[int, int]]) -> None:
    merged = union(spans_from_pairs(a))
    assert instants(merged) == instants(spans_from_pairs(a))
    assert is_disjoint_and_ordered(merged)
    assert total_ns(spans_from_pairs(a)) == len(instants(spans_from_pairs(a)))


@given(pairs, pairs)
def test_an_intersection_covers_exactly_the_time_of_both(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both = intersect(spans_from_pairs(a), spans_from_pairs(b))
    assert instants(both) == instants(spans_from_pairs(a)) & instants(spans_from_pairs(b))
    assert is_disjoint_and_ordered(both)


@given(st.lists(pairs, max_size=4))
def test_coverage_has_the_active_sets_of_each_instant(sets: list[list[tuple[int, int]]]) -> None:
    members = [instants(spans_from_pairs(s)) for s in sets]
    expected: dict[int, int] = {}
    for t in range(60):
        state = sum(1 << k for k, m in enumerate(members) if t in m)
        if state:
            expected[state] = expected.get(state, 0) + 1
    covered = coverage([spans_from_pairs(s) for s in sets])
    found = {state: covered.total(covered.active == state) for state in covered.active.tolist() if state}
    assert found == expected
