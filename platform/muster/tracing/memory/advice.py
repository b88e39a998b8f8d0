"""Advice on the use of GPU memory, each kind only where the numbers of a snapshot support it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.tracing.formatting import format_bytes, format_list, format_percent
from muster.tracing.memory.categories import Category
from muster.tracing.memory.rank_memory import RankMemory, rank_name

MIN_BYTES: Final = 256 << 20
"""Less memory is not worth a change."""
FRAGMENTED_RATIO: Final = 0.15
ACTIVATION_RATIO: Final = 0.4
OPTIMIZER_RATIO: Final = 0.35


class AdviceKind(StrEnum):
    """What to do; docs/concepts/memory.md describes each."""

    EXPANDABLE_SEGMENTS = "expandable-segments"
    RECOMPUTATION = "recomputation"
    OFFLOAD = "offload-activations"
    SHARD_OPTIMIZER = "shard-optimizer-state"


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice for some ranks. `bytes` is the memory that it concerns on the rank that has most of it: the
    saving is at most that. `advice` and `evidence` are sentences without a full stop."""

    kind: AdviceKind
    ranks: tuple[str, ...]
    bytes: int
    evidence: str
    advice: str


def derive_advice(ranks: Sequence[RankMemory]) -> tuple[Advice, ...]:
    """All advice, the one that concerns most memory first. Ranks with the same advice share it."""
    found: dict[AdviceKind, list[tuple[str, Advice]]] = {}
    for rank in ranks:
        for advice in (
            *_expandable_segments(rank),
            *_recomputation(rank),
            *_offload(rank),
            *_optimizer_state(rank),
        ):
            found.setdefault(advice.kind, []).append((rank.label, advice))
    merged = (_merge(of_kind) for of_kind in found.values())
    return tuple(sorted(merged, key=lambda advice: (-advice.bytes, advice.kind)))


def describe_advice(advice: Advice) -> str:
    """The advice as sentences."""
    labels = list(advice.ranks)
    if len(labels) > 1 and all(label.isdecimal() for label in labels):
        who = f"Ranks {format_list(labels)}"
    else:
        who = capitalize(format_list([rank_name(label) for label in labels]))
    return f"{who}: {advice.evidence}. {advice.advice}."


def capitalize(sentence: str) -> str:
    """The sentence with a capital first letter, unless it begins with the name of a file."""
    return sentence[:1].upper() + sentence[1:] if sentence.startswith("rank ") else sentence


def _merge(found: Iterable[tuple[str, Advice]]) -> Advice:
    """One piece of advice for all ranks, with the evidence of the one that it concerns most."""
    found = tuple(found)
    label, most = max(found, key=lambda item: item[1].bytes)
    where = f"{rank_name(label)}: " if len(found) > 1 else ""
    return Advice(most.kind, tuple(rank for rank, _ in found), most.bytes, f"{where}{most.evidence}", most.advice)


def _expandable_segments(rank: RankMemory) -> Iterator[Advice]:
    """Reserved memory that was never needed, or an allocation that failed although enough was free in pieces."""
    if rank.allocator.expandable is not False:
        return
    pieces = rank.fragmentation
    advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free memory of one segment can grow another"
    failed = next(
        (oom for oom in rank.out_of_memory if oom.reserved_bytes - oom.in_use_bytes >= oom.requested_bytes), None
    )
    if failed is not None:
        free = failed.reserved_bytes - failed.in_use_bytes
        piece = (
            "" if failed.largest_free_bytes is None else f", the largest of {format_bytes(failed.largest_free_bytes)}"
        )
        evidence = (
            f"an allocation of {format_bytes(failed.requested_bytes)} failed while {format_bytes(free)} of the reserved"
            f" memory was free in pieces{piece}"
        )
        yield Advice(AdviceKind.EXPANDABLE_SEGMENTS, (rank.label,), free, evidence, advice)
    elif pieces.unused_bytes >= MIN_BYTES and pieces.unused_ratio >= FRAGMENTED_RATIO:
        evidence = (
            f"of {format_bytes(pieces.peak_reserved_bytes)} reserved, {format_bytes(pieces.unused_bytes)}"
            f" ({format_percent(pieces.unused_ratio)}) was never in use together with the rest in the recording"
        )
        yield Advice(AdviceKind.EXPANDABLE_SEGMENTS, (rank.label,), pieces.unused_bytes, evidence, advice)


def _dominates(rank: RankMemory, category: Category, ratio: float) -> int:
    """The bytes of the largest category at the peak if it is `category` with at least `ratio` of the peak, else 0."""
    held = rank.peak.by_category.get(category, 0)
    is_largest = held == max(rank.peak.by_category.values(), default=0)
    return held if is_largest and held >= max(MIN_BYTES, ratio * rank.peak.in_use_bytes) else 0


def _recomputation(rank: RankMemory) -> Iterator[Advice]:
    held = _dominates(rank, Category.ACTIVATION, ACTIVATION_RATIO)
    if held and not rank.recomputes:
        part = format_percent(held / rank.peak.in_use_bytes)
        most = next(holder for holder in rank.peak.by_place if holder.category == Category.ACTIVATION)
        where = f", most in {most.place} ({format_bytes(most.bytes)})" if most.place else ""
        evidence = f"activations hold {format_bytes(held)} ({part}) of the peak{where}; no stack shows recomputation"
        advice = (
            "Recompute activations in the backward pass (--activation_checkpointing full, or"
            " torch.utils.checkpoint), or use a smaller micro-batch"
        )
        yield Advice(AdviceKind.RECOMPUTATION, (rank.label,), held, evidence, advice)


def _offload(rank: RankMemory) -> Iterator[Advice]:
    """Activations that recomputation leaves, without those of the largest place: what is being computed stays."""
    held = _dominates(rank, Category.ACTIVATION, ACTIVATION_RATIO)
    most = max((one.bytes for one in rank.peak.by_place if one.category == Category.ACTIVATION), default=0)
    held -= most
    if rank.recomputes and held >= max(MIN_BYTES, ACTIVATION_RATIO * rank.peak.in_use_bytes):
        part = format_percent(held / rank.peak.in_use_bytes)
        evidence = (
            f"activations hold {format_bytes(held)} ({part}) of the peak although some are recomputed, besides those of"
            " the place that holds most"
        )
        advice = (
            "Keep them in host memory until the backward pass (--offload_activations, or"
            " torch.autograd.graph.save_on_cpu), or use a smaller micro-batch"
        )
        yield Advice(AdviceKind.OFFLOAD, (rank.label,), held, evidence, advice)


def _optimizer_state(rank: RankMemory) -> Iterator[Advice]:
    held = _dominates(rank, Category.OPTIMIZER_STATE, OPTIMIZER_RATIO)
    if held:
        part = format_percent(held / rank.peak.in_use_bytes)
        evidence = f"the optimizer's state holds {format_bytes(held)} ({part}) of the peak"
        advice = "Shard it over more ranks (FSDP, ZeRO), offload it to the host, or use an optimizer with less state"
        yield Advice(AdviceKind.SHARD_OPTIMIZER, (rank.label,), held, evidence, advice)
