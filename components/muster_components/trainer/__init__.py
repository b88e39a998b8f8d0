"""The trainer, which runs in a pod's ranks.

    torchrun --nproc-per-node 2 -m muster_components.trainer --model gpt:10m --data FOLDER --steps 60
    torchrun --nproc-per-node 2 -m muster_components.trainer.instrument SCRIPT args...

The first trains a decoder-only language model on bytes; the second runs any script unchanged and adds heartbeat and
traces. Their interface to the rest of Muster is the environment and the run folder (docs/run-folder.md).

    config, recipes, flags     configuration, without torch, so that it can be checked before a pod starts
    context, errors            rank, world size, attempt, run folder; errors and exit codes
    data                       files to tokens, and the samples of each step
    models, parallelize        the network; FSDP2 or DDP, compile, precision
    checkpoint                 asynchronous checkpoints and resume
    session, loop, train_step  set-up, training loop and SIGTERM, one step with AdamW
    reporter                   heartbeats, metrics, events, progress lines
    profile                    traces of the configured steps
    instrument                 heartbeat and traces for unmodified scripts

Importing this package imports no torch.
"""
