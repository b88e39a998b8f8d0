"""Cache of TrainingJobs, and which of them the engine sees.

A job becomes visible once dry runs have shown what its pods really request, because defaults, overhead and injected
sidecars use capacity too. Until then it is not part of the ObservedState. A visible job whose templates are edited is
not admitted before the new dry runs end.

A job that has capacity or a nomination from an earlier leader is visible at once, as written, so that its capacity is
not given away twice. If it loses that capacity before its dry runs end it stays visible, so that its status counts and
its last pods stop. The same holds for a job with capacity that is edited into a form that cannot be read: it stays
visible as it was before the edit, and is not admitted again.

A new job whose templates exceed the limit of its namespace is treated like one that cannot be read (`template_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.kinds.trainingjob.adapter import TrainingJobWorkload, reuse
from muster.kinds.trainingjob.array_workloads import ArrayView, array_view
from muster.kinds.trainingjob.arrays import index_job, index_key, split_index_key
from muster.kube.objects import RawCustomObject
from muster.model import Resources
from muster.workload.conditions import is_finished
from muster_operator.cache.cached_job import CachedJob, DryRunResult, PodRequirements, holds_capacity
from muster_operator.cache.job_reader import InvalidJob, JobReader, invalid_job, read_metadata
from muster_operator.cache.mutation_cache import MutationCache, WatchedCache
from muster_operator.cache.specs import SpecCache
from muster_operator.cache.template_bytes import MOST_BYTES, TemplateBytes

_DRY_RUN_PENDING = "waiting for a server-side dry run of its pods"


@dataclass(slots=True)
class _Entry:
    """A job as written, and what the engine sees of it. `complete_spec`: its written spec when it was last visible with
    its dry-run results; `undecided`: visible, and without any status; `rejection`: why its pods would be rejected."""

    known: CachedJob
    visible: TrainingJobWorkload | None = None
    complete_spec: spec.TrainingJobSpec | None = None
    view: ArrayView | None = None  # of an array, with its indices
    indices: dict[int, tuple[object, CachedJob]] = field(default_factory=dict)
    awaits_dry_run: bool = False
    undecided: bool = False
    rejection: str | None = None

    def index(self, index: int) -> CachedJob | None:
        """An index of the array, as it is known now; None if the array does not have it."""
        workload = None if self.view is None else self.view.indices.get(index)
        cached = self.indices.get(index)
        if cached is not None and cached[0] is workload and cached[1].array is self.known:
            return cached[1]
        job = index_job(self.known.job, index) if workload is None else workload.job
        if job is None:
            return None
        found = CachedJob(
            job.model_copy(update={"spec": self.known.job.spec}), self.known.templates, b"", None, array=self.known
        )
        if workload is not None:
            self.indices[index] = workload, found
        return found


class JobCache(WatchedCache[CachedJob]):
    """Event handler and cache of TrainingJobs. `set_visible(uid, visible)` is called when visibility changes, `changed`
    on any change, `on_status` with every new state of a job, `on_removed` with the last one."""

    def __init__(
        self,
        requirements: PodRequirements,
        set_visible: Callable[[str, bool], None],
        changed: Callable[[], None],
        specs: SpecCache,
        most_template_bytes: int = MOST_BYTES,
        on_status: Callable[[spec.TrainingJob], None] = lambda job: None,
        on_removed: Callable[[spec.TrainingJob], None] = lambda job: None,
    ) -> None:
        self._on_status = on_status
        self._on_removed = on_removed
        self._requirements = requirements
        self._set_visible = set_visible
        self._changed = changed
        self._reader = JobReader(specs)
        self._cache = MutationCache[CachedJob](self._on_change)
        self._by_uid: dict[str, _Entry] = {}
        self._unobserved: set[str] = set()  # undecided jobs that are new since `mark_observed`
        self.decided_count = 0  # jobs decided on for the first time, in total
        self._uids_by_template: dict[tuple[str, str], set[str]] = {}  # uids by namespace and template
        self._rejections: dict[str, str] | None = None
        self._violating: dict[str, CachedJob] = {}
        self._bytes = TemplateBytes(most_template_bytes)
        self.invalid: dict[str, InvalidJob] = {}  # jobs that cannot be read, by NAMESPACE/NAME

    # ---- events of watches

    def on_list(self, keys: set[str], version: int) -> None:
        for deleted in self.invalid.keys() - keys:
            self._clear_invalid(deleted)
        super().on_list(keys, version)

    def on_upsert(self, item: RawCustomObject) -> None:
        key = item.metadata.key
        if not self._cache.is_newer(key, item.metadata.version):
            return
        before = self._cache.get(key)
        try:
            known = self._reader.read(item, before)
            self._bytes.check(known, before)
        except Exception as error:  # not only pydantic's: no document may hide other jobs
            self._set_invalid(key, item, before, error)
            return
        if self.invalid.pop(key, None) is not None and before is not None:
            self._reject(before.uid, None)  # the invalid edit came first
        self._cache.upsert(key, item.metadata.version, known)

    def _set_invalid(self, key: str, item: RawCustomObject, before: CachedJob | None, error: Exception) -> None:
        """Record that the job cannot be read. One with capacity keeps it and stays visible as it was before the edit,
        also after it loses the capacity (see `_update_visibility`)."""
        was_invalid = key in self.invalid
        one = self.invalid[key] = invalid_job(item, read_metadata(item), error)
        same = before is not None and before.uid == one.metadata.uid
        kept: CachedJob | None = None
        if before is not None and same and one.status is not None:
            meta = one.metadata.model_copy(update={"generation": before.job.metadata.generation})
            job = before.job.model_copy(update={"metadata": meta, "status": one.status})
            kept = replace(before, job=job, spec_digest=b"", status_text=None, written_status=None)
        if kept is None or not (was_invalid or holds_capacity(kept.job.status)):
            self._cache.delete(key, item.metadata.version)
        else:
            self._cache.upsert(key, item.metadata.version, kept)
        self._changed()

    def fits_now(self, one: InvalidJob) -> bool:
        """Whether a job over the limit of its namespace now fits."""
        if not one.sizes or one.status is None or one.metadata.uid in self._by_uid:
            return False
        return self._bytes.fits(one.metadata.namespace or "default", one.sizes)

    def on_read(self, item: RawCustomObject) -> None:
        """A GET returned the job; watches may have delivered newer states."""
        if not self._cache.is_deleted(item.metadata.key, item.metadata.version):
            self.on_upsert(item)

    def on_delete(self, item: RawCustomObject) -> None:
        self._clear_invalid(item.metadata.key)
        super().on_delete(item)

    # ---- our own writes

    def on_status_written(self, uid: str, status: spec.QueueingStatus, version: int, queue: str = "") -> None:
        known = self.get(uid)
        if known is None:
            return
        meta = known.job.metadata.model_copy(update={"resource_version": str(version)})
        job = known.job.model_copy(update={"metadata": meta, "status": status})
        self._cache.on_written(known.key, version, replace(known, job=job, status_text=None, written_status=None))

    def assume_status(self, uid: str, status: spec.QueueingStatus) -> None:
        """Our write of an admission has no answer: the job counts as admitted until `end_assumption`, or until the
        watch delivers a newer state, which excludes that the write is executed later."""
        known = self.get(uid)
        if known is not None:
            job = known.job.model_copy(update={"status": status})
            self._cache.replace(known.key, replace(known, job=job, status_text=None, written_status=known.job.status))

    def end_assumption(self, uid: str) -> None:
        known = self.get(uid)
        if known is not None and known.written_status is not None:
            job = known.job.model_copy(update={"status": known.written_status})
            self._cache.replace(known.key, replace(known, job=job, written_status=None))

    def on_reported(self, key: str, before: InvalidJob, reported: InvalidJob) -> None:
        """Our report of an invalid job was written: replace `before` by `reported`, unless a watch has delivered a
        newer state or a deletion."""
        if self.invalid.get(key) is before:
            self.invalid[key] = reported

    def on_dry_run_result(self, namespace: str, digest: str) -> None:
        """A dry run of a template has a result."""
        for uid in tuple(self._uids_by_template.get((namespace, digest), ())):
            self._update_visibility(self._by_uid[uid])

    def refresh_dry_runs(self) -> None:
        """Repeat dry runs that failed or are old, for jobs that wait.

        A job with capacity keeps the result from before its admission: its pods were created with it.
        """
        for entry in self._by_uid.values():
            status = entry.known.job.status
            if entry.rejection is not None or not (holds_capacity(status) or is_finished(status)):
                self._requirements.request(entry.known, self.on_dry_run_result)

    # ---- what the engine sees

    def workloads(self) -> tuple[TrainingJobWorkload, ...]:
        """All visible jobs, as the engine sees them."""
        return tuple(self._workloads())

    def _workloads(self) -> Iterator[TrainingJobWorkload]:
        for entry in self._by_uid.values():
            if entry.view is not None:
                yield from entry.view.workloads()
            elif entry.visible is not None:
                yield entry.visible

    def visible(self) -> tuple[spec.TrainingJob, ...]:
        return tuple(one.job for one in self.workloads())

    def admitted_request(self, known: CachedJob, role: str) -> Resources:
        """What is charged for one pod of this role of a job, with what the API server adds to the template."""
        entry = self._by_uid.get(split_index_key(known.uid)[0])  # None: it was deleted meanwhile
        roles = () if entry is None or entry.visible is None else entry.visible.job.spec.roles
        found = (pod_request(one.template.spec) for one in roles if one.name == role)
        return next(found, known.templates[role].request)

    def rejections(self) -> Mapping[str, str]:
        """Why pods of visible jobs would be rejected, by uid; the same mapping until something changes."""
        if self._rejections is None:
            rejected = [(uid, one) for uid, one in self._by_uid.items() if one.rejection is not None]
            self._rejections = {
                key: entry.rejection or ""
                for uid, entry in rejected
                for key in (uid, *(index_key(uid, one) for one in (entry.view.indices if entry.view else ())))
            }
        return self._rejections

    def violating(self) -> Iterable[CachedJob]:
        """Jobs with a template that some Pod Security Standard forbids."""
        return self._violating.values()

    def has_unobserved(self) -> bool:
        """Whether a job became visible since `mark_observed`."""
        return bool(self._unobserved)

    def mark_observed(self) -> None:
        """Note that all visible jobs are part of a scheduling cycle."""
        self._unobserved.clear()

    def get(self, uid: str) -> CachedJob | None:
        """A job as written, or an index of an array."""
        uid, index = split_index_key(uid)
        entry = self._by_uid.get(uid)
        if entry is None or index is None:
            return None if entry is None else entry.known
        return entry.index(index)

    def status_of(self, one: InvalidJob) -> spec.TrainingJobStatus | None:
        """The newest status of a job that cannot be read, including our own writes; None where the status cannot be
        read."""
        known = self.get(one.metadata.uid)
        return one.status if known is None else known.job.status

    def all(self) -> Iterable[CachedJob]:
        """All jobs, visible or not, and the indices of arrays that are queued or run."""
        for entry in self._by_uid.values():
            yield entry.known
            for index in entry.view.indices if entry.view is not None else ():
                if (found := entry.index(index)) is not None:
                    yield found

    def on_index_ended(self, known: CachedJob, status: spec.TrainingJobStatus) -> None:
        """An index has ended: the durable record of usage gets what it was charged for as that of a job that was
        deleted."""
        self._on_removed(known.job.model_copy(update={"status": status}))

    # ---- internals

    def _on_change(self, key: str, old: CachedJob | None, new: CachedJob | None) -> None:
        self._bytes.count(old, new)
        same = old is not None and new is not None and new.uid == old.uid
        same_templates = (
            old is not None and new is not None and new.templates is old.templates
        )  # also of a job that was deleted and created again
        if old is not None and not same:
            self._remove(old.uid)
            unreadable = self.invalid.get(key)
            if unreadable is None or unreadable.metadata.uid != old.uid:  # else it exists, and its usage has not ended
                self._on_removed(old.job)
        if old is not None and not (same and same_templates):
            for used in _template_keys(old):
                self._uids_by_template[used].discard(old.uid)
                if not self._uids_by_template[used]:
                    del self._uids_by_template[used]
        if new is not None:
            self._on_status(new.job)
            if any(template.violations.restricted for template in new.templates.values()):
                self._violating[new.uid] = new
            else:
                self._violating.pop(new.uid, None)
            entry = self._by_uid.setdefault(new.uid, _Entry(new))
            entry.known = new
            for used in () if same and same_templates else _template_keys(new):
                self._uids_by_template.setdefault(used, set()).add(new.uid)
            self._update_visibility(entry)

    def _update_indices(self, entry: _Entry, shown: spec.TrainingJob) -> None:
        """Show the indices that are queued or run, and their pods."""
        uid, before = entry.known.uid, entry.view.indices.keys() if entry.view is not None else set[int]()
        entry.view = array_view(shown, entry.view)
        for index in before - entry.view.indices.keys():
            self._set_visible(index_key(uid, index), False)
            entry.indices.pop(index, None)
        for index in entry.view.indices.keys() - before:
            self._set_visible(index_key(uid, index), True)
        if entry.rejection is not None and before != entry.view.indices.keys():
            self._rejections = None

    def _remove(self, uid: str) -> None:
        self._reject(uid, None)
        view = self._by_uid[uid].view
        for index in view.indices if view is not None else ():
            self._set_visible(index_key(uid, index), False)
        self._violating.pop(uid, None)
        self._unobserved.discard(uid)
        if self._by_uid[uid].visible is not None:
            self._set_visible(uid, False)
        del self._by_uid[uid]
        self._changed()  # also for a job that was not visible: its queue may have waited for it

    def _clear_invalid(self, key: str) -> None:
        if self.invalid.pop(key, None) is not None:
            self._changed()

    def _update_visibility(self, entry: _Entry) -> None:
        """Make the job visible once all its dry runs have results.

        A visible job stays visible, always with its newest status, our own writes included. It is not admitted by a
        spec whose dry runs are missing, nor again by one from before an edit that cannot be read.
        """
        known, before = entry.known, entry.visible
        uid, job = known.uid, known.job
        results = {role: self._requirements.result(known.namespace, one) for role, one in known.templates.items()}
        unknown = not is_finished(job.status) and self._needs_dry_run(entry, results)
        if not unknown:
            entry.awaits_dry_run = False
        elif not entry.awaits_dry_run:
            entry.awaits_dry_run = True
            self._requirements.request(known, self.on_dry_run_result)
        waits = unknown and not holds_capacity(job.status)
        if waits and before is None:
            return
        settled = before is not None and entry.complete_spec is job.spec
        rejections = [result.rejection for result in results.values() if result is not None and result.rejection]
        reason = self._invalid_reason(known)
        if reason is not None:
            self._reject(uid, reason)
        elif not (waits and settled):
            self._reject(uid, rejections[0] if rejections else _DRY_RUN_PENDING if waits else None)
        if before is not None and settled and (waits or holds_capacity(job.status)):
            shown = job.model_copy(update={"spec": before.job.spec})
        else:
            shown = self._reader.with_effective_pods(job, results)
        entry.visible = reuse(before, shown)
        if shown.spec.array is not None:
            self._update_indices(entry, shown)
        if not entry.awaits_dry_run:
            entry.complete_spec = job.spec
        if job.status.submitted_at is None:
            if not entry.undecided:
                self._unobserved.add(uid)
            entry.undecided = True
        elif entry.undecided:
            entry.undecided = False
            self.decided_count += 1
        if before is None:
            self._set_visible(uid, True)
        self._changed()

    def _invalid_reason(self, known: CachedJob) -> str | None:
        """Why it is not admitted again: its spec is from before an edit that cannot be read. Also set while the job has
        capacity, because it may lose it and be placed again within one cycle; a nomination may still be used."""
        one, status = self.invalid.get(known.key) if self.invalid else None, known.job.status
        if one is None or one.metadata.uid != known.uid or status.nomination is not None or is_finished(status):
            return None
        return f"it cannot be read: {one.error}"

    def _needs_dry_run(self, entry: _Entry, results: Mapping[str, DryRunResult | None]) -> bool:
        """Whether a dry run is missing; for a visible job, the results that it became visible with count."""
        if None in results.values():
            return True
        known = entry.known
        new = entry.visible is None and not holds_capacity(known.job.status)
        return new and not all(self._requirements.is_fresh(known.namespace, one) for one in known.templates.values())

    def _reject(self, uid: str, rejection: str | None) -> None:
        entry = self._by_uid[uid]
        if entry.rejection != rejection:
            entry.rejection = rejection
            self._rejections = None
            self._changed()


def _template_keys(known: CachedJob) -> set[tuple[str, str]]:
    return {(known.namespace, template.digest) for template in known.templates.values()}
