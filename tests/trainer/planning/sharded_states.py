"""One rank that trains a step with FSDP2 and prints the bytes of its states: `python -m ... FLAG...`, with gloo."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.parallel.gradients import local
from muster_components.trainer.parallel.mesh import build_mesh
from muster_components.trainer.parallel.sharding import parallelize
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.planning.examples import example_batches
from muster_components.trainer.session import train_model
from muster_components.trainer.train_step import adamw


def main() -> None:
    """Train one step."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=ranks)
    host = HostCapabilities(device="cpu", world_size=ranks, has_compiler=True, has_bf16=True)
    plan = resolve_plan(parse_train_config(sys.argv[1:], {}), host)
    model = train_model(plan)
    parallel = parallelize(model, plan, torch.device("cpu"), build_mesh(plan.mesh, "cpu"))
    (part,) = parallel.parts
    optimizer = adamw(part.model, plan)
    part.module(**example_batches(model, None)(1)).backward()
    gradients = [local(parameter.grad) for parameter in parallel.parameters() if parameter.grad is not None]
    optimizer.step()
    moments = [local(state[name]) for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    sizes = {
        "parameters": [local(parameter) for parameter in parallel.parameters()],
        "gradients": gradients,
        "optimizer": moments,
    }
    if rank == 0:
        print(json.dumps({name: sum(tensor.nbytes for tensor in tensors) for name, tensors in sizes.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
