"""etcd's log of changes over its HTTP gateway: objects of all kinds, in the order in which they were committed.

The API server has one watch for each kind, without an order between them, and they end when it is killed. etcd's log
has neither problem. Objects must be stored as JSON (`ControlPlane.start(readable=True)`).
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.chaos.checker.model import Event

ROOT = "/registry/"
# Keys by kind; all other keys are ignored.
PREFIXES = {
    "/registry/pods/": "Pod",
    "/registry/minions/": "Node",
    "/registry/services/specs/": "Service",
    "/registry/secrets/": "Secret",
    "/registry/leases/": "Lease",
    "/registry/events/": "Event",
    "/registry/muster.dev/trainingjobs/": "TrainingJob",
    "/registry/muster.dev/queues/": "Queue",
    "/registry/muster.dev/workloads/": "Workload",
    "/registry/jobs/": "Job",
    "/registry/jobset.x-k8s.io/jobsets/": "JobSet",
}


@dataclass(frozen=True, slots=True)
class Etcd:
    """An etcd without TLS, such as http://127.0.0.1:2379."""

    url: str

    def changes(self, since: int = 1) -> Iterator[Event]:
        """All changes from a revision on, and then new ones.

        Ends only with an error: OSError or ValueError.
        """
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=600)
        request = {"key": _text(ROOT), "range_end": _text("/registry0"), "start_revision": since}
        connection.request("POST", "/v3/watch", json.dumps({"create_request": request}))
        answer = connection.getresponse()
        for line in answer:
            message = json.loads(line)
            result = message.get("result")
            if result is None or result.get("canceled"):
                raise ValueError(f"etcd ends the watch: {message}")
            now = time.time()
            for event in result.get("events") or ():
                found = _event(event, now)
                if found is not None:
                    yield found
        raise ConnectionError("etcd has closed the watch")

    def revision(self) -> int:
        """The newest revision."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            connection.request("POST", "/v3/kv/range", json.dumps({"key": _text(ROOT), "count_only": True}))
            return int(json.loads(connection.getresponse().read())["header"]["revision"])
        finally:
            connection.close()


def _event(event: dict[str, Any], now: float) -> Event | None:
    kv = event["kv"]
    key = base64.b64decode(kv["key"]).decode()
    kind, name = next(
        ((kind, key[len(prefix) :]) for prefix, kind in PREFIXES.items() if key.startswith(prefix)), ("", "")
    )
    if not kind:
        return None
    document = None
    if event.get("type") != "DELETE":
        value = base64.b64decode(kv["value"])
        if not value.startswith(b"{"):
            raise ValueError(f"{key} is not stored in etcd as JSON; start the control plane with readable=True")
        document = json.loads(value)
    return Event(int(kv["mod_revision"]), kind, name, document, now)


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
