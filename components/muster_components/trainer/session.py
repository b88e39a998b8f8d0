"""From a config to a trained model: set up in the order that must hold, train, say how it ended.

1. the device and the process group, so that ranks can talk;
2. data, read by one rank of each host and seen alike by all;
3. model, optimizer, checkpoint: the weights of the last checkpoint replace the first ones;
4. the loop.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from muster_components.launch.rank_layout import usable_cores
from muster_components.trainer import console
from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.config import HostCapabilities, TrainConfig, TrainPlan, resolve_plan
from muster_components.trainer.context import RunContext
from muster_components.trainer.data import Corpus, Samples, build_corpus, token_cache_dir
from muster_components.trainer.errors import EXIT_OK, InputError, TrainerError
from muster_components.trainer.loop import TrainLoop, TrainResult, TrainState
from muster_components.trainer.models import parameter_count
from muster_components.trainer.optim import adamw
from muster_components.trainer.parallelize import ParallelModel, init_distributed, parallelize, select_kernels
from muster_components.trainer.profile import StepTracer
from muster_components.trainer.reporter import RankHeartbeat, Reporter
from muster_components.trainer.stop_signal import StopSignal
from muster_components.trainer.train_step import TrainStep


def train(config: TrainConfig, context: RunContext, environ: Mapping[str, str]) -> int:
    """One attempt, from set-up to the exit code. Raises TrainerError."""
    began = time.monotonic()
    stop = StopSignal()
    stop.install()
    device = choose_device(context, environ)
    plan = resolve_plan(config, host_capabilities(device, context, environ))
    reporter = Reporter(context)
    reporter.write_heartbeat(_setup_heartbeat(context, plan))
    init_distributed(device, single_process="RANK" not in environ)
    try:
        with select_kernels(device, plan.precision):
            outcome = _train(plan, context, device, reporter, stop)
    except TrainerError:
        # All ranks are here. After any other error they need not be, and to take leave of them would mean to wait.
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()
    if context.is_rank0:
        console.print_line(_summary_line(outcome, plan, time.monotonic() - began))
    return outcome.exit_code


def _train(
    plan: TrainPlan, context: RunContext, device: torch.device, reporter: Reporter, stop: StopSignal
) -> TrainResult:
    corpus = build_shared_corpus(plan, context)
    samples = Samples(corpus.open(), plan.seq_len)
    parallel = parallelize(plan, device, context.world_size)
    optimizer = adamw(parallel.model, plan)
    store = CheckpointStore(context.checkpoints_dir, context.attempt, plan.config.checkpoint.keep)
    checkpointer = Checkpointer(store, parallel.model, optimizer, reporter, checkpoint_fingerprint(plan, corpus))
    if context.is_rank0:
        _print_header(plan, context, parallel, corpus)
        _report_skipped(corpus, reporter)
    done = checkpointer.restore() if plan.config.checkpoint.resume else 0
    stepper = TrainStep(plan, context, parallel, optimizer, samples)
    tracer = StepTracer(plan.config.trace, context, reporter)
    return TrainLoop(TrainState(plan, context, device, reporter, stepper, checkpointer, tracer, stop)).run(done)


def choose_device(context: RunContext, environ: Mapping[str, str]) -> torch.device:
    """This rank's GPU where the host has any, else the CPU with its share of the cores. Raises InputError."""
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if context.local_rank >= gpus:
            raise InputError(
                f"local rank {context.local_rank} has no GPU: {gpus} visible; start at most {gpus} ranks on this host, "
                "or set CUDA_VISIBLE_DEVICES= to train on the CPU",
                same_on_all_ranks=False,
            )
        device = torch.device("cuda", context.local_rank)
        torch.cuda.set_device(device)
        return device
    # What the user or Muster's launcher chose holds. But torchrun by itself sets OMP_NUM_THREADS=1 whenever there are
    # several ranks, which would leave cores idle.
    chosen = environ.get("OMP_NUM_THREADS", "")
    if not chosen or (chosen == "1" and "MUSTER_RUN_DIR" not in environ):
        torch.set_num_threads(max(1, usable_cores() // context.local_world_size))
    return torch.device("cpu")


def host_capabilities(device: torch.device, context: RunContext, environ: Mapping[str, str]) -> HostCapabilities:
    """What the plan depends on."""
    compilers = (environ.get("CXX") or "c++", "c++", "g++", "clang++")
    return HostCapabilities(
        device="cuda" if device.type == "cuda" else "cpu",
        world_size=context.world_size,
        has_compiler=any(shutil.which(compiler) for compiler in compilers),
        has_bf16=device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False),
    )


def build_shared_corpus(plan: TrainPlan, context: RunContext) -> Corpus:
    """The corpus, written by the first rank of each host, found by the others. Raises InputError on all ranks alike."""
    path, cache_dir = plan.config.data.path, token_cache_dir(os.environ)
    corpus: Corpus | None = None
    failure: str | None = None
    for writes in (True, False):
        if writes == (context.local_rank == 0):
            try:
                corpus = build_corpus(path, cache_dir, exclude=context.run_dir)
                Samples(corpus.open(), plan.seq_len)
            except InputError as error:
                failure = str(error)
        failures: list[str | None] = [None] * context.world_size
        dist.all_gather_object(failures, failure)
        if told := next((text for text in failures if text), None):
            raise InputError(told)
    assert corpus is not None
    _require_same_data(corpus, context)
    return corpus


def checkpoint_fingerprint(plan: TrainPlan, corpus: Corpus) -> dict[str, object]:
    """What decides the shapes of weights and the order of samples, so what a checkpoint must have in common with us."""
    return {
        "model": plan.config.model.architecture(),
        "seq_len": plan.seq_len,
        "global_batch": plan.global_batch,
        "seed": plan.config.seed,
        "data": f"{corpus.tokens:,} bytes of text ({corpus.digest[:12]})",
    }


def _require_same_data(corpus: Corpus, context: RunContext) -> None:
    digests: list[tuple[str, int]] = [("", 0)] * context.world_size
    dist.all_gather_object(digests, (corpus.digest, corpus.tokens))
    for rank, (digest, tokens) in enumerate(digests):
        if digest != digests[0][0]:
            raise InputError(
                f"--data differs between hosts: rank {rank} sees {tokens:,} bytes of text, rank 0 {digests[0][1]:,}; "
                "every host needs the same files"
            )


def _print_header(plan: TrainPlan, context: RunContext, parallel: ParallelModel, corpus: Corpus) -> None:
    model, config = plan.config.model, plan.config
    device = torch.cuda.get_device_name(parallel.device) if parallel.device.type == "cuda" else "CPU"
    how = [config.parallel.mode, "compiled" if plan.compile else "not compiled", plan.precision]
    if config.parallel.recompute != "none":
        how.append(f"{config.parallel.recompute} recompute")
    ranks = "1 rank" if context.world_size == 1 else f"{context.world_size} ranks"
    padding = context.world_size * plan.micro_batch * plan.gradient_accumulation_steps - plan.global_batch
    console.print_line(
        f"muster trainer: {model.name}, {console.format_count(parameter_count(parallel.model))} parameters "
        f"({model.layers} layers x {model.dim}, vocabulary {model.vocab_size})"
    )
    console.print_line(f"  {ranks} on {device}, {', '.join(how)}; torch {torch.__version__}")
    console.print_line(
        f"  {config.steps} steps of {plan.global_batch} x {plan.seq_len} = {plan.tokens_per_step:,} tokens"
        + (f", {plan.gradient_accumulation_steps} micro-steps" if plan.gradient_accumulation_steps > 1 else "")
        + (f", {padding} padded places" if padding else "")
        + f"; peak lr {plan.lr:g}, warm-up {plan.warmup}"
    )
    console.print_line(f"  data: {corpus.tokens:,} bytes in {corpus.files:,} files of {config.data.path}")
    console.print_line(f"  run folder: {context.run_dir}")
    if plan.compile:
        console.print_line("  compiles in its first step: a minute or more the first time, less once the cache has it")


def _report_skipped(corpus: Corpus, reporter: Reporter) -> None:
    """All of them in the events, the first few on the console."""
    for file in corpus.skipped:
        reporter.record_event("data_skipped", f"{file.path}: {file.reason}", step=0, echo=False)
    for file in corpus.skipped[:3]:
        console.print_line(f"  skipped {file.path}: {file.reason}")
    if len(corpus.skipped) > 3:
        console.print_line(f"  ... and {len(corpus.skipped) - 3} more files, named in events.jsonl")


def _setup_heartbeat(context: RunContext, plan: TrainPlan) -> RankHeartbeat:
    return RankHeartbeat(
        rank=context.rank,
        world_size=context.world_size,
        attempt=context.attempt,
        step=0,
        steps=plan.config.steps,
        phase="setup",
    )


def _summary_line(result: TrainResult, plan: TrainPlan, wall_s: float) -> str:
    steps = plan.config.steps
    if result.first_loss is None or result.last_loss is None:
        return f"nothing to do: step {result.step}/{steps} was already done"
    what = "done" if result.exit_code == EXIT_OK else f"stopped after step {result.step}/{steps}"
    return f"{what}: loss {result.first_loss:.2f} -> {result.last_loss:.2f}, {console.format_duration(wall_s)} in all"
