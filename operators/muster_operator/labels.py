"""Labels, annotations and finalizers of Muster's pods, Services and Queues."""

from __future__ import annotations

from muster.api.spec import JOB_LABEL as JOB
from muster.api.spec import ROLE_LABEL as ROLE

__all__ = ["ATTEMPT", "INDEX", "IN_USE", "JOB", "JOB_UID", "ROLE"]

INDEX = "muster.dev/index"
ATTEMPT = "muster.dev/attempt"
JOB_UID = "muster.dev/job-uid"  # unlike names never reused: what a Service selects by
IN_USE = "muster.dev/in-use"  # finalizer of a Queue that unfinished jobs may name
