"""Watch events and acknowledged writes of one object in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster_operator.cache.mutation_cache import MutationCache

Change = tuple[str, str | None, str | None]


def recorded_cache() -> tuple[MutationCache[str], list[Change]]:
    changes: list[Change] = []
    return MutationCache[str](lambda key, old, new: changes.append((key, old, new))), changes


def test_our_write_counts_at_once_and_its_event_is_no_change() -> None:
    kept, changes = recorded_cache()
    kept.upsert("a", 1, "old")
    kept.on_written("a", 5, "ours")
    assert kept.get("a") == "ours"
    kept.upsert("a", 5, "ours, as the watch shows it")
    assert changes == [("a", None, "old"), ("a", "old", "ours")]


def test_an_event_from_before_our_write_changes_nothing() -> None:
    kept, _ = recorded_cache()
    kept.on_written("a", 5, "ours")
    kept.upsert("a", 4, "older")
    kept.delete("a", 4)
    assert kept.get("a") == "ours"


def test_a_later_change_by_another_writer_wins() -> None:
    kept, _ = recorded_cache()
    kept.on_written("a", 5, "ours")
    kept.upsert("a", 6, "theirs")
    assert kept.get("a") == "theirs"


def test_an_object_deleted_before_our_answer_arrives_does_not_reappear() -> None:
    kept, _ = recorded_cache()
    kept.upsert("a", 5, "created")
    kept.advance(5)
    kept.delete("a", 6)
    kept.advance(6)
    kept.on_written("a", 5, "ours")
    assert kept.get("a") is None


def test_a_list_removes_missing_objects_except_those_written_after_it() -> None:
    kept, _ = recorded_cache()
    kept.upsert("gone", 3, "x")
    kept.on_written("fresh", 12, "y")
    kept.retain([], 10)
    assert (kept.get("gone"), kept.get("fresh")) == (None, "y")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "delete"])), max_size=30), st.data())
def test_any_order_of_answers_ends_in_the_state_of_the_server(
    history: list[tuple[str, str]], data: st.DataObject
) -> None:
    """The server's history in watch order, with answers to our own writes at any later point."""
    server: dict[str, str] = {}
    events: list[tuple[int, str, str]] = []
    flip = st.booleans()
    for version, (key, act) in enumerate(history, start=1):
        if act == "set":
            server[key] = f"{key}{version}"
            events.append((version, key, server[key]))
        elif server.pop(key, None) is not None:
            events.append((version, key, ""))
    kept, _ = recorded_cache()
    late = [event for event in events if event[2] and data.draw(flip)]
    for version, key, value in events:
        while len(late) > 0 and data.draw(flip):
            answered = late.pop(data.draw(st.integers(0, len(late) - 1)))
            if answered[0] <= version:  # a write is answered after it happened
                kept.on_written(answered[1], answered[0], answered[2])
            else:
                late.append(answered)
                break
        if value:
            kept.upsert(key, version, value)
        else:
            kept.delete(key, version)
        kept.advance(version)
    for version, key, value in late:
        kept.on_written(key, version, value)
    assert {key: kept.get(key) for key in "abc"} == {key: server.get(key) for key in "abc"}
