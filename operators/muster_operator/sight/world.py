"""Everything we see, put together: the world that the engine decides from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from muster import spec
from muster.cluster import Unreadable, World
from muster.lifecycle import is_admitted, pod_name
from muster_operator.manifests.collector import CollectorChoices, lead
from muster_operator.manifests.run_folder import keeps_run_folder
from muster_operator.sight import small
from muster_operator.sight.admission import Seal, may_be_told
from muster_operator.sight.beats import Beats
from muster_operator.sight.collected import Collected
from muster_operator.sight.documents import Documents
from muster_operator.sight.jobs import Jobs
from muster_operator.sight.known_job import Learned
from muster_operator.sight.known_pod import JobName, KnownPod
from muster_operator.sight.nodes import Nodes
from muster_operator.sight.pods import Pods
from muster_operator.sight.shapes import Namespace, PriorityClass
from muster_operator.sight.specs import Specs
from muster_operator.sight.template_bytes import MOST_BYTES
from muster_operator.sight.templates import Templates

_LAST_WORDS = 10_000
_PATIENCE, _SLACK_S = 3.0, 5.0  # three sweeps without an answer, and what a busy machine takes


@dataclass(frozen=True, slots=True)
class Collectors:
    """What the installation decides of collectors, and how often they are asked."""

    choices: CollectorChoices = CollectorChoices()
    every_s: float = 15.0


class Sight:
    """The sinks of all resources. `changed` is called, often, when the engine would see a difference."""

    def __init__(
        self,
        learned: Learned,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        collectors: Collectors = Collectors(),
        templates: Templates | None = None,
        most_template_bytes: int = MOST_BYTES,
    ) -> None:
        self._clock = clock
        self._with_beats = bool(collectors.choices.image)
        self.nodes = Nodes(changed)
        self._changed = changed
        self.collected = Collected()
        self.pods = Pods(self.nodes.take, lambda uid: changed(), self._named, self._collector_ended, self._admitted)
        self.templates = Templates() if templates is None else templates
        specs = Specs(collectors.choices, self.templates)
        self.jobs = Jobs(learned, self.pods.show, changed, specs, self.pods.of, most_template_bytes)
        self.queues = Documents(spec.Queue, changed)
        self.flavors = Documents(spec.Flavor, changed)
        self.namespaces = small.ByName[Namespace, Mapping[str, str]](small.labels, changed)
        self.priority_classes = small.ByName[PriorityClass, int](small.value, changed)
        self.beats = Beats(_PATIENCE * collectors.every_s + _SLACK_S)
        self._last_words: deque[KnownPod] = deque(maxlen=_LAST_WORDS)  # of pods whose jobs are not known yet

    def observe(self) -> World:
        """The world now. Its parts are not changed afterwards, so that another thread may read them."""
        now = self._clock()
        self._heed_last_words(now)
        self.jobs.looked()
        return World(
            now=now,
            nodes=self.nodes.views(),
            flavors=self.flavors.all(),
            queues=self.queues.all(),
            jobs=self.jobs.shown(),
            pods=self.pods.views(),
            beats=self.beats.shown(self._watched(), now),
            namespaces=self.namespaces.values(),
            priority_classes=self.priority_classes.values(),
            rejections=self.jobs.refusals(),
            unreadable=Unreadable(self.queues.complaints(), self.flavors.complaints()),
        )

    def _named(self, uid: str) -> JobName | None:
        known = self.jobs.known(uid)
        return None if known is None else known.name

    def begin(self, seal: Seal | None) -> None:
        """A term of leading begins, and everything there is has been listed. None: no pod is believed."""
        self.jobs.begin(seal, self.pods.all())

    def is_told(self) -> bool:
        """Whether some pod says that its job is admitted, and the job's status does not."""
        told = (pod.job for pod in self.pods.all() if pod.claim is not None and pod.job is not None)
        known = (self.jobs.known(job.uid) for job in told)
        return any(one is not None and may_be_told(one.written) for one in known)

    def _admitted(self, job: JobName) -> None:
        self.jobs.admitted(job)

    def _collector_ended(self, pod: KnownPod) -> None:
        if not self._heed(pod, self._clock()):
            self._last_words.append(pod)
        self._changed()

    def _heed_last_words(self, now: float) -> None:
        """Those of pods that were listed before their jobs."""
        words, self._last_words = self._last_words, deque(maxlen=_LAST_WORDS)
        self._last_words += (pod for pod in words if not self._heed(pod, now) and self.pods.is_there(pod))

    def _heed(self, pod: KnownPod, now: float) -> bool:
        """Count what was collected; the checkpoint of the pod that speaks for its job is news, if it outlives the pod.
        False: its job is not known."""
        known, view, ending = self.jobs.known(pod.job.uid) if pod.job is not None else None, pod.view, pod.ending
        if known is None or view is None or ending is None:
            return False
        if self._named(known.uid) != pod.job:
            return True  # of a pod that only says it is the job's
        seat, speaker = (view.role, view.index), lead(known.job.spec)
        if known.job.spec.trace is not None:
            self.collected.ended(known.uid, seat, ending.traces)
        if ending.checkpoint is not None and seat == (speaker.name, 0) and keeps_run_folder(speaker):
            self.beats.ended(known.uid, pod.name, ending.checkpoint, now)
        return True

    def _watched(self) -> Iterator[tuple[str, str]]:
        """Jobs that may not stand still, and the pod that speaks for each."""
        for job in self.jobs.shown() if self._with_beats else ():
            if job.spec.stall_timeout_seconds is not None and is_admitted(job.status):
                meta = job.metadata
                yield meta.uid, pod_name(meta.name, meta.uid, lead(job.spec).name, 0, job.status.attempt)
