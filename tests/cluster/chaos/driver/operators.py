"""Operator processes: started, killed with SIGKILL, frozen with SIGSTOP; each behind a proxy of its own."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.chaos.driver.proxy import Proxy
from tests.cluster.controlplane.access import ADMIN, write_kubeconfig
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised

NAMESPACE = "muster-system"
LEASE_S, DEADLINE_S, EVERY_S = 5.0, 3.5, 0.5


@dataclass(slots=True)
class _Running:
    program: Supervised
    identity: str
    frozen: bool = False


class Operators:
    """At most one operator in each slot."""

    def __init__(self, plane: ControlPlane, folder: Path, flags: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._flags = flags
        port = urlsplit(plane.server).port
        assert port is not None
        self._plane = plane
        self._port = port
        self._running: dict[int, _Running] = {}
        self._proxies: dict[int, Proxy] = {}
        self._started = 0
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, slot: int, *, same: str = "") -> None:
        """Start one; `same`: the identity of a killed one, as a restarted container has it."""
        if slot in self._running:
            return
        self._started += 1
        identity = same or f"operator-{slot}-{self._started}"
        proxy = self.proxy(slot)
        server = f"https://127.0.0.1:{proxy.port}"
        kubeconfig = self._folder / f"kubeconfig-{slot}"
        write_kubeconfig(kubeconfig, server, self._plane.authority, self._plane.token_for(ADMIN))
        command = [
            sys.executable, "-m", "muster_operator", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}",
            f"--identity={identity}", f"--lease-duration-seconds={LEASE_S}", f"--renew-deadline-seconds={DEADLINE_S}",
            f"--retry-period-seconds={EVERY_S}", "--listen=127.0.0.1:0", "--listen-local=127.0.0.1:0", *self._flags,
        ]  # fmt: skip
        self._running[slot] = _Running(Supervised(f"operator-{slot}", command, self._folder), identity)

    def kill(self, slot: int) -> str:
        """SIGKILL; return its identity, "" where there was none."""
        one = self._running.pop(slot, None)
        if one is None:
            return ""
        one.program.kill()
        return one.identity

    def freeze(self, slot: int) -> None:
        """SIGSTOP."""
        one = self._running.get(slot)
        if one is not None and not one.frozen:
            os.kill(one.program.pid, signal.SIGSTOP)
            one.frozen = True

    def thaw(self, slot: int) -> None:
        """SIGCONT."""
        one = self._running.get(slot)
        if one is not None and one.frozen:
            os.kill(one.program.pid, signal.SIGCONT)
            one.frozen = False

    def proxy(self, slot: int) -> Proxy:
        """The proxy between it and the API server."""
        if slot not in self._proxies:
            self._proxies[slot] = Proxy(self._port)
        return self._proxies[slot]

    def slot_of(self, identity: str) -> int | None:
        """The slot of the holder of a Lease."""
        return next((slot for slot, one in self._running.items() if one.identity == identity), None)

    @property
    def slots(self) -> list[int]:
        """Slots with an operator in them."""
        return sorted(self._running)

    def check(self) -> None:
        """Raise Died when an operator has ended by itself."""
        for one in self._running.values():
            one.program.check()

    def stop(self) -> None:
        """End them all."""
        for slot in self.slots:
            self.kill(slot)
        for proxy in self._proxies.values():
            proxy.stop()
        self._proxies.clear()
