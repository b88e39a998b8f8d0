"""Admission of a single-pod gang, recorded in an annotation of its pod at creation.

One write then both creates the pod and admits the job. The job's status is written later; until then the annotation is
the record of the decision, also for the next leader. It is signed with a key of the operators, because a user who may
create pods in a namespace must not be able to admit jobs there.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

import msgspec

from muster import spec
from muster.lifecycle import is_admitted, is_condition_true, is_finished, transitions
from muster.lifecycle.conditions import SUSPENDED, with_status_fields
from muster.lifecycle.placement import from_status
from muster.model import RolePlacement


@dataclass(frozen=True, slots=True)
class PodAdmissionRecord:
    """Admission of one pod to one node. `generation`: of the job spec that was decided on; `at`: Unix seconds."""

    uid: str  # of the job
    attempt: int
    role: str
    node: str
    flavor: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class AdmissionSigner:
    """Signs the admissions of one leader in one of its terms."""

    key: bytes
    term: str

    def sign(self, admission: PodAdmissionRecord) -> str:
        """The value of the pod's annotation; labels, owner reference and node pin carry the rest."""
        text = _Text(admission.at, admission.flavor, admission.generation, self.term, _signature(admission, self))
        return msgspec.json.encode(text).decode()


@dataclass(frozen=True, slots=True)
class SignedAdmission:
    """An admission as an annotation states it; to be trusted only after `verify`."""

    admission: PodAdmissionRecord
    term: str
    signature: str

    def verify(self, key: bytes) -> bool:
        """Whether the signature was made with this key."""
        return hmac.compare_digest(
            self.signature.encode(), _signature(self.admission, AdmissionSigner(key, self.term)).encode()
        )


class _Text(msgspec.Struct):
    at: float
    flavor: str
    generation: int
    term: str
    seal: str


_text = msgspec.json.Decoder(_Text)


def parse_admission(annotation: str, *, uid: str, attempt: int, role: str, node: str) -> SignedAdmission | None:
    """The admission in a pod's annotation; None where it is not one."""
    if not annotation:
        return None
    try:
        text = _text.decode(annotation)
    except (ValueError, RecursionError):  # any user may write the annotation
        return None
    return SignedAdmission(
        PodAdmissionRecord(uid, attempt, role, node, text.flavor, text.generation, text.at), text.term, text.seal
    )


def may_admit_by_pod(status: spec.TrainingJobStatus) -> bool:
    """Whether a job of this status may be admitted by its pod: it is pending and has no nomination."""
    off = is_admitted(status) or is_finished(status) or is_condition_true(status, SUSPENDED)
    return not off and status.nomination is None


def admission_record(job: spec.TrainingJob, status: spec.TrainingJobStatus) -> PodAdmissionRecord | None:
    """The admission that turns the job's present status into `status`; None where an annotation cannot hold all of
    it."""
    places = from_status(status.placement)
    is_single_pod = len(places) == 1 and places[0].replicas == 1
    if not is_single_pod or status.admitted_at is None or not may_admit_by_pod(job.status):
        return None
    place, meta = places[0], job.metadata
    admission = PodAdmissionRecord(
        uid=meta.uid,
        attempt=status.attempt,
        role=place.role,
        node=place.nodes[0][0],
        flavor=place.flavor,
        generation=meta.generation,
        at=status.admitted_at,
    )
    return admission if admitted_status(job, admission) == status else None


def admitted_status(job: spec.TrainingJob, record: PodAdmissionRecord) -> spec.TrainingJobStatus:
    """The status of a pending job after this admission. A job whose spec was edited since is evicted again."""
    created, status = job.metadata.creation_timestamp, job.status
    fields: dict[str, object] = {"observed_generation": record.generation}
    if status.submitted_at is None:
        fields["submitted_at"] = record.at if created is None else created
    place = RolePlacement(record.role, record.flavor, ((record.node, 1),))
    status = transitions.admit(with_status_fields(status, fields), (place,), record.at)
    if record.generation == job.metadata.generation:
        return status
    message = "edited while it was admitted; it restarts with the new spec"
    return transitions.evict(status, "Edited", message, record.at)


def _signature(admission: PodAdmissionRecord, signer: AdmissionSigner) -> str:
    text = msgspec.json.encode(("muster-admission", signer.term, admission))
    return base64.urlsafe_b64encode(hmac.digest(signer.key, text, "sha256")[:16]).decode().rstrip("=")
