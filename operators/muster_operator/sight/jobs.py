"""TrainingJobs as the engine sees them.

A job is shown once it is known what its pods really ask for (`dryrun`): defaults, overhead and sidecars that the API
server adds take up room too. Until then it is as if it had not come yet; one that is shown and whose templates are
edited gets no room until they are known. One that an earlier leader has given room, or promised some, is shown at once,
as it was written: else its room would be given away a second time. If it loses that room before its templates are
known, it is shown on: what was written of it counts, and its last pods stop. So it is with one that is edited into
something that cannot be read while it has room: it is shown as it was before that edit, and gets no room by it again.

Where a pod tells of its job's admission and the status does not yet, the pod counts (`claims`). A new job whose
templates are more than its namespace may have is put aside like one that cannot be read (`template_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from muster import spec
from muster.lifecycle import is_finished
from muster_operator.sight.admission import Seal
from muster_operator.sight.claims import Claims
from muster_operator.sight.known_job import KnownJob, Learned, Verdict, has_room
from muster_operator.sight.known_pod import JobName, KnownPod
from muster_operator.sight.reading import Reader, read_metadata
from muster_operator.sight.shapes import Job
from muster_operator.sight.shelf import Shelf
from muster_operator.sight.specs import Specs
from muster_operator.sight.template_bytes import MOST_BYTES, TemplateBytes
from muster_operator.sight.unreadable import Unreadable, unreadable

_NOT_TRIED = "its pods have not been tried yet: the API server has not said what they ask for"


class Jobs:
    """A sink for TrainingJobs. `show(uid, shown)` is told who appears and goes, `changed` that anything differs."""

    def __init__(
        self,
        learned: Learned,
        show: Callable[[str, bool], None],
        changed: Callable[[], None],
        specs: Specs,
        pods_of: Callable[[JobName], Iterable[KnownPod]] = lambda job: (),
        most_template_bytes: int = MOST_BYTES,
    ) -> None:
        self._learned = learned
        self._show = show
        self._changed = changed
        self._reader = Reader(specs)
        self._shelf = Shelf[KnownJob](self._note)
        self._by_uid: dict[str, KnownJob] = {}
        self._shown: dict[str, spec.TrainingJob] = {}
        self._unlearned: set[str] = set()
        self._undecided: set[str] = set()
        self._unseen: set[str] = set()
        self.served = 0  # how many were decided about for the first time
        self._settled: dict[
            str, spec.TrainingJobSpec
        ] = {}  # what was written when a job was last shown as it really is
        self._users: dict[tuple[str, str], set[str]] = {}  # uids by namespace and template
        self._rejected: dict[str, str] = {}
        self._refusals: dict[str, str] | None = None
        self._claims = Claims(pods_of)
        self._bytes = TemplateBytes(most_template_bytes)
        self._behind: dict[str, KnownJob] = {}  # jobs whose pods tell more than what is written, by uid
        self.broken: dict[str, Unreadable] = {}  # jobs that cannot be read, by namespace/name

    # ---- what is seen

    def keep_only(self, keys: set[str], version: int) -> None:
        """There are no others."""
        for gone in self.broken.keys() - keys:
            self._forget(gone)
        self._shelf.keep_only(keys, version)

    def put(self, item: Job) -> None:
        """A job was created or changed."""
        key = _key(item)
        if not self._shelf.is_news(key, item.metadata.version):
            return
        before = self._shelf.get(key)
        try:
            known = self._claims.with_pod(self._reader.read(item, before), before)
            self._bytes.check(known, before)
        except Exception as error:  # not only pydantic's: whatever anybody wrote, it hides no other job
            self._put_aside(key, item, before, error)
            return
        if self.broken.pop(key, None) is not None and before is not None:
            self._reject(before.uid, None)  # as what could not be read
        self._shelf.put(key, item.metadata.version, known)

    def _put_aside(self, key: str, item: Job, before: KnownJob | None, error: Exception) -> None:
        """It cannot be read. One that has room keeps it: it is shown as it was before that edit, and stays shown when
        it loses the room (see `_consider`)."""
        aside = key in self.broken
        one = self.broken[key] = unreadable(item, read_metadata(item), error)
        same = before is not None and before.uid == one.metadata.uid
        kept: KnownJob | None = None
        if before is not None and same and one.status is not None:
            meta = one.metadata.model_copy(update={"generation": before.job.metadata.generation})
            job = before.job.model_copy(update={"metadata": meta, "status": one.status})
            kept = self._claims.with_pod(replace(before, job=job, spec_digest=b"", status_text=None), before)
        if kept is None or not (aside or has_room(kept.job.status)):
            self._shelf.drop(key, item.metadata.version)
        else:
            self._shelf.put(key, item.metadata.version, kept)
        self._changed()

    def fits_now(self, one: Unreadable) -> bool:
        """Whether a job that was too much for its namespace is not any more, or a pod tells that it is admitted."""
        if not one.sizes or one.status is None or one.metadata.uid in self._by_uid:
            return False
        namespace = one.metadata.namespace or "default"
        name = JobName(one.metadata.uid, namespace, one.metadata.name)
        return self._bytes.fits(namespace, one.sizes) or self._claims.is_told(name, one.status.attempt)

    def found(self, item: Job) -> None:
        """A read shows it, which watches may have passed meanwhile."""
        if not self._shelf.is_gone(_key(item), item.metadata.version):
            self.put(item)

    def drop(self, item: Job) -> None:
        """A job is gone."""
        self._forget(_key(item))
        self._shelf.drop(_key(item), item.metadata.version)

    def progress(self, version: int) -> None:
        """Everything up to here has been told."""
        self._shelf.progress(version)

    # ---- what we did

    def wrote(self, uid: str, status: spec.TrainingJobStatus, version: int) -> None:
        """Our status of a job was accepted."""
        known = self._by_uid.get(uid)
        if known is None:
            return
        meta = known.job.metadata.model_copy(update={"resource_version": str(version)})
        job = known.job.model_copy(update={"metadata": meta, "status": status})
        self._shelf.wrote(known.key, version, self._claims.with_pod(replace(known, job=job, status_text=None), known))

    def begin(self, seal: Seal | None, pods: Iterable[KnownPod]) -> None:
        """A term of leading begins, and these pods are there: what they tell counts, and nothing that others told."""
        pods = list(pods)
        self._claims.begin(seal, pods)
        tell = (pod.job for pod in pods if pod.claim is not None and pod.job is not None)
        for job in dict.fromkeys((*(known.name for known in self._behind.values()), *tell)):
            self._heed_pod(job, anew=True)

    def admitted(self, job: JobName) -> None:
        """A pod says that its job is admitted."""
        self._heed_pod(job)

    def behind(self) -> Collection[KnownJob]:
        """Jobs whose pods alone tell so far that they are admitted, oldest first."""
        return self._behind.values()

    def complained(self, key: str, one: Unreadable, told: Unreadable) -> None:
        """Our complaint about a job was written: `one` is as `told` now, unless watches have shown the job anew, or
        gone, meanwhile."""
        if self.broken.get(key) is one:
            self.broken[key] = told

    def learned(self, namespace: str, digest: str) -> None:
        """Something was found out about a template."""
        for uid in tuple(self._users.get((namespace, digest), ())):
            if (known := self._by_uid.get(uid)) is not None:
                self._consider(known)

    def ask_again(self) -> None:
        """What was refused may not be any more, and what was learned long ago may be otherwise: ask for jobs that wait.

        A job that has room keeps what was learned before it got it: its pods are as they were created.
        """
        for uid, known in self._by_uid.items():
            if uid in self._rejected or not (has_room(known.job.status) or is_finished(known.job.status)):
                self._learned.ask(known)

    # ---- what the engine sees

    def shown(self) -> tuple[spec.TrainingJob, ...]:
        """All jobs that are ready to be decided about."""
        return tuple(self._shown.values())

    def refusals(self) -> Mapping[str, str]:
        """Why pods of shown jobs would be refused, by uid; the same mapping as long as nothing changed."""
        if self._refusals is None:
            self._refusals = dict(self._rejected)
        return self._refusals

    def unseen(self) -> bool:
        """Whether a new job is shown since `looked`."""
        return bool(self._unseen)

    def looked(self) -> None:
        """Whatever is shown is being decided about."""
        self._unseen.clear()

    def known(self, uid: str) -> KnownJob | None:
        """One job as it was written."""
        return self._by_uid.get(uid)

    def status_of(self, one: Unreadable) -> spec.TrainingJobStatus | None:
        """The newest status of a job that cannot be read, with what we wrote of it; None where nobody can read that."""
        known = self._by_uid.get(one.metadata.uid)
        return one.status if known is None else known.job.status

    def all(self) -> Iterable[KnownJob]:
        """All jobs, shown or not."""
        return self._by_uid.values()

    # ---- the rest

    def _note(self, key: str, old: KnownJob | None, new: KnownJob | None) -> None:
        self._bytes.count(old, new)
        same = old is not None and new is not None and new.uid == old.uid
        alike = old is not None and new is not None and new.templates is old.templates  # as of a job created anew, too
        if old is not None and not same:
            self._hide(old.uid)
            self._by_uid.pop(old.uid, None)
            self._behind.pop(old.uid, None)
        if old is not None and not (same and alike):
            for used in _keys(old):
                self._users[used].discard(old.uid)
                if not self._users[used]:
                    del self._users[used]
        if new is not None:
            self._by_uid[new.uid] = new
            if new.behind is None:
                self._behind.pop(new.uid, None)
            else:
                self._behind[new.uid] = new
            for used in () if same and alike else _keys(new):
                self._users.setdefault(used, set()).add(new.uid)
            self._consider(new)

    def _heed_pod(self, name: JobName, *, anew: bool = False) -> None:
        known = self._by_uid.get(name.uid)
        if known is None or known.name != name or (known.behind is not None and not anew):
            return
        told = self._claims.told_anew(known)
        if told.admission != known.admission:
            self._shelf.amend(known.key, told)

    def _hide(self, uid: str) -> None:
        self._unlearned.discard(uid)
        self._reject(uid, None)
        self._undecided.discard(uid)
        self._unseen.discard(uid)
        self._settled.pop(uid, None)
        if self._shown.pop(uid, None) is not None:
            self._show(uid, False)
        self._changed()  # also of one that was not shown yet: its queue may have waited for it

    def _forget(self, key: str) -> None:
        """What could not be read there is gone."""
        if self.broken.pop(key, None) is not None:
            self._changed()

    def _consider(self, known: KnownJob) -> None:
        """Show the job as soon as everything about its templates is known.

        One that is shown already stays, always with its newest status: what is written of it, by us too, counts at
        once. It gets no room by a spec that is not known yet, nor again by one from before an edit that cannot be read.
        """
        uid, job, before = known.uid, known.job, self._shown.get(known.uid)
        verdicts = {role: self._learned.verdict(known.namespace, one) for role, one in known.templates.items()}
        unknown = not is_finished(job.status) and self._is_unknown(known, verdicts)
        if not unknown:
            self._unlearned.discard(uid)
        elif uid not in self._unlearned:
            self._unlearned.add(uid)
            self._learned.ask(known)
        waits = unknown and not has_room(job.status)
        if waits and before is None:
            return
        settled = before is not None and self._settled.get(uid) is job.spec
        refusals = [verdict.refusal for verdict in verdicts.values() if verdict is not None and verdict.refusal]
        complaint = self._complaint(known)
        if complaint is not None:
            self._reject(uid, complaint)
        elif not (waits and settled):
            self._reject(uid, refusals[0] if refusals else _NOT_TRIED if waits else None)
        if before is not None and settled and (waits or has_room(job.status)):
            self._shown[uid] = job.model_copy(update={"spec": before.spec})
        else:
            self._shown[uid] = self._reader.really(job, verdicts)
        if uid not in self._unlearned:
            self._settled[uid] = job.spec
        if job.status.submitted_at is None:
            if uid not in self._undecided:
                self._unseen.add(uid)
            self._undecided.add(uid)
        elif uid in self._undecided:
            self._undecided.remove(uid)
            self.served += 1
        if before is None:
            self._show(uid, True)
        self._changed()

    def _complaint(self, known: KnownJob) -> str | None:
        """Why it gets no room again: its spec is from before an edit that cannot be read. One with room is told so
        beforehand, since it may lose it and be placed anew within one round; what it is promised it may still take."""
        one, status = self.broken.get(known.key) if self.broken else None, known.job.status
        if one is None or one.metadata.uid != known.uid or status.hold is not None or is_finished(status):
            return None
        return f"it cannot be read: {one.complaint}"

    def _is_unknown(self, known: KnownJob, verdicts: Mapping[str, Verdict | None]) -> bool:
        """Whether it is not known what its pods ask for; of a job that is shown, what was learned then counts."""
        if None in verdicts.values():
            return True
        new = known.uid not in self._shown and not has_room(known.job.status)
        return new and not all(self._learned.is_fresh(known.namespace, one) for one in known.templates.values())

    def _reject(self, uid: str, refusal: str | None) -> None:
        if self._rejected.get(uid) == refusal:
            return
        if refusal is None:
            del self._rejected[uid]
        else:
            self._rejected[uid] = refusal
        self._refusals = None
        self._changed()


def _keys(known: KnownJob) -> set[tuple[str, str]]:
    return {(known.namespace, template.digest) for template in known.templates.values()}


def _key(job: Job) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"
