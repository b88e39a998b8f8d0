"""Rendezvous of the ranks of two pods with torch; the store outlives rank 0."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from muster.local.nodes import free_port

from .conftest import Pod

pytestmark = pytest.mark.slow


@pytest.mark.matrix
@pytest.mark.smoke
def test_two_pods_rendezvous_and_the_store_outlives_rank_0(start: Callable[..., Pod]) -> None:
    source = """
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store
        dist.init_process_group("gloo")
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        print("sum", total.item(), dist.is_torchelastic_launched(), flush=True)
        store = _get_default_store()
        if rank == 0:
            store.set("first", str(os.getpid()))
            os._exit(0)
        first = store.get("first").decode()
        while os.path.exists(f"/proc/{first}"):
            time.sleep(0.02)
        store.set(f"late-{rank}", "here")
        print("late", store.get(f"late-{rank}"), flush=True)
        """
    port = str(free_port((), random.Random()))  # none that the kernel gives to others in the meantime
    pods = [
        start(
            source, "--nproc", "2",
            MUSTER_REPLICA=str(replica), MUSTER_REPLICAS="2", MUSTER_RANK0_HOST="127.0.0.1", MUSTER_RANK0_PORT=port,
        )
        for replica in range(2)
    ]  # fmt: skip
    ends = [pod.end() for pod in pods]
    assert [code for code, _ in ends] == [0, 0], ends
    log = "".join(text for _, text in ends)
    assert log.count("sum 6.0 True") == 4
    assert log.count("late b'here'") == 3
