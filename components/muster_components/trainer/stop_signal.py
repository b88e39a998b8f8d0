"""The signal that asks a rank to stop, and how it is agreed with the other ranks."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from muster_components.trainer.errors import EXIT_INTERRUPTED, EXIT_STOPPED


class StopSignal:
    """Records the signal that requests this rank to stop: in the same step as all other ranks, with a checkpoint.

    A rank that ended on its own would leave the others waiting in a collective. So the handler only sets a flag, and
    the step's all-reduce sends it to all ranks: that step is the last. Before the first step of an attempt has ended
    there is nothing to save, and compilation may take longer than the grace period, so the process ends at once. A
    second SIGINT (Ctrl-C) also ends it at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._can_checkpoint = False

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on (main thread only)."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def first_step_done(self) -> None:
        """From now on, training stops at the end of a step instead of at once."""
        self._can_checkpoint = True

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.signal == signal.SIGINT else EXIT_STOPPED

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        second_interrupt = number == signal.SIGINT and self.signal == signal.SIGINT
        self.signal = number
        if second_interrupt or not self._can_checkpoint:
            if not second_interrupt:
                os.write(sys.stderr.fileno(), b"stopped by a signal before the first step: nothing to save\n")
            os._exit(128 + number)
