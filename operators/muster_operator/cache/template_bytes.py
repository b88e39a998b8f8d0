"""How many bytes of pod templates the unfinished jobs of each namespace have, and how many they may have.

Templates that are alike count once in a namespace: they are held once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from muster.lifecycle import is_finished
from muster_operator.cache.cached_job import CachedJob, was_accepted
from muster_operator.cache.specs import SpecTooLarge

MOST_BYTES = 64 * 2**20
"""Of JSON text, in one namespace."""


class TooManyBytes(SpecTooLarge):
    """The templates of a job, and those of all others of its namespace, are more than may be. `sizes`: bytes of its
    own, by the SHA-256 of each text."""

    def __init__(self, message: str, sizes: Mapping[str, int]) -> None:
        super().__init__(message)
        self.sizes = sizes


class TemplateBytes:
    """What unfinished jobs have. `most`: bytes in one namespace."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._users: defaultdict[str, Counter[str]] = defaultdict(Counter)  # jobs by namespace and text
        self._bytes: Counter[str] = Counter()  # by namespace

    def count(self, old: CachedJob | None, new: CachedJob | None) -> None:
        """What was known of a job, and is known of it, or of another of that name."""
        if old is not None and new is not None and _alike(old, new):
            return
        if new is not None:
            self._add(new)
        if old is not None:
            self._remove(old)

    def check(self, known: CachedJob, before: CachedJob | None) -> None:
        """Raises TooManyBytes for a job that no operator has accepted as it is now and that adds bytes beyond what its
        namespace may have. `before`: what is counted of it."""
        status, namespace = known.job.status, known.namespace
        if is_finished(status) or was_accepted(status, known.job.metadata.generation):
            return
        sizes, users = _sizes(known), self._users.get(namespace, Counter())
        freed = _sizes(before) if before is not None else {}
        less = sum(size for text, size in freed.items() if users.get(text) == 1 and text not in sizes)
        more = self._missing(namespace, sizes)
        wanted = self._bytes[namespace] + more - less
        if more > less and wanted > self._most:
            message = (
                f"spec.roles: with this job the pod templates of unfinished jobs in namespace {namespace} would be "
                f"{wanted:,} bytes of JSON, and must be at most {self._most:,}; end or delete jobs of that namespace"
            )
            raise TooManyBytes(message, sizes)

    def fits(self, namespace: str, sizes: Mapping[str, int]) -> bool:
        """Whether a job with such templates may come."""
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
    """Bytes of a job's templates, by text; none of one that has ended."""
    if is_finished(known.job.status):
        return {}
    return {one.text: one.size for one in known.templates.values()}
