"""muster.train.fsdp, ddp and script as TorchX finds, reads and builds them."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torchx.cli.cmd_run import CmdRun
from torchx.specs import AppDef
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import ComponentValidationException, get_component

from muster.torchx.appdef import to_training_job
from muster.torchx.errors import SubmissionRefused
from muster_components.app_builder import InvalidArgument
from muster_components.train import ddp, fsdp, pipeline, script, titan, trainer


def built(name: str, arguments: str) -> AppDef:
    """The component's app for a command line."""
    return materialize_appdef(get_component(f"muster.train.{name}").fn, shlex.split(arguments))


def test_torchx_takes_every_component_for_a_valid_one() -> None:
    for name in ("trainer", "fsdp", "ddp", "pipeline", "titan", "script"):
        component = get_component(f"muster.train.{name}")
        assert component.validation_errors == []
        assert "Usage: torchx run -s muster_local muster.train." in component.description


def test_the_command_of_the_readme_becomes_this_job() -> None:
    arguments = "-j 1x2 --model gpt:10m --data DIR --steps 60 --trace_steps 20:25 --queue research"
    job = to_training_job(built("fsdp", arguments), "fsdp-1", {})
    role = job.spec.roles[0]
    container = role.template.spec.containers[0]
    assert (job.spec.queue, role.replicas, role.min_replicas) == ("research", 1, None)
    assert [*container.command, *container.args] == [
        "python", "-m", "muster_components.launch", "--nproc", "2", "--", "-m", "muster_components.trainer",
        "--parallel", "fsdp", "--model=gpt:10m", "--data=DIR", "--steps=60",
    ]  # fmt: skip
    assert job.spec.trace is not None
    assert (job.spec.trace.start_step, job.spec.trace.steps, job.spec.trace.ranks) == (20, 5, [])
    assert job.spec.failure_policy.max_restarts == 3
    assert [(rule.on_exit_codes, rule.action) for rule in job.spec.failure_policy.rules] == [([2, 3, 78], "FailJob")]
    assert role.template.spec.termination_grace_period_seconds == 60


def test_an_app_that_saves_no_checkpoint_is_not_made_elastic_by_an_option() -> None:
    app = built("fsdp", "-j 2x1 --model gpt:1m --data DIR --steps 3 -- --keep 0")
    assert to_training_job(app, "a", {}).spec.roles[0].min_replicas is None
    with pytest.raises(SubmissionRefused, match="min_replicas: --keep must be at least 1 in an elastic job"):
        to_training_job(app, "a", {"min_replicas": 1})


def test_a_job_of_torchtitan_is_not_made_elastic_by_an_option_since_its_component_checks_that() -> None:
    app = titan(j="2x1")
    assert to_training_job(app, "a", {}).spec.roles[0].min_replicas is None
    with pytest.raises(SubmissionRefused, match=r"min_replicas: must be given to muster\.train\.titan"):
        to_training_job(app, "a", {"min_replicas": 1})


def test_every_argument_reaches_the_trainer_and_what_follows_the_dashes_too() -> None:
    arguments = (
        "--model gpt:1m --data DIR --seq_len 64 --global_batch 8 --lr 0.01 --precision fp32 --compile False"
        " --checkpoint_every 5 -- --seed 3"
    )
    args = built("ddp", arguments).roles[0].args
    assert args[args.index("muster_components.trainer") + 1 :] == [
        "--parallel", "ddp", "--model=gpt:1m", "--data=DIR", "--steps=100", "--seq_len=64", "--global_batch=8",
        "--lr=0.01", "--precision=fp32", "--checkpoint_every=5", "--no_compile", "--seed", "3",
    ]  # fmt: skip


OTHERWISE: dict[str, Any] = {
    "model": "gpt:1m", "data": "OTHER", "steps": 7, "j": "1:2x3", "parallel": "hsdp=1x1",
    "pipeline_schedule": "GPipe", "micro_batch": 2, "seq_len": 64, "global_batch": 8, "lr": 0.5, "float8": "tensorwise",
    "precision": "fp32", "compile": False, "checkpoint_every": 5, "trace_steps": "3:4", "trace_ranks": "1",
    "trace_every": 100, "trace_when_slower": 1.5,
    "queue": "other", "priority": 9, "max_runtime": "3h", "name": "other", "max_restarts": 8, "cpu": 4, "gpu": 2,
    "memMB": 99, "env": {"A": "1"}, "image": "other", "script": "other.py", "m": "other",
}  # fmt: skip


