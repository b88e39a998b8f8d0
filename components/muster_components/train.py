"""TorchX components: training jobs as typed functions.

`trainer` runs Muster's trainer, `titan` TorchTitan, `script` a script of yours. `fsdp`, `ddp` and `pipeline` are
`trainer` with other defaults. Example: `torchx run -s muster_local muster.train.fsdp -j 1x2 --model gpt:10m --data D`.
Arguments that only Muster's schedulers know (queue, traces) are metadata, which other schedulers ignore.

TorchX parses this file: every argument needs an annotation that it supports (Optional[...], no `from __future__`) and a
line in the docstring.
"""

from typing import Any, Dict, Optional

import torchx
from torchx import specs

# Imported as a module: TorchX treats every function in this namespace as a component.
from muster_components import app_builder


def trainer(
    *trainer_args: str,
    model: str,
    data: str,
    steps: int = 100,
    j: str = "1x1",
    parallel: str = "fsdp",
    pipeline_schedule: Optional[str] = None,
    micro_batch: Optional[int] = None,
    seq_len: Optional[int] = None,
    global_batch: Optional[int] = None,
    lr: Optional[float] = None,
    precision: str = "auto",
    float8: str = "none",
    compile: str = "True",
    checkpoint_every: Optional[int] = None,
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    trace_every: Optional[int] = None,
    trace_when_slower: Optional[float] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: int = 3,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Trains a model, by default a language model on text; `--parallel` says how the ranks divide the work.

    Usage: torchx run -s muster_local muster.train.trainer -j 1x2 --parallel ddp --model gpt:10m --data DIR --steps 60

    Args:
        trainer_args: more flags of the trainer, after `--` (python -m muster_components.trainer --help lists them)
        model: a recipe such as gpt:10m, hf:TYPE or hf:FOLDER (Transformers), or my.module:factory
        data: text or token files, a saved data set, or my.module:dataset
        steps: optimizer steps
        j: NODESxPROCESSES, or MIN:MAXxPROCESSES for an elastic job
        parallel: fsdp or ddp over all ranks, a list of sizes such as pp=2,fsdp=4, or auto
        pipeline_schedule: GPipe, 1F1B (the default), Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble or DualPipeV
        micro_batch: sequences per micro-batch (default: a rank's share; with pp=N, four micro-batches for each stage)
        seq_len: tokens per sequence (default: 128 on CPU, 1024 on GPU)
        global_batch: sequences per step over all ranks (default: 16 on CPU, 64 on GPU)
        lr: peak learning rate (default: the recipe's)
        precision: auto, bf16 or fp32; auto is bf16 if the GPU supports it
        float8: none, tensorwise or rowwise; linear layers of the blocks in float8, on GPUs that have it
        compile: True, or False for eager
        checkpoint_every: steps between checkpoints, 0 for one at the end (default: a quarter, at most 500)
        trace_steps: FIRST:END steps to profile, such as 20:25 for steps 20 to 24
        trace_ranks: ranks to profile, such as 0,3 (default: all)
        trace_every: profile as many steps again every N steps (default: once)
        trace_when_slower: profile as many steps also after one that takes so many times as long as usual, such as 1.5
        queue: queue that the job waits in
        priority: jobs of higher priority come first in the queue
        max_runtime: maximum run time from admission, such as 2h
        name: name of the job (default: the component's and the model's)
        max_restarts: maximum number of restarts of the gang after failures
        cpu: CPU cores per node (default: one per process, or the GPUs' share of the node)
        gpu: GPUs per node (default: one per process if the nodes have that many, else none)
        memMB: memory per node in MB (default: not limited)
        env: environment variables, such as A=1,B=2
        image: container image that does not run as root, or with -cfg pod_security=privileged; not used by muster_local
    """
    return app_builder.training_app(trainer_args, locals())


@app_builder.alias(trainer)
def fsdp(*trainer_args: str, **arguments: Any) -> specs.AppDef:
    """Trains with FSDP2: the weights are sharded over the ranks.

    Usage: torchx run -s muster_local muster.train.fsdp -j 1x2 --model gpt:10m --data DIR --steps 60
    """
    return trainer(*trainer_args, **arguments)


@app_builder.alias(trainer, parallel="ddp")
def ddp(*trainer_args: str, **arguments: Any) -> specs.AppDef:
    """Trains with DDP: each rank has all weights.

    Usage: torchx run -s muster_local muster.train.ddp -j 1x2 --model gpt:10m --data DIR --steps 60
    """
    return trainer(*trainer_args, **arguments)


@app_builder.alias(trainer, parallel="pp=2,fsdp", j="1x2")
def pipeline(*trainer_args: str, **arguments: Any) -> specs.AppDef:
    """Trains as a pipeline: each rank has some of the blocks, and passes hidden states on to the next.

    Usage: torchx run -s muster_local muster.train.pipeline -j 1x2 --model gpt:10m --data DIR --steps 60
    """
    return trainer(*trainer_args, **arguments)


def script(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    j: str = "1x1",
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    trace_every: Optional[int] = None,
    trace_when_slower: Optional[float] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: int = 0,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Runs your own script as torchrun does, with heartbeat and traces added; the script needs no change.

    Usage: torchx run -s muster_local muster.train.script -j 1x2 --script train.py -- --lr 0.1

    Args:
        script_args: arguments of the script, after `--`
        script: path of the script
        m: module to run instead, as python -m does
        j: NODESxPROCESSES, or MIN:MAXxPROCESSES for an elastic job
        trace_steps: FIRST:END steps to profile, such as 20:25 for steps 20 to 24; a step is an optimizer step
        trace_ranks: ranks to profile, such as 0,3 (default: all)
        trace_every: profile as many steps again every N steps (default: once)
        trace_when_slower: profile as many steps also after one that takes so many times as long as usual, such as 1.5
        queue: queue that the job waits in
        priority: jobs of higher priority come first in the queue
        max_runtime: maximum run time from admission, such as 2h
        name: name of the job (default: that of the script)
        max_restarts: maximum number of restarts of the gang after failures
        cpu: CPU cores per node (default: one per process, or the GPUs' share of the node)
        gpu: GPUs per node (default: one per process if the nodes have that many, else none)
        memMB: memory per node in MB (default: not limited)
        env: environment variables, such as A=1,B=2
        image: container image that does not run as root, or with -cfg pod_security=privileged; not used by muster_local
    """
    return app_builder.script_app(app_builder.ScriptArgs(path=script, module=m, args=script_args), locals())


def titan(
    *titan_args: str,
    j: str = "1x1",
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    trace_every: Optional[int] = None,
    trace_when_slower: Optional[float] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: Optional[int] = None,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Runs TorchTitan unmodified, with its own flags and TOML; Muster adds progress, traces, stops and resume.

    Usage: torchx run -s muster_local muster.train.titan -j 1x8 -- --job.config_file llama3_8b.toml

    Args:
        titan_args: flags of TorchTitan, after `--` (python -m torchtitan.config.manager --help lists them)
        j: NODESxPROCESSES, or MIN:MAXxPROCESSES for an elastic job
        trace_steps: FIRST:END steps to profile, such as 20:25 for steps 20 to 24, counted over all attempts
        trace_ranks: ranks to profile, such as 0,3 (default: all)
        trace_every: profile as many steps again every N steps (default: once)
        trace_when_slower: profile as many steps also after one that takes so many times as long as usual, such as 1.5
        queue: queue that the job waits in
        priority: jobs of higher priority come first in the queue
        max_runtime: maximum run time from admission, such as 2h
        name: name of the job (default: titan- and the model's name)
        max_restarts: maximum number of restarts of the gang after failures (default: 3 with checkpoints, else 0)
        cpu: CPU cores per node (default: one per process, or the GPUs' share of the node)
        gpu: GPUs per node (default: one per process if the nodes have that many, else none)
        memMB: memory per node in MB (default: not limited)
        env: environment variables, such as A=1,B=2
        image: container image that does not run as root, or with -cfg pod_security=privileged; not used by muster_local
    """
    return app_builder.titan_app(titan_args, locals())
