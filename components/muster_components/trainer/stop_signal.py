"""SIGTERM and Ctrl-C: stop in the same step as all other ranks, with a checkpoint.

A rank that left on its own would leave the others waiting in a collective. So the handler only raises a flag; the loop
carries the flag through the step's all-reduce, and the step after which all ranks see it is the last. Before the first
step of an attempt ends there is nothing to save, and compiling may outlast the grace period: then the process ends at
once. A second signal of the impatient kind (Ctrl-C) ends it at once, too.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from muster_components.trainer.errors import EXIT_INTERRUPTED, EXIT_STOPPED


class StopSignal:
    """Records the signal that asked this rank to stop."""

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
        """Whether a signal was received."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 + signal; that of SIGTERM for a rank that received no signal itself."""
        return EXIT_INTERRUPTED if self.signal == signal.SIGINT else EXIT_STOPPED

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        second_interrupt = number == signal.SIGINT and self.signal == signal.SIGINT
        self.signal = number
        if second_interrupt or not self._can_checkpoint:
            if not second_interrupt:
                os.write(sys.stderr.fileno(), b"stopped by a signal before the first step: nothing to save\n")
            os._exit(128 + number)
