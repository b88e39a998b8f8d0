"""Rules for communication that is not hidden behind compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from muster.tracing.formatting import format_list, format_ms
from muster.tracing.ranks.attribution import Float64
from muster.tracing.ranks.links import links
from muster.tracing.ranks.rank_comparison import MatchedCollective, RankComparison
from muster.tracing.verdicts.types import Cause, Claim

EXPOSED_SHARE = 0.25  # of a step, without waiting for late ranks
SLOW_BUS_GB_S = 10.0  # less than one 100 Gbit/s link
SLOW_SHARE = 0.1  # of a step, with less than that
REDUNDANT_SHARE = 0.03  # of a step, in which what is reduced again is transferred
SLOW_LINK_RATIO = 3.0  # to the transfers between other stages
MAX_BLOCKS = 4
LARGE_MESSAGE_BYTES = 1 << 20
COLLECTIVES = {
    "reducescatter": Cause.EXPOSED_REDUCE_SCATTER,
    "allgather": Cause.EXPOSED_ALL_GATHER,
    "allreduce": Cause.EXPOSED_ALL_REDUCE,
}


def exposed_collectives(ranks: RankComparison) -> Iterator[Claim]:
    """Collectives whose transfer, without waiting for late ranks, takes a large part of the step on all devices."""
    by_cause: defaultdict[Cause, list[MatchedCollective]] = defaultdict(list)
    for collective in ranks.collectives if ranks.on_device else ():
        by_cause[_cause(collective.name)].append(collective)
    for cause, found in by_cause.items():
        exposed = _exposed_ms(ranks, found)
        evidence = (
            f"{format_ms(float(exposed.mean()))} a step of {len(found)} traced collectives{_blocks(ranks, found)}"
        )
        large = [c.bus_gb_s for c in found if c.bus_gb_s is not None and c.message_bytes >= LARGE_MESSAGE_BYTES]
        if large and (bandwidth := float(np.median(large))) < SLOW_BUS_GB_S:
            evidence += f", with a bus bandwidth of {bandwidth:.3g} GB/s"
            yield Claim(Cause.SLOW_NETWORK, exposed, SLOW_SHARE, evidence)
        else:
            yield Claim(cause, exposed, EXPOSED_SHARE, evidence)


def redundant_all_reduces(ranks: RankComparison) -> Iterator[Claim]:
    """Gradients that each of several backward passes of a step reduces: only those of the last one are needed."""
    passes = int(min(record.gradient_reductions.min() for record in ranks.records))
    found = [c for c in ranks.collectives if _cause(c.name) is Cause.EXPOSED_ALL_REDUCE]
    needless = 1 - 1 / max(passes, 1)
    running_ms = needless * sum(c.transfer_ns for c in found) / len(ranks.steps) / 1e6
    if running_ms > 0 and running_ms >= REDUNDANT_SHARE * ranks.step_ms:
        evidence = (
            f"each of {passes} backward passes of a step reduces the gradients: {format_ms(running_ms)} of all-reduces"
        )
        yield Claim(Cause.REDUNDANT_ALL_REDUCE, needless * _exposed_ms(ranks, found), 0.0, evidence)


def slow_links(ranks: RankComparison) -> Iterator[Claim]:
    """Sends and receives between two stages of a pipeline that take a large part of the step while nothing computes."""
    found = links(ranks) if ranks.on_device else {}
    usual = {pair: float(np.median([ms for ms, _ in link.transfers])) for pair, link in found.items()}
    for (a, b), link in found.items():
        large = [size / ms / 1e6 for ms, size in link.transfers if size >= LARGE_MESSAGE_BYTES]
        gb_s = float(np.median(large)) if large else np.inf
        evidence = f"a transfer between ranks {a} and {b} takes {format_ms(usual[a, b])}"
        evidence += f" ({gb_s:.3g} GB/s)" if large else ""
        others = [ms for pair, ms in usual.items() if pair != (a, b)]
        evidence += f", between others {format_ms(float(np.median(others)))}" if others else ""
        slow = gb_s < SLOW_BUS_GB_S or (bool(others) and usual[a, b] >= SLOW_LINK_RATIO * float(np.median(others)))
        who = [record for record in ranks.records if record.rank in (a, b)]
        cause = Cause.SLOW_NETWORK if slow else Cause.EXPOSED_COMMUNICATION
        share = SLOW_SHARE if gb_s < SLOW_BUS_GB_S else EXPOSED_SHARE
        yield Claim(cause, link.exposed_ms, share, evidence, who)


def _exposed_ms(ranks: RankComparison, found: Sequence[MatchedCollective]) -> Float64:
    """The exposed time of each step, averaged over the ranks."""
    ms = dict.fromkeys(ranks.steps, 0.0)
    for collective in found:
        ms[collective.step] += collective.exposed_ns * len(collective.ranks) / len(ranks.records) / 1e6
    return np.array(list(ms.values()))


def _blocks(ranks: RankComparison, found: Sequence[MatchedCollective]) -> str:
    """`, most in layers.0 (4.2 ms) and head (1.0 ms)`: the blocks of FSDP with the longest exposed time."""
    by_block: defaultdict[str, list[MatchedCollective]] = defaultdict(list)
    for collective in found:
        by_block[collective.block].append(collective)
    times = [(float(_exposed_ms(ranks, of).mean()), block) for block, of in by_block.items() if block]
    named = [f"{block} ({format_ms(ms)})" for ms, block in sorted(times, reverse=True)[:MAX_BLOCKS] if ms > 0]
    return f", most in {format_list(named)}" if named else ""


def _cause(name: str) -> Cause:
    plain = name.lower().replace("_", "").replace("-", "")
    return next((cause for part, cause in COLLECTIVES.items() if part in plain), Cause.EXPOSED_COMMUNICATION)
