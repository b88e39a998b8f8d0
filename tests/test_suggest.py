"""What is guessed for a name that is not known."""

from __future__ import annotations

from muster.text.suggest import closest_match, did_you_mean


def test_the_name_most_like_it_is_guessed_and_none_where_none_is_like_it() -> None:
    assert closest_match("reserch", ["default", "research", "search"]) == "research"
    assert closest_match("xyz", ["default", "research"]) is None
    assert closest_match("reserch", ["research"], min_similarity=0.99) is None


def test_a_guess_ends_the_sentence_or_else_what_there_is() -> None:
    assert did_you_mean("defualt", ["default"], "there are no others") == "did you mean 'default'?"
    assert did_you_mean("xyz", ["default"], "there is default") == "there is default"
