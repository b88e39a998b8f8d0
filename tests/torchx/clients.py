"""Clusters for those who wait for a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.torchx.local import LocalScheduler


@dataclass
class Ranks:
    """A cluster that knows what ranks said last, and nothing else."""

    heartbeat_documents: list[dict[str, Any]] = field(default_factory=list)

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return self.heartbeat_documents

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        return Path("/runs") / name


class LoggedScheduler(LocalScheduler):
    """A TorchX client that waits for a job."""

    def __init__(self, client: Any) -> None:
        super().__init__("session")
        self.client = client
        self._submitted.add("default:a-1")

    def _client(self, app_id: str | None = None) -> Any:
        return self.client
