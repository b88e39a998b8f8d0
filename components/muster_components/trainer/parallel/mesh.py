"""The DeviceMesh of a run, and this rank's place in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from muster_components.trainer.parallel.spec import MeshShape

_PIPELINE_CTAS: Final = 2
"""Thread blocks of an NCCL kernel between stages. A receive waits on the GPU until its sender is ready, and each of its
blocks (NCCL's default is 16) takes a multiprocessor from the matrix products that run meanwhile."""


@dataclass(frozen=True, slots=True)
class RankMesh:
    """This rank in the mesh. `mesh` has the dimensions pp, replicate, shard and tp (outermost first) that are needed;
    None if collectives over all ranks suffice (one rank, or DDP alone)."""

    shape: MeshShape
    rank: int
    mesh: DeviceMesh | None

    @property
    def tp_rank(self) -> int:
        return self.rank % self.shape.tp

    @property
    def data_rank(self) -> int:
        """Ranks with the same one, of `shape.data_ranks`, read the same samples."""
        return self.rank // self.shape.tp % self.shape.data_ranks

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.shape.tp * self.shape.data_ranks)

    def dimension(self, *names: str) -> DeviceMesh:
        """The submesh of these dimensions. Raises KeyError if the mesh lacks one."""
        if self.mesh is None:
            raise KeyError(f"the mesh has no dimensions; {', '.join(names)} requested")
        return self.mesh[names if len(names) > 1 else names[0]]

    @property
    def fsdp_mesh(self) -> DeviceMesh:
        """What FSDP2 shards over: `shard`, or `replicate` x `shard` (HSDP). Raises KeyError without them."""
        names = self.mesh.mesh_dim_names or () if self.mesh is not None else ()
        return self.dimension(*(name for name in ("replicate", "shard") if name in names))


def build_mesh(shape: MeshShape, device_type: str) -> RankMesh:
    """Create the process groups of the mesh; every rank of the process group must call this."""
    sizes: dict[str, int] = {}
    model_ranks = shape.pp * shape.tp
    if shape.pp > 1:
        sizes["pp"] = shape.pp
    if shape.data_ranks > 1 and (shape.data != "ddp" or model_ranks > 1):
        # DDP does not support weights that tensor parallelism splits: there, FSDP2 replicates over shards of one rank.
        if shape.data != "fsdp":
            sizes["replicate"] = shape.replicate
        sizes["shard"] = shape.shard
    if shape.tp > 1:
        sizes["tp"] = shape.tp
    if not sizes:
        return RankMesh(shape, dist.get_rank(), None)
    options: dict[int | str, Any] = {}
    if "pp" in sizes and device_type == "cuda":
        options["pp"] = dist.ProcessGroupNCCL.Options()
        options["pp"].config.max_ctas = _PIPELINE_CTAS
    mesh = init_device_mesh(
        device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes), backend_override=options or None
    )
    return RankMesh(shape, dist.get_rank(), mesh)
