"""One HTTP request over the daemon's socket; errors are raised as the types of `muster.errors`."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from muster import errors
from muster.errors import DaemonError, MusterError

_ERROR_TYPES = {
    kind.__name__: kind
    for kind in (errors.InvalidSpec, errors.Refused, errors.NotFound, errors.Conflict, errors.ClusterError,
                 errors.DaemonError, errors.MusterError)
}  # fmt: skip


class DaemonUnavailable(DaemonError):
    """No daemon listens, or it is shutting down. The request was not processed and can be retried."""

    reason = "NotRunning"


def request(path: Path, method: str, url: str, body: Any = None, timeout_s: float = 60.0) -> Any:
    """The decoded response. Raises the daemon's error, `DaemonUnavailable`, or `DaemonError` if the connection
    breaks."""
    connection = _UnixHTTPConnection(path, timeout_s)
    try:
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonUnavailable(f"no daemon is running at {path}", reason="NotRunning") from error
        headers = {"Content-Type": "application/json", "Host": "localhost"}
        connection.request(method, url, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except TimeoutError as error:
        raise DaemonError(
            f"the daemon did not answer within {timeout_s:g} s ({method} {url})", reason="Timeout"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        if method == "GET" and isinstance(error, ConnectionResetError | BrokenPipeError):
            raise DaemonUnavailable(f"the daemon at {path} was killed", reason="NotRunning") from error
        message = f"the connection to the daemon was lost ({method} {url}): {error!r}"
        raise DaemonError(message, reason="ConnectionLost") from error
    finally:
        connection.close()
    if response.status >= 400:
        raise _error_from_response(answer.get("error", {}))
    return answer


def _error_from_response(body: dict[str, str]) -> MusterError:
    message, reason = body.get("message", "the daemon refused the request"), body.get("reason", "Error")
    if reason == "ShuttingDown":
        return DaemonUnavailable(message, reason="NotRunning")
    kind = _ERROR_TYPES.get(body.get("type", ""), MusterError)
    error = kind(message, field=body.get("field", ""), reason=reason)
    error.job = body.get("job", "")
    return error


class _UnixHTTPConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
