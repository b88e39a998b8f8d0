"""Limits the bytes of pod templates of the unfinished jobs in each namespace.

Equal templates in a namespace count once, as they are stored once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from muster.workload.conditions import is_finished
from muster_operator.cache.cached_job import CachedJob, was_accepted
from muster_operator.cache.specs import SpecTooLarge

MOST_BYTES = 64 * 2**20
"""Bytes of JSON text in one namespace."""


class TooManyBytes(SpecTooLarge):
    """The templates of a job exceed what its namespace has left. `sizes`: its bytes by the SHA-256 of each text."""

    def __init__(self, message: str, sizes: Mapping[str, int]) -> None:
        super().__init__(message)
        self.sizes = sizes


class TemplateBytes:
    """Bytes in use by unfinished jobs. `most`: limit of a namespace."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._users: defaultdict[str, Counter[str]] = defaultdict(Counter)  # jobs by namespace and text
        self._bytes: Counter[str] = Counter()  # by namespace

    def count(self, old: CachedJob | None, new: CachedJob | None) -> None:
        """Account for a job that replaces another of that name, or none; None: absent."""
        if old is not None and new is not None and _alike(old, new):
            return
        if new is not None:
            self._add(new)
        if old is not None:
            self._remove(old)

    def check(self, known: CachedJob, before: CachedJob | None) -> None:
        """Raises TooManyBytes for a job whose present spec was not accepted and that adds bytes beyond the limit of its
        namespace. `before`: the job that is counted now."""
        status, namespace = known.job.status, known.namespace
        if is_finished(status) or was_accepted(status, known.job.metadata.generation):
            return
        sizes, users = _sizes(known), self._users.get(namespace, Counter())
        freed = _sizes(before) if before is not None else {}
        less = sum(size for text, size in freed.items() if users.get(text) == 1 and text not in sizes)
        more = self._missing(namespace, sizes)
        total = self._bytes[namespace] + more - less
        if more > less and total > self._most:
            message = (
                f"spec.roles: with this job the pod templates of unfinished jobs in namespace {namespace} would be "
                f"{total:,} bytes of JSON, and must be at most {self._most:,}; end or delete jobs of that namespace"
            )
            raise TooManyBytes(message, sizes)

    def fits(self, namespace: str, sizes: Mapping[str, int]) -> bool:
        """Whether a job with such templates fits."""
        return self._bytes[namespace] + self._missing(namespace, sizes) <= self._most

    def _missing(self, namespace: str, sizes: Mapping[str, int]) -> int:
        users = self._users.get(namespace, Counter())
        return sum(size for text, size in sizes.items() if text not in users)

    def _add(self, known: CachedJob) -> None:
        for text, size in _sizes(known).items():
            if text not in self._users[known.namespace]:
                self._bytes[known.namespace] += size
            self._users[known.namespace][text] += 1

    def _remove(self, known: CachedJob) -> None:
        namespace, users = known.namespace, self._users[known.namespace]
        for text, size in _sizes(known).items():
            users[text] -= 1
            if not users[text]:
                del users[text]
                self._bytes[namespace] -= size
        if not users:
            del self._users[namespace], self._bytes[namespace]


def _alike(old: CachedJob, new: CachedJob) -> bool:
    return old.templates is new.templates and is_finished(old.job.status) == is_finished(new.job.status)


def _sizes(known: CachedJob) -> dict[str, int]:
    """Bytes of a job's templates by text; empty for a finished job."""
    if is_finished(known.job.status):
        return {}
    return {one.text: one.size for one in known.templates.values()}
