"""What the operator and a collector exchange: of a capture the proposal to write, and what the run folder has; of ranks
that did not stop where they were, in the termination message of their pod's collector, compressed and shortened."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.capture.folder import observe, write_request
from muster.capture.protocol import MAX_REASON, MAX_WORLD_SIZE, CaptureObservation, CaptureRequest, HungRank
from muster.capture.stacks import read_stacks, request_stacks
from muster.tracing.read.flight_recorder import SIGNAL_REQUEST, STOP_REQUEST
from muster.tracing.shared_folder import SharedFolder

MAX_STEPS = 1000
MAX_RANKS = 1024
MAX_RESPONSE_BYTES = 256 << 10
_SHARED_BYTES = MAX_RESPONSE_BYTES // 2
_MAX_FRAMES, _MAX_FRAME = 16, 500  # as many as a status has
MAX_ENCODED = 3500
"""Of the 4096 bytes that Kubernetes keeps of a termination message."""
_MAX_DECODED = 256 << 10
_MESSAGE_RANKS, _MESSAGE_FRAMES, _MESSAGE_FRAME = 64, 3, 200
_message_decoder = msgspec.json.Decoder(tuple[HungRank, ...])


@dataclass(frozen=True, slots=True)
class PodRanks:
    """The ranks of a collector's pod: `known`, or (None) those of pod `index` of `replicas` in the order of
    `muster_components.launch`."""

    known: Collection[int] | None = None
    index: int = 0
    replicas: int = 1

    def contains(self, rank: int, world_size: int) -> bool:
        """Whether this rank of `world_size` is of the pod."""
        return rank in self.known if self.known is not None else rank * self.replicas // world_size == self.index

    def contains_hung(self, one: HungRank) -> bool:
        """Whether this rank, for which a launcher answered, is of the pod."""
        return self.contains(one.rank, max(one.world_size, one.rank + 1))


class CaptureExchange(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request: the id of the capture, and the proposal that the ranks are to see (None: none yet). With
    `stacks_of`, the stacks of the ranks of this attempt are requested."""

    id: str
    request: CaptureRequest | None = None
    stacks_of: int | None = None


_decoder = msgspec.json.Decoder(CaptureExchange)


def exchange(run: SharedFolder, body: bytes, now: float, owner: str, own: PodRanks = PodRanks()) -> dict[str, Any]:
    """Write the proposal, unless the ranks have it, and return the observation as JSON values. Raises ValueError for an
    invalid body, OSError if the run folder cannot be written.

    If the pod's ranks are known, only these are returned. Otherwise all in the run folder are, since the order of ranks
    may be another than that of Muster's launcher; but of a large folder, which then many pods share, only `own` ones.
    """
    try:
        wanted = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the body must be a capture: {error}") from error
    request = wanted.request
    if request is not None:
        if not 1 <= request.start_step < request.end_step <= request.start_step + MAX_STEPS:
            raise ValueError(f"the steps must be 1 to {MAX_STEPS}; got {request.start_step}:{request.end_step}")
        if len(request.ranks) > MAX_RANKS:
            raise ValueError(f"ranks must be at most {MAX_RANKS}; got {len(request.ranks)}")
        write_request(run, request, owner)
    if wanted.stacks_of is not None:
        request_stacks(run, wanted.id, wanted.stacks_of, owner)
    seen = _concerning(observe(run, now), wanted)
    if wanted.stacks_of is not None:
        stacks = read_stacks(run, wanted.id, is_own=own.contains_hung)  # launchers answer, in whose order ranks are
        seen = msgspec.structs.replace(seen, stacks=tuple(map(_shortened, stacks)))
    if own.known is not None or len(msgspec.json.encode(seen)) > _SHARED_BYTES:
        seen = _of_pod(seen, own)
    if len(msgspec.json.encode(seen.stacks)) > _SHARED_BYTES:
        without = (msgspec.structs.replace(one, collectives=None) for one in seen.stacks)
        seen = msgspec.structs.replace(seen, stacks=tuple(without))
    found: dict[str, Any] = msgspec.to_builtins(seen)
    del found["unreachable"]
    if wanted.stacks_of is None:
        del found["stacks"]
    return found