@pytest.mark.parametrize("component", [trainer, fsdp, ddp, titan, script])
def test_no_argument_of_a_component_is_forgotten(component: Callable[..., AppDef]) -> None:
    named = inspect.signature(component).parameters
    required = {"model": "gpt:10m", "data": "DIR"}
    if component in (script, titan):
        required = {"script": "train.py"} if component is script else {}
    for name, parameter in named.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            assert component("--seed=3", **required) != component(**required)
            continue
        base = {**required, "trace_steps": "1:2"} if name.startswith("trace") else required
        changed = {**base, name: OTHERWISE[name]}
        if name == "m":
            del changed["script"]
        if name == "j" and component is titan:  # which is elastic only where torchtitan can check it
            changed["j"] = "2x3"
        if name == "pipeline_schedule":
            base = {**base, "parallel": "pp=2", "j": "1x2"}
            changed = {**base, name: "GPipe"}
        assert component(**changed) != component(**base), name


def test_sizes_of_a_pod_are_read_from_text() -> None:
    app = built(
        "fsdp", "--model gpt:1m --data DIR --global_batch 32 --cpu 4 --gpu 0 --memMB 512 --env A=1,B=2 -j 1:4x8"
    )
    role = app.roles[0]
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (4, 0, 512)
    assert (role.env, role.min_replicas, role.num_replicas) == ({"A": "1", "B": "2"}, 1, 4)
    assert role.metadata == {"muster.dev/nproc": "8"}


def test_what_the_user_leaves_open_is_left_to_the_cluster() -> None:
    assert built("fsdp", "--model gpt:1m --data DIR -j 1x2").roles[0].metadata == {
        "muster.dev/nproc": "2", "muster.dev/accelerator": "auto", "muster.dev/cores": "auto",
    }  # fmt: skip


def test_a_script_runs_with_tracing_and_heartbeat_attached() -> None:
    app = built("script", "-j 1x2 --script my/train.py -- --lr 0.1")
    assert app.name == "train"
    assert app.roles[0].args == [
        "-m", "muster_components.launch", "--nproc", "2", "--", "-m", "muster_components.trainer.instrument",
        "my/train.py", "--lr", "0.1",
    ]  # fmt: skip
    assert built("script", "-m pkg.train").roles[0].args[-2:] == ["-m", "pkg.train"]


@pytest.mark.slow  # runs the model without values
def test_a_plan_that_cannot_fit_into_the_given_gpus_is_refused_at_submission() -> None:
    pytest.importorskip("torch")  # without it a plan is checked by the trainer
    shape = "--model llama:8b --seq_len 8192 --global_batch 16 --data DIR"
    with pytest.raises(InvalidArgument, match=r"needs \d+ GiB per GPU, 79 available .*; fits with "):
        built("fsdp", f"-j 1x2 {shape} -- --device h100")
    with pytest.raises(InvalidArgument, match=r"needs \d+ GiB per GPU, 8 available"):
        built("fsdp", f"-j 1:4x2 {shape} --parallel auto -- --device h100:8GiB")
    built("fsdp", f"-j 1x2 {shape} -- --device h100 --no_memory_check")
    built("fsdp", f"-j 1x8 {shape} --parallel auto -- --device h100")


