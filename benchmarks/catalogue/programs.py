"""The programs of the catalogue; one process of this module is one rank.

torchrun --nproc-per-node 2 -m catalogue.programs --program ddp --out FOLDER     # with PYTHONPATH=benchmarks
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from multiprocessing import Value
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from catalogue.cases import BY_CONSTRUCTION, cases_of, some
from catalogue.conductor import Conductor
from catalogue.models import Clicks, Images, Pictures, Recommender, Tokens, language_model, size_of
from catalogue.planting import hog

TIMEOUT = timedelta(seconds=180)
SIZED = ("ddp-wide", "ddp-deep", "ddp-narrow", "fsdp-wide", "fsdp-deep", "fsdp-narrow", "pp-wide", "pp-narrow")
OURS = (
    "ddp",
    "ddp-image",
    "ddp-recommender",
    "fsdp",
    "pp",
    "single",
    "single-image",
    "single-wide",
    *SIZED,
    *(name for name in BY_CONSTRUCTION),
)
PROGRAMS = (*OURS, "hf", "hf-bert", "hf-narrow", "lightning", "lightning-image", "lightning-narrow", "titan")


def resend(count: int) -> Any:
    """A DDP hook that reduces each bucket `count` times."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with types, and these are strings
        for _ in range(count - 1):
            dist.all_reduce(bucket.buffer().clone())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    return hook


