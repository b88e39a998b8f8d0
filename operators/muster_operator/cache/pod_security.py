"""Which jobs the podSecurity of their queue keeps from being admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.api.pod_security import PodSecurityLevel, pod_security_message
from muster.api.spec import Queue
from muster.api.validation.queues import nearest_pod_security
from muster.state.projection import same_objects
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.lru_cache import MAX_ENTRIES, LRUCache


@dataclass(slots=True)
class PodSecurityCheck:
    """`default` is the level of roots that set none."""

    default: PodSecurityLevel
    _queues: tuple[object, ...] = ()  # their names and specs, for which `_levels` has the levels by name
    _levels: Mapping[str, PodSecurityLevel] = field(default_factory=dict)
    # Equal messages are one object, because the engine looks at rejections again that are other objects.
    _messages: LRUCache[tuple[str, ...], str] = field(default_factory=lambda: LRUCache(MAX_ENTRIES))

    def add_rejections(
        self, rejections: Mapping[str, str], queues: Sequence[Queue], violating: Iterable[CachedJob]
    ) -> Mapping[str, str]:
        """`rejections` (why pods would be refused, by job uid), and those of jobs with templates that their queue
        forbids."""
        known = tuple(item for queue in queues for item in (queue.spec, queue.metadata.name))
        if not same_objects(known, self._queues):
            by_name = {queue.metadata.name: queue for queue in queues}
            self._levels = {name: nearest_pod_security(name, by_name) or self.default for name in by_name}
            self._queues = known
        if all(level == "privileged" for level in self._levels.values()):
            return rejections
        found = dict(rejections)
        for job in violating:
            queue = job.job.spec.queue
            message = self._message(job, queue, self._levels.get(queue, "privileged"))
            if message:
                found.setdefault(job.uid, message)
        return found

    def _message(self, job: CachedJob, queue: str, level: PodSecurityLevel) -> str:
        for role, template in job.templates.items():
            forbidden = template.violations.at(level)
            if forbidden:
                key = (queue, level, role, forbidden)
                message = self._messages.get(key)
                if message is None:
                    message = f"role {role}: {pod_security_message(queue, level, forbidden)}"
                    self._messages.put(key, message, len(message))
                return message
        return ""
