"""Which jobs the podSecurity of their queue keeps from being admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.api.pod_security import PodSecurityLevel, pod_security_message
from muster.api.spec import Queue
from muster.api.validation.queues import nearest_pod_security
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.lru_cache import MAX_ENTRIES, LRUCache


@dataclass(slots=True)
class PodSecurityCheck:
    """`default` is the level of roots that set none."""

    default: PodSecurityLevel
    # Equal messages are one object, because the engine looks at rejections again that are other objects.
    _messages: LRUCache[str, str] = field(default_factory=lambda: LRUCache(MAX_ENTRIES))

    def add_rejections(
        self, rejections: Mapping[str, str], queues: Sequence[Queue], violating: Iterable[CachedJob]
    ) -> Mapping[str, str]:
        """`rejections` (why pods would be refused, by job uid), and those of jobs with templates that their queue
        forbids."""
        by_name = {queue.metadata.name: queue for queue in queues}
        levels = {name: nearest_pod_security(name, by_name) or self.default for name in by_name}
        if all(level == "privileged" for level in levels.values()):
            return rejections
        found = dict(rejections)
        for job in violating:
            queue = job.job.spec.queue
            message = self._message(job, queue, levels.get(queue, "privileged"))
            if message:
                found.setdefault(job.uid, message)
        return found

    def _message(self, job: CachedJob, queue: str, level: PodSecurityLevel) -> str:
        for role, template in job.templates.items():
            forbidden = template.violations.at(level)
            if forbidden:
                message = f"role {role}: {pod_security_message(queue, level, forbidden)}"
                known = self._messages.get(message)
                if known is None:
                    self._messages.put(message, message, len(message))
                return known or message
        return ""
