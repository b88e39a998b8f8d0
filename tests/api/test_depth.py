"""Objects nested deeper than a program can follow: they are refused by name, and what lies beside them can be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.api.spec import Flavor, PodTemplate, TrainingJob
from muster.api.spec.limits import MAX_DEPTH, find_too_deep
from muster.api.yaml_input.undecodable import MAX_LEVELS, decode_truncated, truncate_depth, truncate_value

values = st.recursive(
    st.none() | st.integers(-5, 5) | st.text('ab"\\[]{},:é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\[{', max_size=3), inner, max_size=3),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    """So many mappings inside each other."""
    value: Any = "end"
    for _ in range(levels):
        value = {"x": value}
    return value


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth(one) for one in inner), default=0)


def cut(value: Any, levels: int) -> Any:
    """What `truncate_depth` does, written simply."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return 0
    if isinstance(value, dict):
        return {key: cut(inner, levels - 1) for key, inner in value.items()}
    return [cut(inner, levels - 1) for inner in value]


def job(odd: Any) -> dict[str, Any]:
    """A job with an unknown field, four levels and two names below `spec`."""
    template = {"spec": {"containers": [{"image": "x"}], "odd": odd}}
    spec = {"roles": [{"name": "trainer", "template": template}]}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "llama"}, "spec": spec}


def wrong(document: dict[str, Any], model: Any = TrainingJob) -> list[tuple[Any, str]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    return [(one["loc"], one["msg"]) for one in caught.value.errors()]


@given(values, st.integers(1, 6))
def test_a_value_is_too_deep_exactly_when_it_has_more_levels(value: Any, levels: int) -> None:
    place = find_too_deep(value, levels)
    assert (place is not None) == (depth(value) > levels)
    for step in place or ():
        value = value[step]
    assert place is None or (len(place) == levels and isinstance(value, dict | list))


@given(values, st.integers(1, 6), st.booleans(), st.sampled_from([1, 2, 7, 1 << 20]))
def test_a_truncated_text_is_equal_down_to_its_depth(value: Any, levels: int, plain: bool, piece_bytes: int) -> None:
    text = json.dumps(value, ensure_ascii=plain).encode()
    assert json.loads(truncate_depth(text, levels, piece_bytes)) == cut(value, levels) == truncate_value(value, levels)
    if depth(value) <= levels:
        assert truncate_depth(text, levels, piece_bytes) is text


@pytest.mark.parametrize("text", [b"", b"{", b'"', b"]]]]", b'{"a": "\\', b"\xff[[[", b'{"a":' + b"[" * 5000])
def test_what_is_no_json_is_none_when_its_depth_is_truncated(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_truncated(msgspec.json.decode, text) if text[:1] != b"\xff" else msgspec.json.decode(
            truncate_depth(text)[1:]
        )


def test_a_text_that_no_decoder_follows_down_is_read_but_for_its_depth() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    text = b'{"odd":' + deep + b',"name":"llama"}'
    with pytest.raises(RecursionError):
        msgspec.json.decode(text)
    read = decode_truncated(msgspec.json.decode, text)
    assert (read["name"], depth(read)) == ("llama", MAX_LEVELS)


def test_a_part_of_an_object_that_its_decoder_left_as_text_is_read_as_well() -> None:
    """Whether a decoder can follow a text depends on the stack of its caller."""
    text = '{"x":' * 5000 + "1" + "}" * 5000
    found = decode_truncated(msgspec.json.decode, msgspec.Raw(text.encode()))
    assert depth(found) == MAX_LEVELS


def test_a_job_may_have_64_levels_and_the_65th_is_reported_by_the_field_above_it() -> None:
    deepest = job(nested(MAX_DEPTH - 6))
    assert depth(deepest) == MAX_DEPTH
    assert TrainingJob.model_validate(deepest).model_dump(mode="json", by_alias=True)
    field = ("spec", "roles", 0, "template", "spec", "odd", "x", "x", "x", "x")
    message = "must be nested at most 64 levels deep"
    assert wrong(job(nested(MAX_DEPTH - 5))) == [(field, message)]
    assert wrong(job(nested(50_000))) == [(field, message)]


def test_the_field_is_reported_in_few_characters_however_long_its_names_are() -> None:
    ((place, _),) = wrong(job({"y" * 100_000: nested(MAX_DEPTH)}))
    assert place[6] == "y" * 64 + "..."
    assert sum(len(str(part)) for part in place) < 200


def test_a_template_and_a_flavor_by_themselves_may_be_as_deep_as_in_their_place() -> None:
    template = job(nested(MAX_DEPTH - 6))["spec"]["roles"][0]["template"]
    assert PodTemplate.model_validate(template).spec.containers
    ((place, _),) = wrong({"spec": {**template["spec"], "odd": nested(MAX_DEPTH - 5)}}, PodTemplate)
    assert place[:3] == ("spec", "odd", "x")

    def flavor(odd: Any) -> dict[str, Any]:
        return {"metadata": {"name": "h200"}, "spec": {"tolerations": [{"key": "k", "odd": odd}]}}

    assert depth(flavor(nested(MAX_DEPTH - 4))) == MAX_DEPTH
    assert Flavor.model_validate(flavor(nested(MAX_DEPTH - 4))).spec.tolerations
    ((place, message),) = wrong(flavor(nested(MAX_DEPTH - 3)), Flavor)
    assert place[:4] == ("spec", "tolerations", 0, "odd")
    assert "64 levels" in message


def test_what_an_api_server_keeps_beside_the_spec_is_not_counted() -> None:
    """Managed fields are as deep as the object, plus one level."""
    document = job(nested(MAX_DEPTH - 6))
    document["metadata"]["managedFields"] = [{"fieldsV1": nested(MAX_DEPTH + 4)}]
    assert TrainingJob.model_validate(document).spec.roles
