"""Commands in a pod and connections to its ports, through WebSockets of the API server.

Frames of `pods/exec` begin with the number of a channel: stdin, stdout, stderr, the end as a Status, the size of the
terminal; 255 closes a channel. Those of `pods/portforward` with one port are data (0) and errors (1); the first of each
has the port.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from muster.errors import ClusterError, NotFound
from muster.kube.resources import PODS

if TYPE_CHECKING:
    from websocket import WebSocket

    from muster.kube.sync_client import KubeClient

_STDIN, _STDOUT, _STDERR, _END, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_FORWARD_PROTOCOL = "v4.channel.k8s.io"
_BLOCK = 32_768


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A container of a pod."""

    namespace: str
    pod: str
    container: str

    def path(self, subresource: str, query: Sequence[tuple[str, str]]) -> str:
        """The path of a subresource, with its query."""
        return f"{PODS.path(self.namespace, self.pod)}/{subresource}?{urlencode(query)}"


def run_in_pod(client: KubeClient, address: PodAddress, command: Sequence[str]) -> int:
    """Run a command in the container, with this process's stdin and output, on a terminal if both are one. Returns its
    exit code. Raises `NotFound` for a pod that is gone, `Refused` without the right to, `ClusterError`."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    flags = {"stdin": True, "stdout": True, "stderr": not terminal, "tty": terminal}
    query = [("container", address.container), *((name, str(on).lower()) for name, on in flags.items())]
    path = address.path("exec", [*query, *(("command", word) for word in command)])
    with _opened(client, path, _EXEC_PROTOCOLS) as ws, _raw_terminal(ws) if terminal else nullcontext():
        threading.Thread(target=_send_stdin, args=(ws,), daemon=True).start()
        return _receive(ws)


def forward_port(client: KubeClient, address: PodAddress, listener: socket.socket, port: int) -> None:
    """Serve the connections that the listener accepts from the port of the pod, until Ctrl-C."""
    while True:
        accepted, _ = listener.accept()
        threading.Thread(target=_forward_connection, args=(client, address, accepted, port), daemon=True).start()


@contextmanager
def _opened(client: KubeClient, path: str, protocols: Sequence[str]) -> Iterator[WebSocket]:
    ws = client.open_websocket(path, protocols)
    try:
        yield ws
    finally:
        ws.close()


@contextmanager
def _raw_terminal(ws: WebSocket) -> Iterator[None]:
    """Within this context, keys go to the pod as they are, and the pod knows the terminal's size."""

    def resize(*_: object) -> None:
        columns, rows = shutil.get_terminal_size()
        with suppress(Exception):  # the connection has ended
            ws.send_binary(bytes([_RESIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())

    stdin = sys.stdin.fileno()
    before, handler = termios.tcgetattr(stdin), signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(stdin, termios.TCSADRAIN)  # what was typed meanwhile is kept
        resize()
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)


def _send_stdin(ws: WebSocket) -> None:
    with suppress(Exception):  # the command has ended
        while data := os.read(sys.stdin.fileno(), _BLOCK):
            ws.send_binary(bytes([_STDIN]) + data)
        if ws.getsubprotocol() == _EXEC_PROTOCOLS[0]:
            ws.send_binary(bytes([_CLOSE, _STDIN]))


def _receive(ws: WebSocket) -> int:
    """Write what arrives; the exit code."""
    from websocket import WebSocketException

    outputs = {_STDOUT: sys.stdout.fileno(), _STDERR: sys.stderr.fileno()}
    try:
        while frame := ws.recv():
            data = frame if isinstance(frame, bytes) else frame.encode()
            if data[0] == _END:
                return _exit_code(json.loads(data[1:]))
            if data[0] in outputs:
                _write_all(outputs[data[0]], data[1:])
    except (OSError, WebSocketException) as error:
        raise ClusterError(f"the connection to the pod has ended: {error}", reason="Unreachable") from error
    raise ClusterError("the connection to the pod has ended before the command", reason="Unreachable")


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _exit_code(status: dict[str, Any]) -> int:
    """That of a Status; raises `ClusterError` if the command did not start."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    code = next((one.get("message") for one in causes if one.get("reason") == "ExitCode"), None)
    if code is None:
        raise ClusterError(str(status.get("message") or "the command did not start"), reason="ExecFailed")
    return int(code)


def _forward_connection(client: KubeClient, address: PodAddress, local: socket.socket, port: int) -> None:
    from websocket import WebSocketException

    try:
        with local, _opened(client, address.path("portforward", [("ports", str(port))]), [_FORWARD_PROTOCOL]) as ws:
            incoming = ws.sock
            assert incoming is not None, "it is open"
            skip = {0, 1}  # the first frame of each channel has the port
            while True:
                ready = [incoming] if _is_buffered(ws) else select.select([local, incoming], [], [])[0]
                if local in ready:
                    data = local.recv(_BLOCK)
                    if not data:
                        return
                    ws.send_binary(b"\0" + data)
                if incoming in ready:
                    frame = ws.recv()
                    if not frame:
                        return
                    content = frame if isinstance(frame, bytes) else frame.encode()
                    channel, data = content[0], content[1:]
                    if channel in skip:
                        skip.discard(channel)
                    elif channel == 1 and data:
                        print(f"port {port} of pod {address.pod}: {data.decode(errors='replace')}", file=sys.stderr)
                        return
                    elif channel == 0:
                        local.sendall(data)
    except (ClusterError, NotFound, OSError, WebSocketException) as error:
        print(f"port {port} of pod {address.pod}: {error}", file=sys.stderr)


def _is_buffered(ws: WebSocket) -> bool:
    """Whether TLS has data that `select` does not see."""
    pending = getattr(ws.sock, "pending", None)
    return pending is not None and pending() > 0
