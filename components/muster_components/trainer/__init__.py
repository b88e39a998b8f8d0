"""The trainer, which runs in a pod's ranks.

    torchrun --nproc-per-node 2 -m muster_components.trainer --model gpt:10m --data FOLDER --steps 60
    torchrun --nproc-per-node 2 -m muster_components.trainer.instrument SCRIPT args...

The first trains a model (docs/tasks/models.md); the second runs any script unchanged and adds heartbeat and
traces. Their interface to the rest of Muster is the environment and the run folder (docs/reference/run-folder.md).

    config, flags              configuration, without torch, so that it can be checked before a pod starts
    context, device, errors    rank, world size, run folder; device and process group; errors and exit codes
    models                     the interface TrainModel; recipes, models of Transformers, user modules; safetensors
    data                       text, token files and data sets as samples, and their order
    user_code                  functions and objects of the user's modules
    compilation                backends of torch.compile, compile cache, records of compilations
    parallel                   FSDP2 or DDP, compile, activation checkpointing
    session, loop              set-up; training loop and SIGTERM
    train_step                 one step: forward_backward, then AdamW
    checkpoint                 asynchronous checkpoints and resume
    reporter                   heartbeats, metrics, events, progress lines
    profile                    traces of the configured steps
    instrument                 heartbeat and traces for unmodified scripts

Importing this package imports no torch.
"""