def test_a_pipeline_is_two_stages_and_fsdp_over_the_other_ranks() -> None:
    args = built("pipeline", "-j 1x4 --model gpt:1m --data DIR --pipeline_schedule GPipe --micro_batch 2").roles[0].args
    assert args[args.index("muster_components.trainer") + 1 :] == [
        "--parallel", "pp=2,fsdp", "--model=gpt:1m", "--data=DIR", "--steps=100", "--pipeline_schedule=GPipe",
        "--micro_batch=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--pipeline_schedule ZBVZeroBubble", "torch cannot do for compiled modules (backend inductor)"),
        ("--pipeline_schedule 2F2B", "--pipeline_schedule must be one of GPipe, 1F1B"),
        ("-j 1x1", "--parallel pp=2,fsdp needs a multiple of 2 ranks; got 1"),
        ("--global_batch 8 --micro_batch 8", "needs at least as many micro-batches as stages, 2; got 1"),
        ("--compile yes", "--compile must be True or False; got 'yes'"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_at_submission(arguments: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        built("pipeline", f"--model gpt:1m --data DIR {arguments}")
    built("pipeline", "--model gpt:1m --data DIR --pipeline_schedule ZBVZeroBubble --compile False")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--parallel tp=2 --seq_len 33", "--seq_len must be a multiple of 2"),
        ("--global_batch 1", "--global_batch must be at least the number of ranks, 2"),
        ("--parallel pp=2 --global_batch 4 -- --micro_batch 4", "at least as many micro-batches as stages"),
        ("-j 1x8 --parallel pp=8", "gpt:1m has only 4 blocks"),
        ("-j 1x4 --parallel pp=4 -- --pipeline_schedule Interleaved1F1B", "has 8 stages; gpt:1m has only 4 blocks"),
        ("-j 1x32 --gpu 0", "--global_batch must be at least the number of ranks, 32; got 16"),
        ("--gpu 0 --parallel tp=2 -- --async_tp", "--async_tp requires GPUs"),
        ("--parallel tp=2 -- --activation_checkpointing full", "cannot be compiled by torch"),
        ("--gpu 2 -- --cuda_graph", "--cuda_graph requires one rank on a GPU"),
        ("--parallel ddp -- --reshard always", "--reshard is for fsdp and hsdp"),
        ("--parallel ddp -- --symmetric_memory", "--symmetric_memory is for"),
        ("--gpu 0 -- --symmetric_memory", "--symmetric_memory requires GPUs"),
    ],
)
def test_flags_that_no_rank_could_use_together_are_refused_when_the_job_is_built(arguments: str, expected: str) -> None:
    placed = arguments if "-j" in arguments else f"-j 1x2 {arguments}"
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        built("fsdp", f"--model gpt:1m --data DIR {placed}")


def test_a_batch_that_is_large_enough_on_gpus_only_is_not_refused_before_the_device_is_known() -> None:
    assert built("fsdp", "--model gpt:1m --data DIR -j 1x32").roles[0].num_replicas == 1


def test_the_old_names_are_the_trainer_with_other_defaults() -> None:
    arguments = "--model gpt:1m --data DIR -j 1x2"
    for name, parallel in (("fsdp", "fsdp"), ("ddp", "ddp"), ("pipeline", "pp=2,fsdp")):
        named = built(name, arguments)
        assert named.name == f"{name}-gpt:1m"
        named.name = "trainer-gpt:1m"
        assert named == built("trainer", f"{arguments} --parallel {parallel}")
    assert built("pipeline", "--model gpt:1m --data DIR").roles[0].args[3] == "2"


