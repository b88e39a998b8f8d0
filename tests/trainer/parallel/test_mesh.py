"""Process groups of the mesh."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow  # imports torch


@pytest.mark.parametrize(("device", "ctas"), [("cuda", 2), ("cpu", None)])
def test_what_stages_send_takes_two_thread_blocks_of_nccl(
    monkeypatch: pytest.MonkeyPatch, device: str, ctas: int | None
) -> None:
    from muster_components.trainer.parallel import mesh
    from muster_components.trainer.parallel.spec import MeshShape

    given: dict[str, Any] = {}

    def init_device_mesh(device_type: str, sizes: tuple[int, ...], **options: Any) -> None:
        given.update(options, sizes=sizes)

    monkeypatch.setattr(mesh, "init_device_mesh", init_device_mesh)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    mesh.build_mesh(MeshShape(pp=2, shard=2), device)
    assert (given["sizes"], given["mesh_dim_names"]) == ((2, 2), ("pp", "shard"))
    override = given["backend_override"]
    assert (None if override is None else {name: one.config.max_ctas for name, one in override.items()}) == (
        None if ctas is None else {"pp": ctas}
    )
