"""Lightning: a small regression on random data, written for torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Regression(lightning.LightningModule):
    """Learns a linear function of 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def on_train_start(self) -> None:
        if self.trainer.is_global_zero:
            print(f"starts after step {self.trainer.global_step} on {self.trainer.world_size} ranks", flush=True)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        if self.trainer.is_global_zero and self.trainer.global_step % 100 == 0:
            print(f"step {self.trainer.global_step} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class SaveOnSigterm(lightning.Callback):
    """All ranks stop after the same step, with a checkpoint; Lightning's own handler can leave DDP hanging."""

    stopped = False
    _signalled = False

    def _handle(self, *_: object) -> None:
        self._signalled = True

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        signal.signal(signal.SIGTERM, self._handle)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if trainer.strategy.reduce_boolean_decision(self._signalled, all=False):
            trainer.save_checkpoint(os.path.join(args.output, "last.ckpt"))
            self.stopped = trainer.should_stop = True


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save_every", type=int, default=50)
parser.add_argument("--output", default="out-lightning")
args = parser.parse_args()

lightning.seed_everything(0)
save_on_sigterm = SaveOnSigterm()
x = torch.randn(4096, 16)
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
trainer = lightning.Trainer(
    strategy="ddp",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    max_steps=args.steps,
    callbacks=[save_on_sigterm, ModelCheckpoint(args.output, every_n_train_steps=args.save_every, save_last=True)],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=32), ckpt_path="last")
if trainer.is_global_zero:
    print(f"{'stops' if save_on_sigterm.stopped else 'done'} after step {trainer.global_step}", flush=True)
if save_on_sigterm.stopped:
    sys.exit(143)