def test_the_old_names_have_the_arguments_and_the_help_of_the_trainer() -> None:
    for alias in (fsdp, ddp, pipeline):
        assert list(inspect.signature(alias).parameters) == list(inspect.signature(trainer).parameters)
        assert (alias.__doc__ or "").partition("Args:")[2] == (trainer.__doc__ or "").partition("Args:")[2] != ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"parallel": "fsdp=4", "j": "1x2"}, "--parallel fsdp=4 needs 4 ranks; got 2"),
        ({"parallel": "tp=2,fsdp=2", "j": "2:3x2"}, "--parallel tp=2,fsdp=2 needs 4 ranks; got 6"),
        ({"parallel": "zero"}, "--parallel must be a list of fsdp or fsdp=N"),
        ({"steps": -1}, "--steps must be at least 1; got -1"),
        ({"model": "gpt:11m"}, "--model must be a recipe; got 'gpt:11m'"),
        ({"trace_steps": "25:20"}, "--trace_steps must be FIRST:END"),
        ({"trace_steps": "20:25", "steps": 10}, "--trace_steps must start at a step of the run, which has --steps 10"),
        ({"trace_ranks": "0"}, "--trace_ranks 0 requires --trace_steps"),
        ({"trace_steps": "1:2", "trace_ranks": "x"}, "--trace_ranks must be a list of ranks"),
        ({"trace_every": 100}, "--trace_every 100 requires --trace_steps"),
        ({"trace_when_slower": 2.0}, "--trace_when_slower 2.0 requires --trace_steps"),
        ({"trace_steps": "1:6", "trace_when_slower": 1.0}, "--trace_when_slower must be from 1.1 to 100"),
        (
            {"trace_steps": "1:6", "trace_every": 5},
            "--trace_every must be a number of steps above 5, the steps of a trace",
        ),
        ({"trace_steps": "1:6", "trace_every": "x"}, "--trace_every must be a number of steps above 5"),
        ({"j": "0x2"}, "-j must have at least one node and one process"),
        ({"j": "2x"}, "-j must be NODESxPROCESSES"),
        ({"j": "1x" + "9" * 5000}, "-j must be NODESxPROCESSES"),
        ({"cpu": "9" * 5000}, "--cpu must be an integer of at least 1; got '999"),
        ({"j": "4:2x8"}, "-j must be MIN:MAXxPROCESSES with MIN not above MAX; got '4:2x8'"),
        ({"cpu": "many"}, "--cpu must be an integer of at least 1; got 'many'"),
        ({"gpu": -1}, "--gpu must be at least 0; got -1"),
        ({"max_restarts": -1}, "--max_restarts must be at least 0; got -1"),
        ({"seq_len": "x"}, "--seq_len: must be an integer; got 'x'"),
        ({"precision": "fp64"}, "'fp64'"),
        ({"float8": "fp8"}, "--float8: invalid choice: 'fp8'"),
        ({"float8": "rowwise", "gpu": 0}, "--float8 rowwise requires GPUs of compute capability 8.9 or higher"),
        ({"lr": float("nan")}, "--lr must be finite and above 0; got nan"),
    ],
)
@pytest.mark.parametrize("component", [fsdp, ddp])
def test_a_bad_value_is_named_with_what_would_be_right(
    component: Callable[..., AppDef], arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        component(**{"model": "gpt:1m", "data": "DIR", **arguments})


def test_a_mistyped_flag_of_the_trainer_is_refused_before_submission() -> None:
    with pytest.raises(InvalidArgument, match=r"'--sed' is not a flag of this command; did you mean --seed\?$"):
        fsdp("--sed", "3", model="gpt:1m", data="DIR")


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--nprocs", "'--nprocs' is not a flag of the trainer; use -j NODESxPROCESSES before the `--`"),
        ("--nproc-per-node=2", "'--nproc-per-node=2' is not a flag of the trainer; use -j NODESxPROCESSES before"),
        ("--queue", "'--queue' is not a flag of the trainer; use --queue before the `--`"),
    ],
)
def test_a_flag_of_the_component_or_launcher_after_the_dashes_is_refused_with_its_place(
    flag: str, expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(expected)):
        built("ddp", f"--model gpt:1m --data DIR -- {flag} 2")


def test_a_script_that_is_called_wrongly_is_not_called_again() -> None:
    job = to_training_job(built("script", "--script train.py --max_restarts 3"), "train-1", {})
    assert job.spec.failure_policy.max_restarts == 3
    assert [(rule.on_exit_codes, rule.action) for rule in job.spec.failure_policy.rules] == [([2, 78], "FailJob")]


def test_a_script_component_wants_exactly_one_thing_to_run() -> None:
    for path, module in ((None, None), ("a.py", "b")):
        with pytest.raises(InvalidArgument, match="must give either --script PATH or -m MODULE"):
            script(script=path, m=module)


def test_torchx_prints_bad_values_without_a_traceback() -> None:
    assert issubclass(InvalidArgument, ComponentValidationException)


def test_describing_a_job_does_not_import_torch() -> None:
    program = (
        "import sys; from muster_components.train import fsdp; import muster.torchx.local;"
        "fsdp(model='gpt:1m', data='x'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_argument_of_a_component_is_taken_for_an_option_of_torchx_run() -> None:
    """Its parser accepts abbreviations of its own options everywhere: `--schedule` would be `--scheduler`."""
    parser = argparse.ArgumentParser()
    CmdRun().add_arguments(parser)
    options = [option for action in parser._actions for option in action.option_strings]
    taken = [
        f"{component.__name__} --{name}"
        for component in (fsdp, ddp, pipeline, script)
        for name in inspect.signature(component).parameters
        if any(option.startswith(f"--{name}" if len(name) > 1 else f"-{name}") for option in options)
    ]
    assert taken == []
