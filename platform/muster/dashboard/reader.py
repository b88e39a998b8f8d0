"""Reads the read API for all pages and all browsers of one dashboard: answers of the last second are shared."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from muster.errors import MusterError
from muster.visibility.list_types import ItemList
from muster.visibility.reader import Listing, decode, read_list
from muster.visibility.requests import CURVES, RESOURCES
from muster.visibility.types import BASE_PATH, DataSource, JobCurve, JobSummary, NodeSummary

_REST = 10.0  # times as long as a read took
MAX_AGE_S = 0.8
"""Less than the period of live updates, so that each sees new answers. Together they are less than the two seconds in
which a change is on the page."""
L = TypeVar("L", bound=ItemList)
T = TypeVar("T")
_PLURALS: dict[type[BaseModel], str] = {
    resource.page: resource.plural for resource in RESOURCES.values() if resource.page
}


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[T]):
    """What was read, or why it could not be; for a page that is of use without it."""

    value: T | None
    error: str = ""


def try_read(read: Callable[[], T]) -> ReadResult[T]:
    """The result of `read`, or its `MusterError` as text."""
    try:
        return ReadResult(read())
    except MusterError as error:
        return ReadResult(None, str(error))


@dataclass(frozen=True, slots=True)
class _Answer:
    outdated_at: float
    answer: Future[Any]


class PageReader:
    """`read` answers the path and query of a URL of the read API with decoded JSON. Thread-safe. Methods raise as it
    does, and `ClusterError` WrongVersion."""

    def __init__(self, read: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}  # by URL
        self.source: DataSource | None = None
        """Which process answered last."""

    def for_one_page(self) -> PageReader:
        """One with the same answers and a `source` of its own: that of what this page has read."""
        found = copy.copy(self)
        found.source = None
        return found

    def page(
        self,
        kind: type[L],
        *,
        limit: int,
        after: str = "",
        namespace: str | None = None,
        selector: Mapping[str, str] | None = None,
        sort: str = "",
    ) -> L:
        """One page of a list; `after` is `metadata.continue` of the page before."""
        query = {"limit": str(limit)} | ({"continue": after} if after else {}) | ({"sort": sort} if sort else {})
        if selector:
            query["fieldSelector"] = ",".join(f"{field}={value}" for field, value in selector.items())
        prefix = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        found = cast(L, self._shared(f"{prefix}/{_PLURALS[kind]}?{urlencode(query)}", lambda data: decode(kind, data)))
        self.source = found.source
        return found

    def all(self, kind: type[ItemList]) -> Listing[Any]:
        """A whole list, all its pages."""
        found = read_list(
            lambda url: self._shared(url.removeprefix(BASE_PATH), lambda data: data), _PLURALS[kind], kind
        )
        self.source = found.source
        return found

    def node(self, name: str) -> NodeSummary:
        return cast(NodeSummary, self._shared(f"/nodes/{quote(name, safe='')}", lambda data: decode(NodeSummary, data)))

    def job(self, name: str, namespace: str) -> JobSummary:
        """One job with conditions and placement."""
        path = f"/namespaces/{quote(namespace, safe='')}/jobs/{quote(name, safe='')}"
        return cast(JobSummary, self._shared(path, lambda data: decode(JobSummary, data)))

    def curve(self, name: str, namespace: str) -> JobCurve:
        """Loss and step time of a job that runs."""
        path = f"{BASE_PATH}/namespaces/{quote(namespace, safe='')}/{CURVES}/{quote(name, safe='')}"
        return decode(JobCurve, self._read(path))

    def remember(self, key: str, read: Callable[[], T], max_age_s: float, rest: float = _REST) -> T:
        """The result of `read`, which may ask for something else than the read API; of at most `max_age_s` ago.
        A slow result, unless it is an error, is kept for `rest` times as long as `read` took."""
        return cast(T, self._remember(f"other {key}", read, max_age_s, rest=rest))

    def _shared(self, path: str, decoded: Callable[[Any], Any]) -> Any:
        """The decoded answer, of at most `MAX_AGE_S`."""
        return self._remember(path, lambda: decoded(self._read(f"{BASE_PATH}{path}")), MAX_AGE_S)

    def _remember(self, key: str, read: Callable[[], Any], max_age_s: float, rest: float = 0.0) -> Any:
        """Threads that ask for the same at the same time wait for one `read`."""
        now = self._clock()
        with self._lock:
            known = self._answers.get(key)
            if known is not None and (not known.answer.done() or now < known.outdated_at):
                answer, is_mine = known.answer, False
            else:
                old = [one for one, kept in self._answers.items() if kept.answer.done() and now >= kept.outdated_at]
                for one in old:
                    del self._answers[one]
                answer, is_mine = Future[Any](), True
                self._answers[key] = _Answer(now + max_age_s, answer)
        if is_mine:
            found, error = None, None
            try:
                found = read()
            except BaseException as raised:
                error = raised
            ended = self._clock()
            # An API server that did not answer for a minute is asked again at once, not after ten.
            rested_at = ended + rest * (ended - now) if error is None else ended
            self._answers[key] = _Answer(max(now + max_age_s, rested_at), answer)
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)
        return answer.result()
