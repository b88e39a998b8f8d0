"""The first sentence of a report: where the time of a step goes, whose fault it is, what to try."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tracing.account.step_slots import MAX_SLOTTED_STEPS
from muster.tracing.efficiency.advice import EfficiencyAdvice
from muster.tracing.formatting import format_list, format_percent, format_seconds
from muster.tracing.ranks.rank_comparison import RankComparison
from muster.tracing.ranks.step_account import StepAccount, StepRow, Use, spent_on
from muster.tracing.verdicts import Cause, Verdict, phrase_of

USE_NAMES = {
    Use.COMPUTE: "compute",
    Use.TRANSFER: "exposed communication",
    Use.WAITING: "waiting for other ranks",
    Use.STAGES: "sends and receives between stages, with waiting",
    Use.CHECKPOINT: "saving a checkpoint",
    Use.COPY: "copies",
    Use.ALLOCATOR: "allocating device memory",
    Use.GARBAGE: "collecting garbage",
    Use.PREPROCESS: "preparing inputs on the CPU",
    Use.DATA: "loading data",
    Use.COMPILE: "compiling",
    Use.HOST: "other code of the host",
    Use.SYNC: "waiting for the device to synchronise",
    Use.LAUNCH: "launching work, and Python between operators",
    Use.UNKNOWN: "short gaps without a known cause",
}
CAUSE_USES = {
    "data-loading": Use.DATA,
    "checkpoint": Use.CHECKPOINT,
    "host-blocked": Use.HOST,
    "garbage-collection": Use.GARBAGE,
    "input-preprocessing": Use.PREPROCESS,
    "recompilation": Use.COMPILE,
    "allocator-retries": Use.ALLOCATOR,
    "extra-kernels": Use.COMPUTE,
    "slow-device": Use.COMPUTE,
    "larger-input": Use.COMPUTE,
    "stage-imbalance": Use.COMPUTE,
    "pipeline-bubble": Use.STAGES,
    "copy": Use.COPY,
    "host-sync": Use.SYNC,
    "launch-bound": Use.LAUNCH,
    "slow-host": Use.LAUNCH,
    "graph-break": Use.LAUNCH,
}
"""By the name of a cause, what a rank does while it causes that. Other causes are of communication."""
USE_ADVICE = {
    Use.TRANSFER: "let communication run beside compute, by prefetching or other bucket sizes",
    Use.STAGES: "use more micro-batches, or balance the stages",
    Use.COPY: "use pinned memory and non_blocking=True, or copy less often",
    Use.DATA: "try more DataLoader workers, prefetching, or faster storage",
    Use.SYNC: "avoid .item(), .cpu(), print and nonzero() of device tensors within a step",
    Use.LAUNCH: "use torch.compile, CUDA graphs, larger batches, or fused operators",
}
"""What to try where no verdict says it."""
RECORD_SHAPES = "record shapes (record_shapes=True), which show how well operators use the device"
NOTABLE = 0.03  # of a step
ADVISABLE = 0.05
LONG_STEPS = 0.1  # of the traced time


def use_of(cause: Cause) -> Use:
    """What a rank does while it loses time for this cause."""
    return CAUSE_USES.get(str(cause), Use.TRANSFER)


def headline(
    account: StepAccount,
    verdicts: Sequence[Verdict],
    advice: Sequence[EfficiencyAdvice] | None,
    untraced: str = "",
    line: str = "",
) -> str:
    """The sentence. `advice` is None if shapes would show more; `untraced` names ranks without a trace: waiting for
    them is in the communication; `line` is where the first verdict's time is lost, if known."""
    share = account.mean(Use.COMPUTE) / account.step_ms if account.step_ms else 0.0
    start = f"A step takes {_ms(account.step_ms)}, {format_percent(share)} of it compute"
    if account.longer and _extra_ms(account) >= LONG_STEPS * account.total_ms:
        start += f"; {_longest(account.longer[0])}"
    if verdicts:
        where = f" ({line})" if line else ""
        return f"{start}; {_fault(verdicts[0], account)}{where}: {lowered(verdicts[0].advice)}."
    whose = f"no trace of {untraced} shows whether this rank waits for it" if untraced else ""
    if not untraced and len(account.ranks) > 1:
        whose = "no single rank makes the others wait"
    use = max((use for use in Use if use is not Use.COMPUTE), key=account.mean)
    sentence = "; ".join([start, *filter(None, (whose, _named(use, account)))])
    if advice:
        return f"{sentence}; to try: {lowered(advice[0].sentence)}"
    if account.mean(use) > ADVISABLE * account.step_ms and use in USE_ADVICE:
        return f"{sentence}; to try: {USE_ADVICE[use]}."
    return f"{sentence}; to try: {RECORD_SHAPES}." if advice is None else f"{sentence}."


