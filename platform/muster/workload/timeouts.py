"""The times of queueing and running that a cluster chooses."""

from __future__ import annotations

from dataclasses import dataclass

from muster.backoff import backoff_s


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times in seconds; the defaults are documented. A restart waits `backoff_s`, doubled with each further one up to
    `backoff_max_s`."""

    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    max_node_losses: int = 10  # per job; one more fails it
    force_delete_after_s: float = 300.0  # a node unknown for this long is lost, its pods are ignored
    blame_ttl_s: float = 3600.0  # a job excludes a node after a failure for this long
    max_blamed_nodes: int = 10
    sandbox_timeout_s: float = 60.0  # by then any healthy node has created the sandbox of a pod
    checkpoint_refresh_s: float = 60.0  # the newest checkpoint is written to the status at most this often
    progress_refresh_s: float | None = None  # progress is written to the status at most this often; None: never
    finished_pods_delay_s: float = 5.0  # delay until completed pods of a running gang are recorded
    log_tail_bytes: int = 4096

    def backoff(self, restarts: int) -> float:
        """Seconds before restart number `restarts` (1 is the first); 0 for none."""
        return backoff_s(restarts, self.backoff_s, self.backoff_max_s)
