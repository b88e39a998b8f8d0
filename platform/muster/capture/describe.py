"""The process in which the operator finds out which rank the others wait for: `python -m muster.capture.describe`.

Users' programs wrote what it reads: termination messages that were compressed, and answers of collectors. So it has
little CPU time and memory, and while it works the operator does not. Standard input: the pods of the job, a line of
JSON each (`HungPod`); standard output: the sentence as JSON.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from muster.capture.exchange import bounded_ranks, decode_ranks
from muster.capture.protocol import HungRank
from muster.capture.stacks import describe_stacks

CPU_S = 10
MEMORY_BYTES = 1 << 30
MAX_SENTENCE = 4096
_LOW_PRIORITY = 10


class HungPod(msgspec.Struct, frozen=True):
    """Ranks of a pod, in `message` as in a collector's termination message, or in `ranks` as in its answer."""

    pod: str
    node: str = ""
    message: str = ""
    ranks: tuple[Any, ...] = ()


class _Line(HungPod, frozen=True):
    ranks: tuple[HungRank, ...] = ()


_decoder = msgspec.json.Decoder(_Line)


def describe_pods(lines: Iterable[bytes]) -> str:
    """The sentence of `describe_stacks` about the ranks of these pods; empty without any. Lines and messages that
    cannot be read are left out."""
    known: dict[int, HungRank] = {}
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}  # most ranks name the same members of a group
    for line in lines:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            one = _decoder.decode(line)
            ranks = one.ranks or decode_ranks(one.message)
            known.update((rank.rank, rank) for rank in bounded_ranks(ranks, one.pod, one.node, groups))
    return describe_stacks([known[rank] for rank in sorted(known)])[:MAX_SENTENCE] if known else ""


def _limit_this_process() -> None:
    os.nice(_LOW_PRIORITY)
    with suppress(OSError):  # where the container's memory is exhausted, this process ends, and not the operator
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    """Exit code 1: the analysis needs more memory than it has; a signal: more CPU time."""
    _limit_this_process()
    try:
        sentence = describe_pods(sys.stdin.buffer)
    except MemoryError:
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(sentence))
    return 0


if __name__ == "__main__":
    sys.exit(main())
