"""One poll: requests a heartbeat of every collector once, many at a time, in an event loop of its own.

It runs in a thread, so that slow answers never delay the operator's writes. A collector is a program in a user's pod:
the size of an answer is bounded, redirects are not followed, and every request has a timeout.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from muster.errors import ClusterError
from muster.heartbeats.auth import MAX_REQUEST_AGE_S, SIGNATURE_HEADER, HeartbeatSigner
from muster.heartbeats.parse import NUMERIC_FIELDS, ClockReading, finite_number, parse_run_time, run_time_fields

MAX_CONCURRENT = 64
MAX_CONCURRENT_PER_NAMESPACE = 16
"""So that collectors of one tenant that do not answer leave most connections to the others."""
TIMEOUT_S = 3.0
MAX_RESPONSE_BYTES = 16_384
_MAX_UNREADABLE = 500
_PATH = "/heartbeat"


@dataclass(frozen=True, slots=True)
class HeartbeatTarget:
    """A collector: the lead pod of a job, its address, and the token of the job."""

    uid: str
    pod: str
    host: str
    port: int
    token: str
    durable: bool  # whether the job's checkpoints outlive its pods
    namespace: str = ""
    node: str = ""


class HeartbeatResponse(msgspec.Struct):
    """A heartbeat as the collector sends it (docs/reference/collector.md)."""

    now: float
    job_uid: str
    pod: str
    heartbeat: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    traces: int = 0
    unreadable: list[str] = []
    run_time: Any = None

    def reduced(self) -> HeartbeatResponse:
        """With the known numbers and a short text only: the answers of all jobs are in memory at the same time."""
        return HeartbeatResponse(
            self.now,
            self.job_uid,
            self.pod,
            _numbers(self.heartbeat, NUMERIC_FIELDS),
            _numbers(self.checkpoint, ("step", "at", "steps", "loss")),
            self.traces,
            ["; ".join(self.unreadable)[:_MAX_UNREADABLE]] if self.unreadable else [],
            run_time_fields(parse_run_time(self.run_time, ClockReading(math.inf))),
        )


def _numbers(reported: Mapping[str, Any] | None, names: Iterable[str]) -> dict[str, float]:
    known = {name: finite_number((reported or {}).get(name)) for name in names}
    return {name: number for name, number in known.items() if number is not None}


@dataclass(frozen=True, slots=True)
class PollResult:
    """An answer, or in `error` the reason that there is none."""

    target: HeartbeatTarget
    response: HeartbeatResponse | None
    error: str = ""


def poll_all(
    targets: Sequence[HeartbeatTarget], start_within_s: float, timeout_s: float = TIMEOUT_S
) -> list[PollResult]:
    """Poll the targets in order; blocks until the last has answered or timed out. Targets not started within
    `start_within_s` have no result."""
    return asyncio.run(_poll_all(targets, start_within_s, timeout_s)) if targets else []


def collector_session(timeout_s: float = TIMEOUT_S) -> aiohttp.ClientSession:
    """A session for requests to collectors, which users' programs may impersonate; `timeout_s`: of each request."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(timeout_s),
        connector=aiohttp.TCPConnector(limit=MAX_CONCURRENT, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
    )


async def _poll_all(targets: Sequence[HeartbeatTarget], start_within_s: float, timeout_s: float) -> list[PollResult]:
    turn, until = asyncio.Semaphore(MAX_CONCURRENT), asyncio.get_running_loop().time() + start_within_s
    turn_of = {target.namespace: asyncio.Semaphore(MAX_CONCURRENT_PER_NAMESPACE) for target in targets}
    async with collector_session(timeout_s) as session:

        async def one(target: HeartbeatTarget) -> PollResult | None:
            async with turn_of[target.namespace], turn:
                in_time = asyncio.get_running_loop().time() < until
                try:
                    return await _poll(session, target) if in_time else None
                except Exception as error:  # one bad answer must not end the poll
                    return PollResult(target, None, f"invalid answer: {type(error).__name__}")

        outcomes = await asyncio.gather(*(one(target) for target in targets))
    return [outcome for outcome in outcomes if outcome is not None]


async def _poll(session: aiohttp.ClientSession, target: HeartbeatTarget) -> PollResult:
    try:
        body = await signed_request(session, target, _PATH, b"", MAX_RESPONSE_BYTES)
        answer = msgspec.json.decode(body, type=HeartbeatResponse)
    except CollectorError as error:
        return PollResult(target, None, str(error))
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return PollResult(target, None, "the answer is not a heartbeat")
    if (answer.job_uid, answer.pod) != (target.uid, target.pod):
        return PollResult(target, None, "the answer is from another pod")
    return PollResult(target, answer.reduced())


class CollectorError(ClusterError):
    """A collector that did not answer as it should; `http_status` 0: not with an HTTP error."""

    reason = "CollectorUnreachable"

    def __init__(self, message: str, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


async def signed_request(
    session: aiohttp.ClientSession, target: HeartbeatTarget, path: str, content: bytes, most_bytes: int
) -> bytes:
    """The body of the signed answer; POST if there is `content`. Raises CollectorError."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    peer = HeartbeatSigner(target.token, target.uid, target.pod)
    signed = peer.authorization(path, time.time(), secrets.token_hex(16), content)
    headers = {"Authorization": signed, "Accept-Encoding": "identity"}
    url, verb = f"http://{host}:{target.port}{path}", "POST" if content else "GET"
    try:
        async with session.request(verb, url, headers=headers, data=content or None, allow_redirects=False) as response:
            if response.status == 401:
                raise CollectorError(
                    f"HTTP 401: different token, or clocks differ by more than {MAX_REQUEST_AGE_S:g} s", 401
                )
            if response.status != 200:
                raise CollectorError(f"HTTP {response.status}", response.status)
            body = await response.content.read(most_bytes + 1)
            while len(body) <= most_bytes and (more := await response.content.read(most_bytes + 1)):
                body += more
            signature = response.headers.get(SIGNATURE_HEADER, "")
    except TimeoutError:
        raise CollectorError(f"no answer within {session.timeout.total:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise CollectorError(str(error) or type(error).__name__) from error
    if len(body) > most_bytes:
        raise CollectorError(f"the answer exceeds {most_bytes} bytes")
    if not peer.verify_response(signed, body, signature):
        raise CollectorError("the answer is not signed with the job's token: another program has the port")
    return body