def _shortened(one: HungRank) -> HungRank:
    """With the innermost frames, and of its collectives those that it waits in."""
    collectives = None if one.collectives is None else one.collectives.compact()
    return msgspec.structs.replace(one, frames=one.frames[:_MAX_FRAMES], collectives=collectives)


def _of_pod(seen: CaptureObservation, own: PodRanks) -> CaptureObservation:
    world_size = max((report.world_size for report in seen.reports), default=1)
    return CaptureObservation(
        reports=tuple(one for one in seen.reports if own.contains(one.rank, world_size)),
        answers=tuple(one for one in seen.answers if own.contains(one.rank, world_size)),
        traces=tuple(one for one in seen.traces if own.contains(one.rank, world_size)),
        stacks=tuple(one for one in seen.stacks if own.contains(one.rank, world_size)),
    )


def _concerning(seen: CaptureObservation, wanted: CaptureExchange) -> CaptureObservation:
    """Without the answers to other captures and the traces of other steps, so that the response is small."""
    request = wanted.request
    steps = None if request is None else (request.attempt, request.start_step)
    return CaptureObservation(
        reports=seen.reports,
        answers=tuple(answer for answer in seen.answers if answer.id == wanted.id),
        traces=tuple(trace for trace in seen.traces if (trace.attempt, trace.start_step) == steps),
    )


def stopped_ranks(run: SharedFolder, attempt: int, own: PodRanks) -> dict[str, str]:
    """The ranks of this pod whose launcher saved where they were, encoded: `hung` before it killed them, or else
    `signalled` before it sent them SIGTERM; empty without any."""
    for key, request in (("hung", STOP_REQUEST), ("signalled", SIGNAL_REQUEST)):
        found = [one for one in read_stacks(run, request, attempt, own.contains_hung) if own.contains_hung(one)]
        if text := encode_ranks(found):
            return {key: text}
    return {}


def encode_ranks(ranks: Sequence[HungRank]) -> str:
    """At most `MAX_ENCODED` characters: with their collectives if these fit, else with fewer ranks."""
    short = [_for_message(one) for one in ranks[:_MESSAGE_RANKS]]
    if short and len(text := _encode(short)) <= MAX_ENCODED:
        return text
    short = [msgspec.structs.replace(one, collectives=None) for one in short]
    while short and len(text := _encode(short)) > MAX_ENCODED:
        short = short[: len(short) // 2]
    return text if short else ""


def decode_ranks(text: str) -> tuple[HungRank, ...]:
    """The ranks in a message that any program in a pod may have written, which are to be bounded; empty if it is
    invalid."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b85decode(text[:MAX_ENCODED]), _MAX_DECODED)
        return _message_decoder.decode(content)[:_MESSAGE_RANKS]
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return ()


def bounded_ranks(
    ranks: Iterable[HungRank], pod: str, node: str, groups: dict[tuple[int, ...], tuple[int, ...]]
) -> Iterator[HungRank]:
    """The ranks of a pod on a node within the bounds of their own rank, texts and collectives. `groups` has the members
    of process groups that are known, so that those of many ranks take little memory."""
    for one in ranks:
        if not 0 <= one.rank < MAX_WORLD_SIZE:
            continue
        collectives = None
        if one.collectives is not None:
            kept = one.collectives.compact()
            shared = tuple(
                msgspec.structs.replace(group, ranks=groups.setdefault(group.ranks, group.ranks))
                for group in kept.groups
            )
            collectives = msgspec.structs.replace(kept, rank=one.rank, groups=shared)
        frames = tuple(frame[:_MAX_FRAME] for frame in one.frames[:_MAX_FRAMES])
        reason = one.reason[:MAX_REASON]
        yield HungRank(one.rank, frames, reason, pod=pod, node=node, collectives=collectives)


def _for_message(one: HungRank) -> HungRank:
    return msgspec.structs.replace(
        one,
        frames=tuple(frame[:_MESSAGE_FRAME] for frame in one.frames[:_MESSAGE_FRAMES]),
        reason=one.reason[:MAX_REASON],
        file="",
        collectives=None if one.collectives is None else one.collectives.compact(),
    )


def _encode(ranks: Sequence[HungRank]) -> str:
    return base64.b85encode(zlib.compress(msgspec.json.encode(ranks), 9)).decode()
