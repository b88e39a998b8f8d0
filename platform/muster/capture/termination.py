"""Where ranks were that did not stop, as a part of the termination message of their pod's collector.

Kubernetes keeps 4096 bytes of a termination message, so the ranks are compressed, and shortened until they fit.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import msgspec

from muster.capture.exchange import PodRanks
from muster.capture.protocol import MAX_REASON, MAX_WORLD_SIZE, HungRank
from muster.capture.stacks import read_stacks
from muster.tracing.flight_recorder import STOP_REQUEST
from muster.tracing.shared_folder import SharedFolder

MAX_ENCODED = 3500
_MAX_DECODED = 256 << 10
_MAX_RANKS, _MAX_FRAMES, _MAX_FRAME = 64, 3, 200
_decoder = msgspec.json.Decoder(tuple[HungRank, ...])


def stopped_ranks(run: SharedFolder, attempt: int, own: PodRanks) -> str:
    """The ranks of this pod whose launcher saved their stacks before it killed them, encoded; empty without any."""
    found = read_stacks(run, STOP_REQUEST, attempt)
    return encode_ranks([one for one in found if own.contains(one.rank, max(one.world_size, one.rank + 1))])


def encode_ranks(ranks: Sequence[HungRank]) -> str:
    """At most `MAX_ENCODED` characters: with their collectives if these fit, else with fewer ranks."""
    short = [_shortened(one) for one in ranks[:_MAX_RANKS]]
    if short and len(text := _encode(short)) <= MAX_ENCODED:
        return text
    short = [msgspec.structs.replace(one, collectives=None) for one in short]
    while short and len(text := _encode(short)) > MAX_ENCODED:
        short = short[: len(short) // 2]
    return text if short else ""


def decode_ranks(text: str, pod: str, node: str) -> tuple[HungRank, ...]:
    """The ranks of a pod on a node, from a message that any program in it may have written; empty if it is invalid."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b85decode(text[:MAX_ENCODED]), _MAX_DECODED)
        found = _decoder.decode(content)[:_MAX_RANKS]
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return ()
    shown = (msgspec.structs.replace(_shortened(one), pod=pod, node=node) for one in found)
    return tuple(one for one in shown if 0 <= one.rank < MAX_WORLD_SIZE)


def _shortened(one: HungRank) -> HungRank:
    return msgspec.structs.replace(
        one,
        frames=tuple(frame[:_MAX_FRAME] for frame in one.frames[:_MAX_FRAMES]),
        reason=one.reason[:MAX_REASON],
        file="",
        collectives=None if one.collectives is None else one.collectives.compact(),
    )


def _encode(ranks: Sequence[HungRank]) -> str:
    return base64.b85encode(zlib.compress(msgspec.json.encode(ranks), 9)).decode()
