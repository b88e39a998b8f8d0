"""Two ranks read an epoch, then three ranks go on from the same step: no sample is repeated or skipped."""

from muster_components.parts.sample_order import rank_samples

read = []
for step in range(8):
    world_size = 2 if step < 3 else 3  # resumed with another number of ranks after step 3
    for rank in range(world_size):
        read += rank_samples(step=step, samples=96, global_batch=12, rank=rank, world_size=world_size, seed=7)
assert sorted(read) == list(range(96))
print(f"{len(set(read))} samples were read once, begins with {read[:6]}")
