"""Requests to the API server with nothing but the standard library.

For what kubectl is too slow for, or too helpful: thousands of nodes, a look at every pod many times a second, the
exact status code of a refusal. It shares no code with what is tested.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Json = dict[str, Any]


class Refused(Exception):
    """The API server's answer was not a success."""

    def __init__(self, code: int, status: Json) -> None:
        super().__init__(f"{code}: {status.get('message', status)}")
        self.code = code
        self.reason = str(status.get("reason", ""))


class Api:
    """A user's view of the API server. Safe to use from many threads: each keeps a connection of its own."""

    def __init__(self, server: str, authority: Path, token: str, acts_as: str = "") -> None:
        """`acts_as`: the name of an administrator whom the user impersonates."""
        self._host = urlsplit(server).netloc
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._headers = {"Authorization": f"Bearer {token}"}
        if acts_as:
            self._headers |= {"Impersonate-User": acts_as, "Impersonate-Group": "system:masters"}
        self._local = threading.local()

    def get(self, path: str, **query: str) -> Json:
        """Read an object or a list, e.g. get("/api/v1/pods", labelSelector="a=b")."""
        return self.request("GET", f"{path}?{urlencode(query)}" if query else path)

    def items(self, path: str, **query: str) -> list[Json]:
        """The objects of a list."""
        items: list[Json] = self.get(path, **query)["items"]
        return items

    def create(self, path: str, body: Json) -> Json:
        """Create an object in the collection `path`."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Json) -> Json:
        """Merge `body` into an object; add "/status" to the path for its status."""
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, **options: Any) -> Json:
        """Delete an object or a collection. `options` are those of DeleteOptions."""
        return self.request("DELETE", path, options or None)

    def delete_if_exists(self, path: str, **options: Any) -> None:
        """Delete an object that another component may have deleted since it was listed. A connection that the server
        has closed meanwhile is no answer: it is asked once more."""
        try:
            try:
                self.delete(path, **options)
            except (OSError, http.client.HTTPException):
                self.delete(path, **options)
        except Refused as refused:
            if refused.code != 404:
                raise

    def gone(self, path: str) -> bool:
        """Whether there is no such object."""
        try:
            self.get(path)
        except Refused as refused:
            if refused.code == 404:
                return True
            raise
        return False

    def watch(self, path: str, since: str, seconds: int) -> Generator[Json, None, None]:
        """Yield what happened to the objects of a collection after a resourceVersion, then what happens in `seconds`.

        On a connection of its own, so other requests may go on meanwhile.
        """
        connection = http.client.HTTPSConnection(self._host, timeout=seconds + 60, context=self._tls)
        query = urlencode({"watch": "1", "resourceVersion": since, "timeoutSeconds": str(seconds)})
        try:
            connection.request("GET", f"{path}?{query}", headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise Refused(answer.status, json.loads(answer.read()))
            for line in answer:
                yield json.loads(line)
        finally:
            connection.close()

    def request(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json", tries: int = 30
    ) -> Json:
        """Send one request. Refused where the answer is not 2xx; OSError or HTTPException where there is none."""
        reused = getattr(self._local, "connection", None) is not None
        headers = {**self._headers, "Accept": "application/json", "Content-Type": kind}
        payload = None if body is None else json.dumps(body).encode()
        sent = False
        try:
            connection = self._connection()
            connection.request(method, path, payload, headers)
            sent = True
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._local.connection = None  # the next request opens another
            # The server was restarted since: a question is asked again, and what could not even be sent is sent again.
            if reused and (method == "GET" or not sent):
                return self.request(method, path, body, kind, tries)
            raise
        try:
            decoded: Json = json.loads(content) if content else {}
        except ValueError:  # health checks and some errors are plain text
            decoded = {"message": content.decode(errors="replace")}
        if answer.status == 429 and method == "GET" and tries > 1:
            time.sleep(1)  # a server that has just started or a new CRD: "storage is (re)initializing"
            return self.request(method, path, body, kind, tries - 1)
        if not 200 <= answer.status < 300:
            raise Refused(answer.status, decoded)
        return decoded

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(self._host, timeout=60, context=self._tls)
            self._local.connection = connection
        return connection
