"""Parquet files written without pyarrow are read by it."""

from __future__ import annotations

import io
import math

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.tracing.collect.parquet import write_parquet

rows = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
    )
)


@given(rows)
def test_any_table_is_read_as_it_was_written(table: list[tuple[str, int, float]]) -> None:
    texts, numbers, floats = (list(column) for column in zip(*table, strict=True)) if table else ([], [], [])
    content = write_parquet({"text": (str, texts), "number": (int, numbers), "float": (float, floats)})
    found = pyarrow.parquet.read_table(io.BytesIO(content))
    assert found.to_pydict() == {"text": texts, "number": numbers, "float": floats}
    assert list(map(str, found.schema.types)) == ["string", "int64", "double"]


@pytest.mark.parametrize("columns", [0, 1, 14, 15, 40])
def test_any_number_of_columns_is_read(columns: int) -> None:
    """Thrift writes lists from 15 elements on in another way."""
    content = write_parquet({f"c{i}": (float, [i, math.inf]) for i in range(columns)})
    found = pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
    assert found == {f"c{i}": [i, math.inf] for i in range(columns)}


def test_a_large_table_is_compressed() -> None:
    names = [f"void at::native::kernel<{i}>" for i in range(10_000)]
    content = write_parquet({"name": (str, names), "calls": (int, [7] * len(names))})
    assert len(content) < 60_000
    assert pyarrow.parquet.read_table(io.BytesIO(content))["name"].to_pylist() == names
