"""The trainer: what runs inside a pod, under torchrun, once the gang is there.

    torchrun --nproc-per-node 2 -m muster_components.trainer --model gpt:10m --data FOLDER --steps 60
    torchrun --nproc-per-node 2 -m muster_components.trainer.instrument SCRIPT args...

The first trains a decoder-only language model on bytes; the second runs any script unchanged and adds the heartbeat and
the traces. Both know the rest of Muster only through the environment and the run folder (docs/run-folder.md).

    config, recipes       what the user asked for; no torch in here, so that it can be checked before a pod starts
    context               who this process is: rank, world, attempt, run folder
    data, order           files to tokens; which sample is where at which step
    models, flops         the network, and what one token costs
    parallelize, optim    FSDP2 or DDP, compile, precision; AdamW and its schedule
    checkpoint            asynchronous, atomic, bounded, and what to resume from
    session, loop, step   the story: set up, train, stop in step with the others
    stopping              SIGTERM, and the exit codes
    beats, console        what the outside sees
    profile               traces of the agreed steps
    attach                a heartbeat and traces for scripts that know nothing of Muster

Importing this package imports no torch.
"""
