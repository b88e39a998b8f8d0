"""The rendezvous store (TCPStore), served by the launcher of pod 0 so that it outlives rank 0.

A rank that ends early must not end the store of the others, and pod 0 must not end before the other pods, as with
torchrun's agent. The port is bound before any rank starts, so that a port in use is reported at once. torch is imported
in the background while the ranks start.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from muster_components.launch.rank_layout import RankLayout
from muster_components.trainer.errors import EXIT_IMPORT

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported by assignment only

EXIT_STORE = 75  # EX_TEMPFAIL: another port may work
PEERS_TIMEOUT = timedelta(seconds=300)
CONNECT_TIMEOUT = timedelta(seconds=10)


class PortInUse(OSError):
    """Rank 0's port cannot be bound; the message names the port and what to do."""


def listen(layout: RankLayout) -> socket.socket:
    """A listening socket on the layout's port (0: any free one), on loopback if rank 0's host is. Raises PortInUse."""
    loopback = _is_loopback(layout.host)
    try:
        if loopback or not socket.has_dualstack_ipv6():
            return socket.create_server(("127.0.0.1" if loopback else "", layout.port), backlog=2048)
        return socket.create_server(("", layout.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
    except OSError as error:
        raise PortInUse(
            f"port {layout.port} of {socket.gethostname()} cannot be used for rendezvous ({error.strerror or error}); "
            "stop the program that uses it or set MUSTER_RANK0_PORT to another port"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RendezvousStore:
    """The store in the launcher of one pod. Calls run in threads, since blocking C++ calls would delay signals."""

    def __init__(self, layout: RankLayout, listener: socket.socket | None) -> None:
        self._layout = layout
        self._listener = listener
        self._store: TCPStore | None = None
        self._ready = threading.Event()

    def open(self, on_failure: Callable[[int, str], None]) -> None:
        """Serve in pod 0, import torch in the others, in the background; `on_failure` gets exit code and reason."""
        threading.Thread(target=self._open, args=(on_failure,), name="store", daemon=True).start()

    def _open(self, on_failure: Callable[[int, str], None]) -> None:
        try:
            try:
                from torch.distributed import TCPStore  # type: ignore[attr-defined]
            except Exception as error:  # a broken installation: the ranks cannot import it either
                on_failure(EXIT_IMPORT, f"torch cannot be imported: {_last_line(error)}")
                return
            if self._listener is not None:
                host = "127.0.0.1" if _is_loopback(self._layout.host) else "localhost"
                self._store = TCPStore(
                    host,
                    self._layout.port,
                    is_master=True,
                    wait_for_workers=False,
                    timeout=PEERS_TIMEOUT,
                    master_listen_fd=self._listener.detach(),
                )
        except Exception as error:  # any error of torch: without the store the ranks would wait until their timeout
            on_failure(EXIT_STORE, f"the rendezvous store at port {self._layout.port} cannot be served: {error}")
        finally:
            self._ready.set()

    def wait_for_peers(self, on_done: Callable[[], None]) -> None:
        """Call `on_done` once this pod may end: in pod 0 when all other pods have reported that they are done, or after
        300 s; in the others once they have reported."""
        threading.Thread(target=self._wait_for_peers, args=(on_done,), name="leave", daemon=True).start()

    def _wait_for_peers(self, on_done: Callable[[], None]) -> None:
        # If the store cannot be reached, pod 0 has ended already.
        with contextlib.suppress(Exception):
            self._ready.wait()
            if self._layout.replica == 0 and self._store is not None:
                others = [_done_key(replica) for replica in range(1, self._layout.replicas)]
                self._store.wait(others, PEERS_TIMEOUT)
            elif self._layout.replica > 0:
                from torch.distributed import TCPStore  # type: ignore[attr-defined]

                store = TCPStore(self._layout.host, self._layout.port, is_master=False, timeout=CONNECT_TIMEOUT)
                store.set(_done_key(self._layout.replica), "1")
        on_done()


def _last_line(error: Exception) -> str:
    """The last line of the error's traceback."""
    return "".join(traceback.format_exception_only(error)).rstrip().splitlines()[-1].strip()


def _done_key(replica: int) -> str:
    return f"muster/done/{replica}"
