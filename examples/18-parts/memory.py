"""Which ways to train a model of 1.2 billion parameters fit on eight H100, predicted on a machine without a GPU."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from muster_components.parts.memory import predict_memory

config = GPT2Config(n_embd=1536, n_layer=40, n_head=16, attn_pdrop=0.0, use_cache=False)
tokens = lambda n: dict.fromkeys(("input_ids", "labels"), torch.zeros(n, 1024, dtype=torch.long))  # noqa: E731
plans = predict_memory(lambda: GPT2LMHeadModel(config), tokens, device="h100", gpus=8, global_batch=64)
for plan in plans[:3]:
    print(f"{plan.needed / 2**30:5.1f} of {plan.capacity / 2**30:.0f} GiB, {plan.step_s:.2f} s a step: {plan.flags}")
print(f"{sum(plan.fits for plan in plans)} of {len(plans)} plans fit")