class Plain:
    """A loop of plain PyTorch: DDP, FSDP2 or a pipeline of one program."""

    def __init__(self, program: str, device: torch.device, conductor: Conductor) -> None:
        self.program, self.device, self.conductor = program, device, conductor
        size = size_of(program, device.type)
        if program.startswith("pp"):
            world = dist.get_world_size()
            size = dataclasses.replace(size, layers=2 * world, batch=4 * world)
        self.size, self.images, self.clicks = size, program.endswith("-image"), program.endswith("-recommender")
        self.tables = (16, 200_000, 16384) if device.type == "cuda" else (8, 1000, 256)
        torch.manual_seed(0)
        self.pipeline: Schedule1F1B | None = None
        self.model = self._model().to(device)
        if not program.endswith("-compile"):
            for part in self.model.children():
                conductor.watch(part)
            conductor.watch(list(self.model.children())[-1], backward=True)
        self.trained = self._distribute(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.accumulate = 4 if program in ("ddp-accumulate", "ddp-no-sync") else 1

    def _model(self) -> nn.Module:
        if self.images:
            return Images(128 if self.device.type == "cuda" else 16)
        if self.clicks:
            return Recommender(*self.tables[:2], width=64)
        layers, world, rank = self.size.layers, dist.get_world_size(), dist.get_rank()
        if not self.program.startswith("pp"):
            return language_model(self.size, layers)
        layers //= world
        if self.program == "pp-unbalanced" and rank == world // 2:
            layers *= 3
        return language_model(self.size, layers, first=rank == 0, last=rank == world - 1)

    def _distribute(self, model: nn.Module) -> nn.Module:
        if self.program.startswith("fsdp"):
            mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
            for part in model.children():
                fully_shard(part, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model
        if self.program.startswith("pp"):
            stage = PipelineStage(model, dist.get_rank(), dist.get_world_size(), self.device)
            count = dist.get_world_size() * (1 if self.program == "pp-few" else 4)
            self.pipeline = Schedule1F1B(stage, count, loss_fn=self._token_loss)
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        alone = self.program.startswith("single")  # one process, which communicates with none
        wrapped = model if alone else DistributedDataParallel(model, device_ids=ids)
        if self.program == "ddp-resent":
            wrapped.register_comm_hook(None, resend(24 if self.device.type == "cuda" else 8))
        if self.program.endswith("-compile"):
            torch._dynamo.config.cache_size_limit = 1000
            return torch.compile(wrapped, backend="aot_eager", dynamic=False)  # type: ignore[return-value]
        return wrapped

    def batches(self) -> Iterator[Tensor]:
        """From the DataLoader, forever."""
        if self.images:
            pixels, batch = (224, 64) if self.device.type == "cuda" else (32, 8)
            loader = DataLoader(Pictures(pixels), batch_size=batch, collate_fn=self._collate)
        elif self.clicks:
            loader = DataLoader(Clicks(*self.tables), batch_size=1, collate_fn=lambda one: self._collate(list(one[0])))
        elif self.program == "ddp-workers":
            self.conductor.slow_worker = slow = Value("d", 0.0)
            data = Tokens(self.size, slow)
            loader = DataLoader(data, batch_size=self.size.batch, num_workers=1, prefetch_factor=1)
        else:
            loader = DataLoader(Tokens(self.size), self.size.batch, collate_fn=self._collate)
        yield from loader

    def _collate(self, samples: list[Tensor]) -> Any:
        return self.conductor.collate(torch.stack(samples))

    @staticmethod
    def _token_loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten())

    def _loss(self, batch: Tensor) -> Tensor:
        if self.images:
            return self.trained(batch).float().square().mean()
        if self.clicks:
            clicked = (batch.sum(1, keepdim=True) % 2).float()
            return F.binary_cross_entropy_with_logits(self.trained(batch).float(), clicked)
        return self._token_loss(self.trained(batch[:, :-1]), batch[:, 1:])

    def train(self) -> None:
        """Until all cases are recorded."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")
        batches = self.batches()
        while not self.conductor.done:
            for micro in range(self.accumulate):
                batch = self.conductor.before_step(next(batches)) if micro == 0 else next(batches)
                batch = batch.to(self.device)
                kept = micro + 1 < self.accumulate and self.program == "ddp-accumulate"
                sync = self.trained.no_sync() if kept else contextlib.nullcontext()  # type: ignore[operator]
                with autocast, sync:
                    if self.pipeline is None:
                        self._loss(batch).backward()
                    else:
                        self._pipeline_step(batch)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.conductor.end_step(self.optimizer)

    def _pipeline_step(self, batch: Tensor) -> None:
        assert self.pipeline is not None
        last = dist.get_rank() == dist.get_world_size() - 1
        arguments = (batch[:, :-1].contiguous(),) if dist.get_rank() == 0 else ()
        self.pipeline.step(*arguments, **({"target": batch[:, 1:]} if last else {}))


def hugging_face(device: torch.device, conductor: Conductor, program: str) -> None:
    """transformers.Trainer with a GPT-2 or a BERT and default arguments."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    size = size_of(program, device.type)
    model: Any
    if program == "hf-bert":
        shape = {"hidden_size": size.width, "num_hidden_layers": size.layers, "intermediate_size": 4 * size.width}
        heads = max(1, size.width // 64)
        model = BertForMaskedLM(BertConfig(vocab_size=size.vocabulary, num_attention_heads=heads, **shape))
        blocks, last = model.bert.encoder.layer, model.cls
    else:
        config = GPT2Config(
            n_layer=size.layers, n_embd=size.width // 2, n_head=max(1, size.width // 128), vocab_size=size.vocabulary
        )
        model = GPT2LMHeadModel(config)
        blocks, last = model.transformer.h, model.transformer.ln_f
    for block in blocks:
        conductor.watch(block)
    conductor.watch(last, backward=True)

    class Follow(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            conductor.before_step()

        def on_step_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            conductor.end_step(optimizer)

    class Rows(Tokens):
        def __getitem__(self, at: int) -> Any:
            row = super().__getitem__(at)
            return {"input_ids": row[:-1], "labels": row[:-1]}

    def collate(rows: list[dict[str, Tensor]]) -> Any:
        return conductor.collate({key: torch.stack([row[key] for row in rows]) for key in rows[0]})

    arguments = TrainingArguments(
        output_dir="/tmp/hf-out",
        per_device_train_batch_size=size.batch,
        max_steps=conductor.total_steps,
        bf16=device.type == "cuda",
        use_cpu=device.type == "cpu",
        report_to="none",
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
    )
    Trainer(model, arguments, data_collator=collate, train_dataset=Rows(size), callbacks=[Follow()]).train()


def lightning_trainer(device: torch.device, conductor: Conductor, program: str) -> None:
    """lightning.Trainer with DDP, of a language model or torchvision's ResNet."""
    import lightning

    size, images = size_of(program, device.type), program == "lightning-image"
    pixels, batch_size = (224, 96) if device.type == "cuda" else (32, 8)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            if images:
                from torchvision.models import resnet18, resnet50

                self.model = resnet50() if device.type == "cuda" else resnet18()
            else:
                self.model = language_model(size, size.layers)
            parts = list(self.model.children())
            for part in parts:
                conductor.watch(part)
            conductor.watch(parts[-1], backward=True)

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            if images:
                loss = self.model(batch).float().square().mean()
            else:
                logits = self.model(batch[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Follow(lightning.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            conductor.before_step()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            conductor.end_step(trainer.optimizers[0])

    def collate(samples: list[Tensor]) -> Any:
        return conductor.collate(torch.stack(samples))

    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=dist.get_world_size(),
        strategy="ddp",
        precision="bf16-mixed" if device.type == "cuda" else "32-true",
        max_steps=conductor.total_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Follow()],
    )
    data: Any = Pictures(pixels) if images else Tokens(size)
    trainer.fit(Module(), DataLoader(data, batch_size if images else size.batch, collate_fn=collate))


def torch_titan(conductor: Conductor, device: torch.device) -> None:
    """TorchTitan 0.2.2: FSDP2 with compiled blocks of a Llama of 300 million parameters, random tokens."""
    on_gpu = device.type == "cuda"
    if not on_gpu:
        importlib.import_module("muster_components.titan.cpu").use_cpu()
    import torchtitan.protocols.train_spec as specs
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.config import ConfigManager
    from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec
    from torchtitan.train import Trainer

    vocabulary, width, layers, length = (16384, 1024, 8, 2048) if on_gpu else (512, 128, 2, 64)

    class Random(BaseDataLoader):
        def __init__(self, config: Any, rank: int) -> None:
            self._config, self._rank = config, rank

        def __iter__(self) -> Iterator[Any]:
            shape = (self._config.training.local_batch_size, self._config.training.seq_len + 1)
            while True:
                tokens = conductor.collate(torch.randint(0, vocabulary, shape))
                yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _: dict[str, Any]) -> None:
            pass

    flavors = {
        "small": TransformerModelArgs(
            dim=width,
            n_layers=layers,
            n_heads=width // 64,
            n_kv_heads=width // 128,
            multiple_of=256,
            rope_theta=500000,
            vocab_size=vocabulary,
        )
    }
    specs.register_train_spec(
        "catalogue",
        dataclasses.replace(
            get_train_spec("llama3") if get_train_spec.__code__.co_argcount else get_train_spec(),
            model_args=flavors,
            build_dataloader_fn=lambda dp_world_size, dp_rank, tokenizer, job_config: Random(job_config, dp_rank),
            build_tokenizer_fn=None,
            build_validator_fn=None,
        ),
    )
    flags = ["--model.name", "catalogue", "--model.flavor", "small", "--training.seq-len", str(length)]
    flags += ["--training.local-batch-size", "8", "--training.steps", str(conductor.total_steps)]
    flags += ["--compile.enable"] * on_gpu
    flags += ["--activation-checkpoint.mode", "none", "--job.dump-folder", "/tmp/titan", "--metrics.log-freq", "50"]
    trainer = Trainer(ConfigManager().parse_args(flags))
    model = trainer.model_parts[0]
    conductor.watch(model.norm)
    conductor.watch(model.output, backward=True)
    step = trainer.train_step

    def followed(data: Any) -> None:
        conductor.before_step()
        step(data)
        conductor.end_step(trainer.optimizers)

    trainer.train_step = followed
    trainer.train()


def main(argv: Sequence[str] | None = None) -> None:
    """One rank, under torchrun."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--program", choices=PROGRAMS, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clean", type=int, default=2, help="recordings without a fault")
    parser.add_argument("--faulty", type=int, help="so many with a fault, chosen by their names (default: all)")
    parser.add_argument("--steps", type=int, default=7, help="traced at most of each")
    args = parser.parse_args(argv)
    local, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1 if args.device == "cpu" else 4)
    device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    cases = some(cases_of(args.program, world, args.device == "cuda", args.clean), args.faulty)
    conductor = Conductor(cases, args.out, device, args.steps)
    if args.program == "titan":
        torch_titan(conductor, device)
        dist.destroy_process_group()
        os._exit(0)  # the processes that share the GPU are ended with their input
    if any(case.fault == "busy-device" for case in cases):
        hog(local)
    if args.device == "cuda":
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    if args.program.startswith("hf"):
        hugging_face(device, conductor, args.program)
    elif args.program.startswith("lightning"):
        lightning_trainer(device, conductor, args.program)
    else:
        Plain(args.program, device, conductor).train()
    print(f"{args.program}: done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
