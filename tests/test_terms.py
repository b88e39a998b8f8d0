"""The check of names: retired terms and public classes of the same name."""

from tools import terms


def test_a_retired_term_is_found_with_its_line_and_the_term_to_use() -> None:
    assert terms.retired_terms("fine\nreason: NoRoom, and NoRoomy is another word\n") == [
        (2, "NoRoom", "InsufficientResources")
    ]


def test_a_retired_word_is_found_in_identifiers_but_not_in_longer_words() -> None:
    text = "def test_it_is_told_so(): ...\n_ROOM = Room()\nrooms, retold\n"
    assert [(line, word) for line, word, _ in terms.retired_terms(text)] == [(1, "told"), (2, "ROOM"), (2, "Room")]


def test_an_identifier_is_retired_where_the_word_has_other_uses_in_text() -> None:
    source = '"""A foreign key; the beat."""\nforeign_key = 1\nclass Hold:\n    beat: int = 2\n'
    assert [(line, name) for line, name, _ in terms.retired_names(source)] == [(3, "Hold"), (4, "beat")]


def test_a_module_may_not_have_a_retired_term_as_its_name() -> None:
    assert terms.retired_file_name("platform/muster/forms.py") == [
        ("forms", "humanize, duration, suggest, text, tables")
    ]
    assert [old for old, _ in terms.retired_file_name("tests/torchx/test_story.py")] == ["story", "story"]
    assert terms.retired_file_name("tests/torchx/test_options.py") == []


def test_verdict_is_a_term_of_trace_findings_only() -> None:
    assert [word for _, word, _ in terms.retired_terms("verdict", "platform/muster/engine/engine.py")] == ["verdict"]
    assert terms.retired_terms("verdict", "platform/muster/tracing/analysis/findings.py") == []


def test_a_public_class_name_is_unique_and_a_private_one_need_not_be() -> None:
    sources = [("a.py", "class Queue: ...\nclass _Row: ..."), ("b.py", "class Queue: ...\nclass _Row: ...")]
    assert terms.duplicate_classes(sources) == {"Queue": ["a.py", "b.py"]}
