"""An array: a TrainingJob of many gangs that differ in their index only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, model_validator

from muster.api.spec.fields import StatusModel, StrictModel, Time

MAX_INDICES = 10_000
MAX_PARALLELISM = 500
MAX_INDEX_DIGITS = 5
ARRAY_NAME_LENGTH = 1 + MAX_INDEX_DIGITS
"""What the index may add to the names of pods."""
_RANGE = "[0-9]{1,5}(-[0-9]{1,5})?"
_RANGES = f"{_RANGE}(,{_RANGE})*"


def index_ranges(text: str) -> Iterator[tuple[int, int]]:
    """The ranges (first, last) of a text such as "0-3,7"."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


@lru_cache(maxsize=64)  # a set of 10,000 takes 0.7 MB, and each index that ends makes a new text
def index_set(text: str) -> frozenset[int]:
    """The indices of a text such as "0-3,7"."""
    return frozenset(index for first, last in index_ranges(text) for index in range(first, last + 1))


def format_indices(indices: Iterable[int]) -> str:
    """The shortest text of these indices, such as "0-3,7"."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class ArraySpec(StrictModel):
    """The indices of an array, each of which is a gang of its own with the roles of the job."""

    indices: Annotated[str, Field(pattern=f"^{_RANGES}$", max_length=1000)]
    """Indices and ranges of them, such as "0-99" or "1,5-8": at most 10,000, each at most 99999."""
    parallelism: Annotated[int, Field(ge=1, le=MAX_PARALLELISM)] = MAX_PARALLELISM
    """Maximum number of indices that are queued or run at the same time. Indices with many pods may be fewer, so that
    the status stays small."""
    cancel: Annotated[str, Field(pattern=f"^({_RANGES})?$", max_length=1000)] = ""
    """Indices that are cancelled: those that run are stopped, others do not start."""
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    """Raise it to run all indices again that have failed until then."""

    @model_validator(mode="after")
    def _indices_can_be_counted(self) -> ArraySpec:
        for field in ("indices", "cancel"):
            ranges = tuple(index_ranges(getattr(self, field)))
            if any(last < first for first, last in ranges):
                raise ValueError(f"{field}: the last index of a range must not be below its first one")
            if sum(last - first + 1 for first, last in ranges) > MAX_INDICES:
                raise ValueError(f"{field}: must be at most {MAX_INDICES} indices")
        return self

    @property
    def index_count(self) -> int:
        return len(index_set(self.indices))


class IndexFailure(StatusModel):
    """An index that has failed."""

    index: int
    """The index."""
    message: str = ""
    """Why."""
    at: Time | None = None
    """When."""


_OpaqueStatus = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]


class ArrayStatus(StatusModel):
    """The indices of an array: ended ones as ranges such as "0-3,7"."""

    succeeded: str = ""
    """Indices that have succeeded."""
    failed: str = ""
    """Indices that have failed."""
    cancelled: str = ""
    """Indices that were cancelled."""
    active: dict[str, _OpaqueStatus] = {}
    """By index, the status of those that were admitted or have waited again and have not ended, in a compact form of
    the status of a job."""
    first_attempt: int = 0
    """Number of the first attempt of an index that has not started. Raised by a retry."""
    highest_attempt: int = 0
    """The highest attempt of an index that has ended."""
    retries: int = 0
    """`spec.array.retries` as far as it was handled."""
    failures: list[IndexFailure] = []
    """The last failures, at most 10."""
