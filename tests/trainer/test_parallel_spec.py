"""`--parallel`: meshes of a number of ranks, and errors that name what is valid."""

from __future__ import annotations

import pytest

from muster_components.trainer.errors import InputError
from muster_components.trainer.parallel.spec import MeshShape, parse_parallel


@pytest.mark.parametrize(
    ("text", "ranks", "shape"),
    [
        ("fsdp", 8, MeshShape(shard=8)),
        ("fsdp", 1, MeshShape()),
        ("fsdp=4", 4, MeshShape(shard=4)),
        ("ddp", 8, MeshShape(data="ddp", replicate=8)),
        ("hsdp=2x4", 8, MeshShape(data="hsdp", replicate=2, shard=4)),
        ("tp=2", 8, MeshShape(tp=2, shard=4)),
        ("pp=2,tp=2,fsdp=2", 8, MeshShape(pp=2, tp=2, shard=2)),
        ("pp=2, hsdp=2x2", 8, MeshShape(data="hsdp", pp=2, replicate=2, shard=2)),
        ("ddp,tp=4", 8, MeshShape(data="ddp", replicate=2, tp=4)),
    ],
)
def test_a_mesh_has_all_ranks(text: str, ranks: int, shape: MeshShape) -> None:
    assert parse_parallel(text).shape(ranks) == shape
    assert shape.world_size == ranks


def test_a_mesh_is_printed_as_it_is_given() -> None:
    for text in ("fsdp=4", "ddp=2", "pp=2,tp=2,fsdp=2", "hsdp=2x4", "tp=2"):
        spec = parse_parallel(text)
        ranks = {"fsdp=4": 4, "ddp=2": 2, "tp=2": 2}.get(text, 8)
        assert str(spec.shape(ranks)) == text
    assert str(parse_parallel("fsdp").shape(1)) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list of fsdp or fsdp=N, hsdp=RxS, ddp or ddp=N, tp=N, pp=N; got ''"),
        ("zero", "got 'zero'"),
        ("fsdp=two", "must be a list of fsdp or fsdp=N; got 'fsdp=two'"),
        ("fsdp=", "got 'fsdp='"),
        ("tp", "must be a list of tp=N; got 'tp'"),
        ("hsdp", "must be a list of hsdp=RxS; got 'hsdp'"),
        ("hsdp=4", "must be a list of hsdp=RxS; got 'hsdp=4'"),
        ("tp=0", "sizes must be at least 1; got 'tp=0'"),
        ("tp=2,tp=2", "must name tp once"),
        ("fsdp,ddp", "must name one of fsdp, hsdp and ddp"),
    ],
)
def test_an_invalid_value_is_refused_with_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_parallel(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        ("fsdp=4", 2, "--parallel fsdp=4 needs 4 ranks; got 2"),
        ("tp=2,fsdp=2", 8, "--parallel tp=2,fsdp=2 needs 4 ranks; got 8"),
        ("hsdp=2x2", 2, "--parallel hsdp=2x2 needs 4 ranks; got 2"),
        ("tp=3", 4, "--parallel tp=3,fsdp needs a multiple of 3 ranks; got 4"),
        ("tp=4", 2, "needs a multiple of 4 ranks; got 2"),
    ],
)
def test_another_number_of_ranks_is_refused(text: str, ranks: int, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_parallel(text).shape(ranks)
    assert message in str(refused.value)
