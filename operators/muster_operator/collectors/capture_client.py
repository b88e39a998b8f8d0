"""Requests to the collectors of a job about a capture: the proposal for its ranks, and how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from muster.capture.describe import HungPod
from muster.capture.exchange import MAX_RESPONSE_BYTES, CaptureExchange
from muster.capture.protocol import (
    MAX_REASON,
    MAX_WORLD_SIZE,
    CaptureObservation,
    HungRank,
    RankAnswer,
    RankReport,
    StoredTrace,
    is_plausible,
)
from muster_operator.collectors.heartbeat_client import (
    TIMEOUT_S,
    CollectorError,
    HeartbeatTarget,
    collector_session,
    signed_request,
)

_MAX_CONCURRENT = 64
_PATH = "/capture"
_MAX_FILE, _MAX_FRAMES, _MAX_FRAME = 256, 16, 500


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """For all collectors of a job together: `within_s`, after which the others are unreachable, and `max_bytes` of
    their answers; 4096 ranks send half of it. `timeout_s`: of each request."""

    within_s: float = 3.0
    max_bytes: int = 32 << 20
    timeout_s: float = TIMEOUT_S


class _HungRank(msgspec.Struct):
    """Collectives stay as they were sent: only the process that describes them decodes them."""

    rank: int
    frames: tuple[str, ...] = ()
    reason: str = ""
    file: str = ""
    collectives: msgspec.Raw = msgspec.Raw(b"null")


class _Response(msgspec.Struct):
    job_uid: str
    pod: str
    reports: tuple[RankReport, ...] = ()
    answers: tuple[RankAnswer, ...] = ()
    traces: tuple[StoredTrace, ...] = ()
    stacks: tuple[_HungRank, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectorAnswers:
    """`seen`: what they say, of the stacks without collectives; `stacks`: these as lines of `muster.capture.describe`;
    `size`: bytes of the answers."""

    seen: CaptureObservation
    stacks: tuple[bytes, ...] = ()
    size: int = 0


@dataclass(slots=True)
class _Answers:
    """What the collectors answered, one entry of each rank: their programs decide how much they send."""

    wanted: CaptureExchange
    size: int = 0
    reports: dict[int, RankReport] = field(default_factory=dict)
    answers: dict[int, RankAnswer] = field(default_factory=dict)
    traces: dict[tuple[int, bool], StoredTrace] = field(default_factory=dict)  # by rank and kind
    stacks: dict[int, HungRank] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)

    def add(self, response: _Response, node: str = "") -> None:
        """Keep what concerns this capture; of two heartbeats or answers of a rank the newer one."""
        for report in filter(is_plausible, response.reports):
            known = self.reports.get(report.rank)
            if known is None or (report.attempt, -report.age_s) > (known.attempt, -known.age_s):
                self.reports[report.rank] = msgspec.structs.replace(report, phase=report.phase[:20])
        for answer in response.answers:
            if not _is_rank(answer.rank) or answer.id != self.wanted.id:
                continue
            before = self.answers.get(answer.rank)
            if before is None or (answer.attempt, answer.proposal) >= (before.attempt, before.proposal):
                self.answers[answer.rank] = msgspec.structs.replace(answer, reason=answer.reason[:MAX_REASON])
        request = self.wanted.request
        for trace in response.traces if request is not None else ():
            if request is None or (trace.attempt, trace.start_step) != (request.attempt, request.start_step):
                continue
            if _is_rank(trace.rank):
                file, reason = trace.file[:_MAX_FILE], trace.reason[:MAX_REASON]
                self.traces[trace.rank, trace.is_snapshot] = msgspec.structs.replace(trace, file=file, reason=reason)
        if self.wanted.stacks_of is not None and response.stacks:
            for one in response.stacks:
                if _is_rank(one.rank):
                    frames = tuple(frame[:_MAX_FRAME] for frame in one.frames[:_MAX_FRAMES])
                    reason, file = one.reason[:MAX_REASON], one.file[:_MAX_FILE]
                    self.stacks[one.rank] = HungRank(one.rank, frames, reason, file, response.pod, node=node)
            self.lines.append(msgspec.json.encode(HungPod(response.pod, node, ranks=response.stacks)))

    def all(self, unreachable: tuple[str, ...]) -> CollectorAnswers:
        seen = CaptureObservation(
            reports=tuple(self.reports.values()),
            answers=tuple(self.answers.values()),
            traces=tuple(self.traces.values()),
            stacks=tuple(self.stacks.values()),
            unreachable=unreachable,
        )
        return CollectorAnswers(seen, tuple(self.lines), self.size)


def _is_rank(rank: int) -> bool:
    return 0 <= rank < MAX_WORLD_SIZE


def exchange_all(
    targets: Sequence[HeartbeatTarget], wanted: CaptureExchange, limits: ExchangeLimits = ExchangeLimits()
) -> CollectorAnswers:
    """What all collectors of a job see, after each has the proposal; blocks until the last has answered, at
    most `limits.within_s`."""
    return asyncio.run(_exchange_all(targets, wanted, limits))


async def _exchange_all(
    targets: Sequence[HeartbeatTarget], wanted: CaptureExchange, limits: ExchangeLimits
) -> CollectorAnswers:
    content, answers = msgspec.json.encode(wanted), _Answers(wanted)
    turn = asyncio.Semaphore(_MAX_CONCURRENT)
    async with collector_session(limits.timeout_s) as session:

        async def one(target: HeartbeatTarget) -> str:
            async with turn:
                try:
                    body = await signed_request(session, target, _PATH, content, MAX_RESPONSE_BYTES)
                    answers.size += len(body)
                    if answers.size > limits.max_bytes:
                        return f"{target.pod}: the answers of the job exceed {limits.max_bytes >> 20} MiB"
                    answer = msgspec.json.decode(body, type=_Response)
                except CollectorError as error:
                    return f"{target.pod}: {error}"
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    return f"{target.pod}: the answer is invalid"
                if (answer.job_uid, answer.pod) != (target.uid, target.pod):
                    return f"{target.pod}: the answer is from another pod"
                answers.add(answer, target.node)
                return ""

        tasks = {target: asyncio.create_task(one(target)) for target in targets}
        _, late = await asyncio.wait(tasks.values(), timeout=limits.within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        silent = f"no answer within {limits.within_s:g} s"
        found = [f"{target.pod}: {silent}" if task in late else task.result() for target, task in tasks.items()]
    return answers.all(tuple(one for one in found if one))