def telling_step(ranks: RankComparison, verdicts: Sequence[Verdict]) -> int | None:
    """The step that shows what the first verdict says: of its ranks, the one with the median time for it, or the
    longest if it is in few steps. None for a cause that is everywhere."""
    use = use_of(verdicts[0].cause) if verdicts else Use.COMPUTE
    if use in (Use.COMPUTE, Use.TRANSFER, Use.STAGES, Use.LAUNCH):
        return None
    ms = spent_on(ranks, use, verdicts[0].ranks)
    shown = ms[:MAX_SLOTTED_STEPS]
    often = np.flatnonzero(shown >= 0.5 * ms.mean())
    if not len(often):
        return None
    order = often[np.argsort(shown[often], kind="stable")]
    return ranks.steps[int(order[len(order) // 2])]


def _fault(verdict: Verdict, account: StepAccount) -> str:
    """`rank 1 costs 62.1 ms of it (50.6%): saving a checkpoint within the step blocks the host ('save')`."""
    ranks = [str(rank) for rank in verdict.ranks]
    who = f"rank{'s' if len(ranks) > 1 else ''} {format_list(ranks)}" if ranks else "all ranks"
    who = who if len(account.ranks) > 1 else "it"
    if verdict.stage is not None and verdict.cause is Cause.STAGE_IMBALANCE:
        who = f"stage {verdict.stage} ({who})"
    cost = _ms(verdict.cost_ms)
    of_step = (
        f" ({format_percent(verdict.cost_ms / account.step_ms)})" if 0 < account.step_ms >= verdict.cost_ms else ""
    )
    lose = "loses" if len(ranks) == 1 or who == "it" else "lose"
    if ranks and who != "it" and len(ranks) < len(account.ranks):
        lose = "costs the others" if len(ranks) == 1 else "cost the others"
    return f"{who} {lose} {cost} a step{of_step} because {phrase_of(verdict.cause)}{verdict.where}"


def _named(use: Use, account: StepAccount) -> str:
    """What takes most of the step besides compute."""
    ms = account.mean(use)
    if ms <= NOTABLE * account.step_ms:
        return "nothing else takes 3%"
    return f"the largest other part is {USE_NAMES[use]} ({_ms(ms)}, {format_percent(ms / account.step_ms)})"


def _extra_ms(account: StepAccount) -> float:
    return sum(row.ms - account.step_ms for row in account.longer)


def _longest(row: StepRow) -> str:
    """`step 32 took 10.4 s, 10.0 s of it saving a checkpoint`."""
    causes = [part for part in row.parts if part.use not in (Use.COMPUTE, Use.WAITING)]
    most = max(causes, key=lambda part: part.ms, default=None)
    why = "" if most is None else f", {_ms(most.ms)} of it {USE_NAMES[most.use]}"
    return f"step {row.step} took {_ms(row.ms)}{why}"


def lowered(text: str) -> str:
    """A sentence as a part of another one: `Try ...` as `try ...`."""
    return text[:1].lower() + text[1:] if not text[1:2].isupper() else text


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)
