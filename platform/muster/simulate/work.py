"""What a simulated job does once its pods run: work, checkpoints, failures, and how much of it survives a stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobBehavior:
    """How a simulated job behaves. Times in seconds; `runtime_s` is what it takes at its full size.

    A gang of fewer pods works proportionally slower. What was done up to the last checkpoint survives a stop, and all
    of it does when the job also checkpoints on SIGTERM. `exits` are the exit codes of attempts 0, 1, ... (0 beyond);
    an attempt that fails does so after `fails_after_s`. Attempts in `stuck` never get their last pod ready. Pods of
    `endless` roles run until they are stopped.
    """

    runtime_s: float
    start_delay_s: float = 0.0
    stop_s: float = 0.0  # from SIGTERM to exit; cut off by the grace
    checkpoint_every_s: float | None = None
    checkpoint_on_stop: bool = False
    exit_codes: tuple[int, ...] = ()
    fails_after_s: float = 0.0
    stuck_attempts: frozenset[int] = frozenset()
    endless_roles: frozenset[str] = frozenset()

    def exit_code(self, attempt: int) -> int:
        """How this attempt ends if nobody stops it."""
        return self.exit_codes[attempt] if attempt < len(self.exit_codes) else 0


@dataclass(slots=True)
class Attempt:
    """One run of the whole gang, from when all its pods are up."""

    behavior: JobBehavior
    number: int
    pods: int
    full_size: int
    started_at: float
    prior_work_s: float  # seconds of work, at full size, that earlier attempts left behind

    @property
    def rate(self) -> float:
        """Seconds of work a second."""
        return self.pods / self.full_size

    @property
    def ends_at(self) -> float:
        """When it exits by itself."""
        if self.behavior.exit_code(self.number) != 0:
            return self.started_at + self.behavior.fails_after_s
        return self.started_at + max(0.0, self.behavior.runtime_s - self.prior_work_s) / self.rate

    def checkpoint_count(self, now: float) -> int:
        """How many checkpoints it has made."""
        every = self.behavior.checkpoint_every_s
        return 0 if every is None else int(max(0.0, now - self.started_at) // every)

    def last_checkpoint_at(self, now: float) -> float | None:
        """When it made its newest one."""
        made = self.checkpoint_count(now)
        return (
            None
            if made == 0 or self.behavior.checkpoint_every_s is None
            else self.started_at + made * self.behavior.checkpoint_every_s
        )

    def saved_s(self, now: float, *, graceful: bool) -> float:
        """Seconds of work, at full size, that survive an end at `now`."""
        until = now if graceful and self.behavior.checkpoint_on_stop else self.last_checkpoint_at(now)
        gained = 0.0 if until is None else (until - self.started_at) * self.rate
        return min(self.behavior.runtime_s, self.prior_work_s + gained)

    def lost_pod_s(self, now: float, *, graceful: bool) -> float:
        """Pod-seconds of this attempt that an end at `now` throws away."""
        if graceful and self.behavior.checkpoint_on_stop:
            return 0.0
        since = self.last_checkpoint_at(now)
        return (now - (self.started_at if since is None else since)) * self.pods
