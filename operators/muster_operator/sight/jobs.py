"""TrainingJobs as the engine sees them.

A job is shown once it is known what its pods really ask for (`dryrun`): defaults, overhead and sidecars that the API
server adds take up room too. Until then it is as if it had not come yet; one whose spec was edited is shown as it was.
One that an earlier leader has given room, or promised some, is shown at once, as it was written: else its room would be
given away a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from pydantic import ValidationError

from muster import spec
from muster.lifecycle import is_admitted, is_finished, is_true
from muster.lifecycle.conditions import SUSPENDED
from muster_operator.sight.shapes import Job
from muster_operator.sight.shelf import Shelf
from muster_operator.sight.templates import Template, Templates

_Fields = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job as it was written, the template of each role, and the texts it was read from (to see what changed)."""

    job: spec.TrainingJob
    templates: Mapping[str, Template]  # by role
    spec_text: bytes
    status_text: bytes | None  # None after a write of our own

    @property
    def uid(self) -> str:
        """Of the job."""
        return self.job.metadata.uid

    @property
    def namespace(self) -> str:
        """Of the job; the API server has filled it in."""
        return self.job.metadata.namespace or "default"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a dry run said: what the pods really ask for, or (`refusal`) why they would be refused."""

    pod: spec.PodSpec | None = None  # None: as the template says
    refusal: str | None = None


class Learned(Protocol):
    """What is known of templates in a namespace."""

    def verdict(self, namespace: str, template: Template) -> Verdict | None:
        """The verdict; None while it is not known."""

    def ask(self, job: KnownJob) -> None:
        """Find out about the job's templates; `Jobs.learned` is called then."""


