"""Clusters for those who wait for a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.api.spec import TrainingJob
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions
from muster.torchx.local import LocalScheduler
from muster.torchx.scheduler import JobClient


@dataclass
class Ranks:
    """A cluster that knows what ranks said last, and nothing else."""

    said: list[dict[str, Any]] = field(default_factory=list)

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return self.said

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        return Path("/runs") / name

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        raise NotImplementedError

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        raise NotImplementedError

    def cancel(self, name: str, namespace: str = "default") -> TrainingJob:
        raise NotImplementedError

    def delete(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        raise NotImplementedError

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        raise NotImplementedError


class LoggedScheduler(LocalScheduler):
    """A TorchX client that waits for a job."""

    def __init__(self, client: JobClient) -> None:
        super().__init__("session")
        self.client = client
        self._submitted.add("default:a-1")

    def _client(self, app_id: str | None = None) -> Any:
        return self.client
