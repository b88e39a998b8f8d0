"""Which GPUs and which port a replica gets."""

from __future__ import annotations

import random
import socket
from dataclasses import replace

import pytest

from muster.errors import ClusterError
from muster.local.nodes import free_port
from muster.local.pod_supervisor import free_devices
from muster.local.records import PodRecord

POD = PodRecord("p", "u", "trainer", 0, 1, 0, "n1", "local", 20000, 2, devices=("1", "2"))


@pytest.mark.parametrize(
    ("pods", "wanted", "expected"),
    [
        ([], 2, ("0", "1")),
        ([POD], 2, ("0", "3")),
        ([POD], 3, None),
        ([replace(POD, phase="Failed")], 3, ("0", "1", "2")),
        ([replace(POD, deleting_at=1.0)], 3, None),
        ([replace(POD, devices=None)], 4, ("0", "1", "2", "3")),
        ([POD], 0, ()),
    ],
)
def test_gpus_are_free_once_no_living_replica_has_them(
    pods: list[PodRecord], wanted: int, expected: tuple[str, ...] | None
) -> None:
    assert free_devices(("0", "1", "2", "3"), pods, wanted) == expected


class Fixed(random.Random):
    """Proposes these ports, one after another, the last one for ever."""

    def __init__(self, *ports: int) -> None:
        super().__init__()
        self.ports = list(ports)

    def randrange(self, *_: object) -> int:
        return self.ports.pop(0) if len(self.ports) > 1 else self.ports[0]


def listener(address: str) -> socket.socket:
    listening = socket.socket()
    listening.bind((address, 0))
    listening.listen()
    return listening


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_someone_listens_on_is_not_handed_out(address: str) -> None:
    free = free_port((), random.Random())
    with listener(address) as used:
        in_use = used.getsockname()[1]
        assert free_port({}, Fixed(in_use, free)) == free
        assert free_port({in_use}, Fixed(in_use, free)) == free
        with pytest.raises(ClusterError, match="no free port"):
            free_port({}, Fixed(in_use))
