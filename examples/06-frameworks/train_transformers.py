"""Transformers' Trainer: a very small GPT-2 on random tokens, written for torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save_every", type=int, default=50)
parser.add_argument("--output", default="out-transformers")
args = parser.parse_args()


class RandomTokens(torch.utils.data.Dataset):
    """The same 4096 sequences of 16 tokens each time."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 64, (4096, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class SaveOnSigterm(TrainerCallback):
    """All ranks stop after the same step, with a checkpoint."""

    stopped = False
    _signalled = False

    def _handle(self, *_):
        self._signalled = True

    def on_train_begin(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self._handle)
        if state.is_world_process_zero:
            print(f"starts after step {state.global_step} on {args.world_size} ranks", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        signalled = torch.tensor(float(self._signalled), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(signalled)
        if signalled.item():
            self.stopped = control.should_save = control.should_training_stop = True


save_on_sigterm = SaveOnSigterm()
trainer = Trainer(
    model=GPT2LMHeadModel(
        GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    ),
    args=TrainingArguments(
        args.output,
        max_steps=args.steps,
        save_steps=args.save_every,
        save_total_limit=2,
        per_device_train_batch_size=8,
        logging_steps=100,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),  # without it, only one rank is used on CPUs
    ),
    train_dataset=RandomTokens(),
    callbacks=[save_on_sigterm],
)
# Rank 0 creates the folder, perhaps later.
checkpoint = get_last_checkpoint(args.output) if os.path.isdir(args.output) else None
trainer.train(resume_from_checkpoint=checkpoint)
if trainer.is_world_process_zero():
    print(f"{'stops' if save_on_sigterm.stopped else 'done'} after step {trainer.state.global_step}", flush=True)
if save_on_sigterm.stopped:
    sys.exit(143)
