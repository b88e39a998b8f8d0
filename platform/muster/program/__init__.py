"""What a training program calls: `muster.report` and `muster.should_stop`. Standard library only.

Both are without effect outside a job, so that a script needs no condition around them (docs/tasks/preemptible.md).
"""

from muster.program.report import report
from muster.program.stop import should_stop

__all__ = ["report", "should_stop"]
