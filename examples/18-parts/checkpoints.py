"""The newest checkpoint is damaged, as by a disk: the one before it is loaded."""

import torch

from muster_components.parts.checkpoints import VerifiedCheckpoints

model, checkpoints = torch.nn.Linear(4, 1), VerifiedCheckpoints("checkpoints", keep=2)
for step in (10, 20):
    with checkpoints.saving(step) as folder:  # every rank writes its files into it, by any library
        torch.save(model.state_dict(), folder / "model.pt")
(checkpoints.newest().path / "model.pt").write_bytes(b"damaged")
found = checkpoints.newest()
model.load_state_dict(torch.load(found.path / "model.pt"))
print(f"goes on after step {found.step}")
