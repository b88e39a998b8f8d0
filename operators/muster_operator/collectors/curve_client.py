"""Reads the curve of a job from its collector, when a client of the read API asks for it; leader and standby alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from muster.errors import ClusterError, NotFound
from muster.heartbeats.parse import StepPoint, finite_number, parse_count
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.collectors.heartbeat_client import (
    TIMEOUT_S,
    CollectorError,
    HeartbeatTarget,
    collector_session,
    signed_request,
)
from muster_operator.collectors.heartbeat_poller import heartbeat_target, lead_collector
from muster_operator.collectors.tokens import CollectorTokens

MAX_RESPONSE_BYTES = 65_536
MAX_POINTS = 300
_PATH = "/curve"


class _Response(msgspec.Struct):
    job_uid: str
    pod: str
    points: list[StepPoint]


@dataclass(frozen=True, slots=True)
class CurveReader:
    """`tokens` are not those of the leader, which forget their key whenever this operator becomes the leader."""

    cache: ClusterCache
    tokens: CollectorTokens
    timeout_s: float = TIMEOUT_S

    async def read(self, uid: str) -> Sequence[StepPoint]:
        """The steps that rank 0 of the job has reported. Raises `NotFound` NoCollector for a job without a running
        pod that has a collector with curves, `CollectorError` if that does not answer as it should, and as
        `CollectorTokens.find` does."""
        known = self.cache.jobs.get(uid)
        if known is None or lead_collector(self.cache, known) is None:
            raise _no_collector()
        await self.tokens.find()  # only now: where no job has had a collector, there is no key
        target = heartbeat_target(self.cache, self.tokens, known)
        if target is None:  # the pod has ended meanwhile
            raise _no_collector()
        try:
            return await _read(target, self.timeout_s)
        except CollectorError as error:
            if error.http_status == HTTPStatus.NOT_FOUND:
                message = f"the collector of pod {target.pod} is of a version without curves"
                raise NotFound(message, reason="NoCollector") from error
            self.tokens.clear()  # the Secret of the key may have been replaced; read again by the next request
            raise


def _no_collector() -> NotFound:
    return NotFound("no pod with a collector runs, from which the curve is read", reason="NoCollector")


async def _read(target: HeartbeatTarget, timeout_s: float) -> Sequence[StepPoint]:
    async with collector_session(timeout_s) as session:
        body = await signed_request(session, target, _PATH, b"", MAX_RESPONSE_BYTES)
    try:
        answer = msgspec.json.decode(body, type=_Response)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise CollectorError("the answer is not a curve") from error
    if (answer.job_uid, answer.pod) != (target.uid, target.pod):
        raise CollectorError("the answer is from another pod")
    if len(answer.points) > MAX_POINTS:
        raise ClusterError(f"the answer has more than {MAX_POINTS} steps", reason=CollectorError.reason)
    known = ((parse_count(step), finite_number(loss), finite_number(time)) for step, loss, time in answer.points)
    return [(step, loss, time) for step, loss, time in known if step is not None]
