"""What is guessed for a name that is not known."""

from __future__ import annotations

from muster.nearest import meant, nearest


def test_the_name_most_like_it_is_guessed_and_none_where_none_is_like_it() -> None:
    assert nearest("reserch", ["default", "research", "search"]) == "research"
    assert nearest("xyz", ["default", "research"]) is None
    assert nearest("reserch", ["research"], alike=0.99) is None


def test_a_guess_ends_the_sentence_or_else_what_there_is() -> None:
    assert meant("defualt", ["default"], "there are no others") == "did you mean 'default'?"
    assert meant("xyz", ["default"], "there is default") == "there is default"