class Jobs:
    """A sink for TrainingJobs. `show(uid, shown)` is told who appears and goes, `changed` that anything differs."""

    def __init__(self, learned: Learned, show: Callable[[str, bool], None], changed: Callable[[], None]) -> None:
        self._learned = learned
        self._show = show
        self._changed = changed
        self._templates = Templates()
        self._shelf = Shelf[KnownJob](self._note)
        self._by_uid: dict[str, KnownJob] = {}
        self._shown: dict[str, spec.TrainingJob] = {}
        self._unlearned: set[str] = set()
        self._real: dict[str, tuple[spec.TrainingJobSpec, Mapping[str, spec.PodSpec], spec.TrainingJobSpec]] = {}
        self._users: dict[tuple[str, str], set[str]] = {}  # uids by namespace and template
        self._rejected: dict[str, str] = {}
        self._refusals: dict[str, str] | None = None
        self.broken: dict[str, str] = {}  # jobs that cannot be read, by namespace/name

    # ---- what is seen

    def replace(self, objects: list[Job], version: int) -> None:
        """All jobs there are."""
        for job in objects:
            self.put(job)
        self._shelf.keep_only((_key(job) for job in objects), version)

    def put(self, item: Job) -> None:
        """A job was created or changed."""
        key = _key(item)
        if not self._shelf.is_news(key, item.metadata.version):
            return
        try:
            known = self._read(item, self._shelf.get(key))
        except (ValidationError, ValueError) as error:
            self.broken[key] = str(error)
            self._shelf.drop(key, item.metadata.version)
            return
        self.broken.pop(key, None)
        self._shelf.put(key, item.metadata.version, known)

    def drop(self, item: Job) -> None:
        """A job is gone."""
        self.broken.pop(_key(item), None)
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
        self._shelf.wrote(f"{known.namespace}/{meta.name}", version, replace(known, job=job, status_text=None))

    def learned(self, namespace: str, digest: str) -> None:
        """Something was found out about a template."""
        for uid in tuple(self._users.get((namespace, digest), ())):
            self._consider(self._by_uid[uid])

    def forget_refusals(self) -> None:
        """What was refused may not be any more: ask again."""
        for uid in self._rejected:
            self._learned.ask(self._by_uid[uid])

    # ---- what the engine sees

    def shown(self) -> tuple[spec.TrainingJob, ...]:
        """All jobs that are ready to be decided about."""
        return tuple(self._shown.values())

    def refusals(self) -> Mapping[str, str]:
        """Why pods of shown jobs would be refused, by uid; the same mapping as long as nothing changed."""
        if self._refusals is None:
            self._refusals = dict(self._rejected)
        return self._refusals

    def known(self, uid: str) -> KnownJob | None:
        """One job as it was written."""
        return self._by_uid.get(uid)

    def all(self) -> Iterable[KnownJob]:
        """All jobs, shown or not."""
        return self._by_uid.values()

    # ---- the rest

    def _read(self, item: Job, before: KnownJob | None) -> KnownJob:
        meta, spec_text, status_text = item.metadata, bytes(item.spec), bytes(item.status)
        metadata = spec.ObjectMeta.model_validate(
            {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "generation": meta.generation,
                "resource_version": meta.resource_version,
                "creation_timestamp": meta.creation_timestamp,
                "deletion_timestamp": meta.deletion_timestamp,
            }
        )
        same = before if before is not None and before.uid == meta.uid else None
        if same is not None and same.spec_text == spec_text:
            wanted, templates = same.job.spec, same.templates
        else:
            wanted, templates = self._spec(spec_text)
        if same is not None and same.status_text == status_text:
            status = same.job.status
        else:
            status = spec.TrainingJobStatus.model_validate_json(status_text)
            if same is not None and status == same.job.status:
                status = same.job.status
        job = spec.TrainingJob.model_construct(
            api_version=spec.API_VERSION, kind="TrainingJob", metadata=metadata, spec=wanted, status=status
        )
        return KnownJob(job, templates, spec_text, status_text)

    def _spec(self, text: bytes) -> tuple[spec.TrainingJobSpec, dict[str, Template]]:
        fields = msgspec.json.decode(text, type=_Fields)
        roles, templates = [], {}
        for role in msgspec.json.decode(fields.pop("roles", msgspec.Raw(b"[]")), type=list[_Fields]):
            template = self._templates.read(bytes(role.pop("template", msgspec.Raw(b"{}"))))
            document: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in role.items()}
            templates[str(document.get("name"))] = template
            roles.append({**document, "template": template.model})
        rest = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        wanted = spec.TrainingJobSpec.model_validate({**rest, "roles": roles})
        if wanted.stall_timeout_seconds is not None:  # without beats every job would look as if it made no step
            wanted = wanted.model_copy(update={"stall_timeout_seconds": None})
        return wanted, templates

    def _note(self, key: str, old: KnownJob | None, new: KnownJob | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._hide(old.uid)
            self._by_uid.pop(old.uid, None)
        if old is not None and (new is None or new.templates is not old.templates):
            for used in _keys(old):
                self._users[used].discard(old.uid)
                if not self._users[used]:
                    del self._users[used]
        if new is not None:
            self._by_uid[new.uid] = new
            for used in _keys(new) if old is None or new.templates is not old.templates else ():
                self._users.setdefault(used, set()).add(new.uid)
            self._consider(new)

    def _hide(self, uid: str) -> None:
        self._unlearned.discard(uid)
        self._reject(uid, None)
        self._real.pop(uid, None)
        if self._shown.pop(uid, None) is not None:
            self._show(uid, False)
            self._changed()

    def _consider(self, known: KnownJob) -> None:
        """Show the job as soon as everything about its templates is known."""
        uid, job = known.uid, known.job
        verdicts = {role: self._learned.verdict(known.namespace, one) for role, one in known.templates.items()}
        if not is_finished(job.status) and any(verdict is None for verdict in verdicts.values()):
            if uid not in self._unlearned:
                self._unlearned.add(uid)
                self._learned.ask(known)
            if not _has_room(job.status):
                return
        else:
            self._unlearned.discard(uid)
        refusals = [verdict.refusal for verdict in verdicts.values() if verdict is not None and verdict.refusal]
        self._reject(uid, refusals[0] if refusals else None)
        before = self._shown.get(uid)
        self._shown[uid] = self._really(job, verdicts)
        if before is None:
            self._show(uid, True)
        self._changed()

    def _really(self, job: spec.TrainingJob, verdicts: Mapping[str, Verdict | None]) -> spec.TrainingJob:
        """The job with what its pods really ask for."""
        pods = {
            role: verdict.pod for role, verdict in verdicts.items() if verdict is not None and verdict.pod is not None
        }
        if not pods:
            return job
        uid = job.metadata.uid
        written, known, wanted = self._real.get(uid, (None, None, job.spec))
        if written is not job.spec or known != pods:
            roles = [
                role.model_copy(update={"template": role.template.model_copy(update={"spec": pods[role.name]})})
                if role.name in pods
                else role
                for role in job.spec.roles
            ]
            wanted = job.spec.model_copy(update={"roles": roles})
            self._real[uid] = (job.spec, pods, wanted)
        return job.model_copy(update={"spec": wanted})

    def _reject(self, uid: str, refusal: str | None) -> None:
        if self._rejected.get(uid) == refusal:
            return
        if refusal is None:
            del self._rejected[uid]
        else:
            self._rejected[uid] = refusal
        self._refusals = None
        self._changed()


def _has_room(status: spec.TrainingJobStatus) -> bool:
    """Whether the job was given room, is promised some, or may still be giving it back."""
    return is_admitted(status) or status.hold is not None or is_true(status, SUSPENDED)


def _keys(known: KnownJob) -> set[tuple[str, str]]:
    return {(known.namespace, template.digest) for template in known.templates.values()}


def _key(job: Job) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"
