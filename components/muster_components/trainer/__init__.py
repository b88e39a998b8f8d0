"""The trainer, which runs in a pod's ranks.

    torchrun --nproc-per-node 2 -m muster_components.trainer --model gpt:10m --data FOLDER --steps 60
    torchrun --nproc-per-node 2 -m muster_components.trainer.instrument SCRIPT args...

The first trains a decoder-only language model on bytes; the second runs any script unchanged and adds heartbeat and
traces. Their interface to the rest of Muster is the environment and the run folder (docs/run-folder.md).

    config, recipes, flags     configuration, without torch, so that it can be checked before a pod starts
    context                    rank, world size, attempt, run folder
    data, shuffle              files to tokens; the samples of each step
    models, flops              the network, and its FLOPs per token
    parallelize, optim         FSDP2 or DDP, compile, precision; AdamW and its schedule
    checkpoint                 asynchronous checkpoints and resume
    session, loop, train_step  set-up, training loop, one step
    stop_signal, errors        SIGTERM, and the exit codes
    reporter, console          heartbeats, metrics, events; progress lines
    profile, trace_window      traces of the configured steps
    instrument                 heartbeat and traces for unmodified scripts

Importing this package imports no torch.
"""
