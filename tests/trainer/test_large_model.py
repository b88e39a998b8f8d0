"""A model that is too large for one rank is loaded and trained in shards: measured peak of resident memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.trainer.conftest import Starter, write_text

MEASURED = r"""
import ctypes, re, sys
import torch._dynamo  # which the optimizer imports
from muster_components.trainer import checkpoint_saver, session
from muster_components.trainer.__main__ import main

M_MMAP_THRESHOLD = -3  # of mallopt: larger freed blocks go back to the system
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536) == 1

def resident(field):
    with open("/proc/self/status") as status:
        return int(re.search(field + r":\s+(\d+) kB", status.read())[1]) * 1024

def reset_peak():
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")

parallelize, save = session.parallelize, checkpoint_saver.CheckpointSaver.save

def measured(*arguments):
    global before
    reset_peak()
    before = resident("VmRSS")
    parallel = parallelize(*arguments)
    print("loaded", resident("VmHWM") - before, flush=True)
    reset_peak()
    return parallel

def measured_save(self, step):
    print("trained", resident("VmHWM") - before, flush=True)
    save(self, step)

session.parallelize, checkpoint_saver.CheckpointSaver.save = measured, measured_save
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_each_of_four_ranks_needs_a_fraction_of_the_model(tmp_path: Path, start: Starter) -> None:
    """One rank would need 4 times the model's size in float32: weights, gradients and two moments.

    What the first step imports and allocates for itself counts here too, about the size of this model.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=16,
        num_attention_heads=8,
        pad_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    size = sum(parameter.numel() for parameter in model.parameters()) * torch.float32.itemsize
    model.save_pretrained(tmp_path / "model", max_shard_size="20MB")
    del model
    (tmp_path / "measured.py").write_text(MEASURED)
    flags = ("--model", f"hf:{tmp_path / 'model'}", "--data", str(write_text(tmp_path)), "--seq_len", "8")
    ranks = start(
        4,
        *(*flags, "--global_batch", "4", "--steps", "2", "--no_compile", "--reshard", "always"),
        *("--checkpoint_memory", "none"),
        module="measured",
    )
    assert ranks.end(timeout_s=800) == [0] * 4, ranks.log_text()
    for rank in range(4):
        peaks = {
            name: int(value) for name, value in re.findall(r"^(loaded|trained) (\d+)$", ranks.log_text(rank), re.M)
        }
        assert peaks["loaded"] < 0.5 * size, (peaks, size)
        assert peaks["trained"] < 2.75 * size, (peaks, size)
