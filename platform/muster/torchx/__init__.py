"""TorchX schedulers: an AppDef becomes one TrainingJob, and a TrainingJob is told in the words of TorchX.

`muster_local` runs on this host. docs/torchx.md is the page for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.torchx.local import LocalScheduler


def create_local_scheduler(session_name: str, **parameters: object) -> LocalScheduler:
    """The factory that TorchX looks up as `muster_local`.

    TorchX hands every factory the parameters of `get_runner` and of TORCHX_* variables; ours is `muster_home`.
    """
    from muster.torchx.local import LocalScheduler

    home = parameters.get("muster_home")
    return LocalScheduler(session_name, home=None if home is None else str(home))
