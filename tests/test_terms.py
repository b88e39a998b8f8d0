"""The check of names: retired terms and public classes of the same name."""

from tools import terms


def test_a_retired_term_is_found_with_its_line_and_the_term_to_use() -> None:
    assert terms.retired_terms("fine\nreason: NoRoom, and NoRoomy is another word\n") == [
        (2, "NoRoom", "InsufficientResources")
    ]


def test_a_retired_word_is_found_in_identifiers_but_not_in_longer_words() -> None:
    text = "def test_it_is_told_so(): ...\n_ROOM = Room()\nrooms, retold\n"
    assert [(line, word) for line, word, _ in terms.retired_terms(text)] == [(1, "told"), (2, "ROOM"), (2, "Room")]


def test_a_public_class_name_is_unique_and_a_private_one_need_not_be() -> None:
    sources = [("a.py", "class Queue: ...\nclass _Row: ..."), ("b.py", "class Queue: ...\nclass _Row: ...")]
    assert terms.duplicate_classes(sources) == {"Queue": ["a.py", "b.py"]}
