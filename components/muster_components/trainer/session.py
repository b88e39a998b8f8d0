"""One attempt at training, from the configuration to the exit code.

The order of the set-up matters:

1. the device and the process group, which the other steps need to communicate;
2. the data, read by one rank of each host, the same on all ranks;
3. the plan: predicted memory, and what `--parallel auto` chooses, before weights are allocated;
4. model, optimizer and checkpointer: the newest checkpoint replaces the initial weights;
5. the training loop.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import loss_parallel

from muster_components.trainer.capture import CaptureInbox
from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.checkpoint_saver import SaveOptions
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.compilation.backends import find_backend
from muster_components.trainer.compilation.monitor import compile_monitor
from muster_components.trainer.config import DEFAULT_BACKEND, TrainConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.data.cache_folder import token_cache_dir
from muster_components.trainer.data.corpus import SkippedText
from muster_components.trainer.data.tokenizer import TokenizerEncoder
from muster_components.trainer.data.training_data import TrainingData, open_data
from muster_components.trainer.device import choose_device, host_capabilities, init_distributed, select_kernels
from muster_components.trainer.errors import EXIT_OK, InputError, TrainerError
from muster_components.trainer.forward_backward import BatchReader, ForwardBackward, GradientAccumulation
from muster_components.trainer.loop import TrainLoop, TrainResult, TrainState
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.selection import FactorySource
from muster_components.trainer.models.transformer import RecipeModel
from muster_components.trainer.parallel.float8 import require_torchao
from muster_components.trainer.parallel.mesh import build_mesh
from muster_components.trainer.parallel.pipeline import PipelinedForwardBackward, parallelize_stages
from muster_components.trainer.parallel.sharding import ParallelModel, parallelize
from muster_components.trainer.parallel.stage_tensors import StageTensors
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan
from muster_components.trainer.planning.at_start import decide_plan
from muster_components.trainer.profile import StepTracer
from muster_components.trainer.progress import Progress
from muster_components.trainer.rank_failures import on_all_ranks, raise_on_all_ranks
from muster_components.trainer.reporter import RankHeartbeat, Reporter, format_count, format_duration, print_line
from muster_components.trainer.stop_signal import StopSignal
from muster_components.trainer.train_step import TrainStep, adamw


def train(config: TrainConfig, context: RunContext, environ: Mapping[str, str]) -> int:
    """One attempt, from set-up to the exit code. Raises TrainerError."""
    started_s = time.monotonic()
    stop = StopSignal()
    stop.install()
    device = choose_device(context, environ)
    host = host_capabilities(device, context, environ)
    plan = resolve_plan(config, host)
    if plan.compile_backend is not None:
        find_backend(plan.compile_backend)  # an unknown one is refused before the data is read
    require_torchao(config.float8)
    reporter = Reporter(context)
    reporter.write_heartbeat(_setup_heartbeat(context, plan))
    init_distributed(device, context.world_size, launched="RANK" in environ)
    try:
        with select_kernels(device, plan.precision, deterministic=config.deterministic), loss_parallel():
            result = _train(plan, host, context, device, reporter, stop)
    except TrainerError as error:
        # After an error of this rank alone, destroying the group would wait for the other ranks.
        if error.same_on_all_ranks:
            dist.destroy_process_group()
        raise
    finally:
        reporter.flush()
    dist.destroy_process_group()
    if context.is_rank0:
        print_line(_summary_line(result, plan, time.monotonic() - started_s))
    return result.exit_code


def _train(
    plan: TrainPlan,
    host: HostCapabilities,
    context: RunContext,
    device: torch.device,
    reporter: Reporter,
    stop: StopSignal,
) -> TrainResult:
    model = on_all_ranks(lambda: train_model(plan))  # a host may lack a module of the user
    data = open_shared_data(plan, model, context)
    samples = data.samples
    if plan.config.save_pretrained is not None:
        from muster_components.trainer.models.safetensors_save import require_savable

        folder = Path(plan.config.save_pretrained)
        on_all_ranks(lambda: require_savable(folder))
    decision = decide_plan(plan, model, samples, device, host, context)
    plan = decision.plan
    mesh = build_mesh(plan.mesh, device.type)
    pipeline = None
    if plan.mesh.pp > 1:
        example = BatchReader(plan, model, samples, torch.device("cpu"), mesh.data_rank).example()[0]
        pipeline = parallelize_stages(model, plan, device, mesh, example)
    parallel = parallelize(model, plan, device, mesh) if pipeline is None else pipeline.parallel
    optimizers = [adamw(part.model, plan) for part in parallel.parts]
    keep = plan.config.checkpoint.keep
    store = CheckpointStore(context.checkpoints_dir, context.attempt, keep, context.job_uid)
    parts = [(part.model, optimizer) for part, optimizer in zip(parallel.parts, optimizers, strict=True)]
    fingerprint = checkpoint_fingerprint(plan, model, data)
    options = SaveOptions(
        memory=plan.config.checkpoint.memory,
        write_every=plan.config.checkpoint.write_every,
        local_ranks=context.local_world_size,
        overlap=not plan.graphs_steps(parallel.parameter_count),
    )
    checkpointer = Checkpointer(store, parts, reporter, fingerprint, parallel.tied, options)
    _require_no_padding(plan, model)
    weight_per_step = plan.global_batch * samples.weight_per_sample
    if context.is_rank0:
        _print_header(plan, context, model, parallel, data, decision.summary)
        _report_skipped(data.skipped, reporter)
    completed_step = checkpointer.restore(anew=not plan.config.checkpoint.resume)
    if plan.config.init_from is not None and completed_step == 0:
        from muster_components.trainer.init_from import load_initial_weights

        load_initial_weights(Path(plan.config.init_from), model, parallel, checkpointer)
    if keep > 0:
        checkpointer.saver.reserve()
    for part in parallel.parts:
        part.publish_weights()
    reader = BatchReader(plan, model, samples, device, parallel.mesh.data_rank)
    gradient_scale = plan.mesh.data_ranks / weight_per_step
    forward_backward: ForwardBackward = (
        GradientAccumulation(model, parallel, gradient_scale)
        if pipeline is None
        else PipelinedForwardBackward(plan, pipeline, gradient_scale)
    )
    flops_per_sample = model.flops_per_sample()
    monitor = None
    if plan.compile:
        monitor = compile_monitor(plan, context, model, mesh, reporter, os.environ)
        monitor.begin()
    stepper = TrainStep(plan, parallel, optimizers, reader, forward_backward, weight_per_step, lambda: stop.requested)
    progress = Progress(
        plan=plan,
        context=context,
        device=device,
        reporter=reporter,
        checkpointer=checkpointer,
        stage=stepper.stage,
        tokens_per_step=None if model.sample_spec.kind == "fields" else plan.tokens_per_step,
        flops_per_step=None if flops_per_sample is None else plan.global_batch * flops_per_sample,
    )
    tracer = StepTracer(
        plan.config.trace,
        context,
        reporter,
        CaptureInbox(context, reporter) if context.accepts_captures else None,
        plan.schedule.record(plan.mesh.pp, plan.gradient_accumulation_steps) if plan.mesh.pp > 1 else None,
    )
    read_lag = 1 if device.type == "cuda" else 0
    state = TrainState(
        plan, context, reporter, progress, stepper, checkpointer, tracer, stop, monitor, read_lag=read_lag
    )
    with contextlib.closing(reader):
        result = TrainLoop(state, completed_step).run()
    if monitor is not None and context.is_rank0 and (line := monitor.summary()) is not None:
        print_line(line)
    if plan.config.save_pretrained is not None and result.exit_code == EXIT_OK:
        save_pretrained(model, parallel, Path(plan.config.save_pretrained))
    return result


def save_pretrained(model: TrainModel, parallel: ParallelModel, folder: Path) -> None:
    """Save a recipe or an `hf:` model for `from_pretrained`. Raises TrainerError."""
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    assert isinstance(model, HuggingFaceModel | RecipeModel)  # validate_config refuses the others
    if parallel.mesh.shape.pp == 1:
        (part,) = parallel.parts
        model.save(part.model, folder)
        return
    with torch.device("meta"):
        whole = model.build()
    model.save(whole, folder, gather=StageTensors(parallel).gather)


def train_model(plan: TrainPlan) -> TrainModel:
    """The model that `--model` names. Raises InputError."""
    source, data = plan.config.model, plan.config.data
    if isinstance(source, ModelConfig):
        return RecipeModel(source, plan.seq_len)
    # Imported late: the packages of the extra `hf` are not needed by recipes.
    if isinstance(source, FactorySource):
        from muster_components.trainer.models.factory import FactoryModel

        return FactoryModel(source.name, dict(source.args))
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    special = None if data.tokenizer is None else TokenizerEncoder(data.tokenizer).special_tokens
    return HuggingFaceModel(source.source, dict(source.args), plan.seq_len, special)


def open_shared_data(plan: TrainPlan, model: TrainModel, context: RunContext) -> TrainingData:
    """The data: the first rank of each host writes the cache, the others map it. Raises TrainerError on all ranks."""
    data: TrainingData | None = None
    failure: Exception | None = None
    for writes in (True, False):
        if writes == (context.local_rank == 0):
            try:
                cache_dir = token_cache_dir(os.environ)
                data = open_data(plan.config.data, model.sample_spec, cache_dir, exclude=context.run_dir)
            except Exception as error:
                failure = error
        raise_on_all_ranks(failure)
    assert data is not None
    _require_same_data(data, context)
    return data


def checkpoint_fingerprint(plan: TrainPlan, model: TrainModel, data: TrainingData) -> dict[str, object]:
    """The values that a checkpoint must have in common with this run: they determine shapes and the sample order."""
    return {
        "model": model.architecture(),
        "seq_len": plan.seq_len,
        "global_batch": plan.global_batch,
        "seed": plan.config.seed,
        "data": data.fingerprint,
    }


def _require_same_data(data: TrainingData, context: RunContext) -> None:
    fingerprints = [""] * context.world_size
    dist.all_gather_object(fingerprints, data.fingerprint)
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise InputError(
                f"--data differs between hosts: rank {rank} sees {fingerprint}, rank 0 {fingerprints[0]}; "
                "every host needs the same files"
            )


def _require_no_padding(plan: TrainPlan, model: TrainModel) -> None:
    if plan.padding and not model.sample_spec.allows_padding:
        raise InputError(
            f"--global_batch must be a multiple of ranks x --micro_batch, since {model.name} computes its own mean "
            f"loss; got {plan.global_batch}, which leaves {plan.padding} positions without a sample"
        )


def _print_header(
    plan: TrainPlan,
    context: RunContext,
    model: TrainModel,
    parallel: ParallelModel,
    data: TrainingData,
    prediction: str,
) -> None:
    config = plan.config
    device = torch.cuda.get_device_name(parallel.device) if parallel.device.type == "cuda" else "CPU"
    mesh = plan.mesh
    kind = mesh.data if mesh.data_ranks == mesh.world_size and mesh.data != "hsdp" else str(mesh)
    modes = [kind] if context.world_size > 1 else []
    compiled = "compiled" if plan.compile_backend == DEFAULT_BACKEND else f"compiled by {plan.compile_backend}"
    modes += [compiled if plan.compile else "not compiled", plan.precision]
    if config.float8.recipe is not None:
        layers = sum(part.float8_layers for part in parallel.parts)
        modes.append(f"float8 {config.float8.recipe} in {layers} linear layers")
    if config.parallel.recompute != "none":
        modes.append(f"{config.parallel.recompute} recompute")
    if config.parallel.offload_activations:
        modes.append("activations offloaded")
    ranks = "1 rank" if context.world_size == 1 else f"{context.world_size} ranks"
    print_line(f"muster trainer: {model.name}, {format_count(parallel.parameter_count)} parameters ({model.summary})")
    print_line(f"  {ranks} on {device}, {', '.join(modes)}; torch {torch.__version__}")
    batch = f"{plan.global_batch} x {plan.seq_len} = {plan.tokens_per_step:,} tokens"
    if model.sample_spec.kind == "fields":
        batch = f"{plan.global_batch:,} samples"
    print_line(
        f"  {config.steps} steps of {batch}"
        + (f", {plan.gradient_accumulation_steps} micro-steps" if plan.gradient_accumulation_steps > 1 else "")
        + (f", {plan.padding} padding sequences" if plan.padding else "")
        + f"; peak lr {plan.lr:g}, warm-up {plan.warmup}"
    )
    for note in (plan.without_effect, plan.untraced):
        if note:
            print_line(f"  {note}")
    if prediction:
        print_line(f"  {prediction}")
    print_line(f"  data: {data.summary}")
    print_line(f"  run folder: {context.run_dir}")
    if plan.compile:
        print_line("  the first step compiles: a minute or more, less if the cache has the code")


def _report_skipped(skipped: Sequence[SkippedText], reporter: Reporter) -> None:
    """Write all skipped files to the events, and the first three to the console."""
    for file in skipped:
        reporter.record_event("data_skipped", f"{file.path}: {file.reason}", step=0, echo=False)
    for file in skipped[:3]:
        name = file.path.replace("\n", "\\n")
        print_line(f"  skipped {name}: {file.reason}")
    if len(skipped) > 3:
        print_line(f"  ... and {len(skipped) - 3} more files, listed in events.jsonl")


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
    outcome = "done" if result.exit_code == EXIT_OK else f"stopped after step {result.step}/{steps}"
    return f"{outcome}: loss {result.first_loss:.2f} -> {result.last_loss:.2f}, {format_duration(wall_s)} in total"
