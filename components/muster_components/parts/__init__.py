"""Parts of Muster's trainer that any training engine can import, each alone (docs/tasks/parts.md).

    sample_order    which samples a rank reads in a step: the same order for any number of ranks
    checkpoints     complete checkpoints with digests, of files that the engine writes itself
    compiled_code   what torch.compile made, kept for restarts and for other replicas
    memory          which ways to shard a model fit on a kind of GPU, and how long a step takes

The fifth part, the agreement of all ranks on a stop, is `muster.should_stop` (docs/tasks/preemptible.md).
"""
