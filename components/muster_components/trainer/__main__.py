"""`python -m muster_components.trainer`: parse, train, and end with an exit code that tells why (see errors.py)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence

from muster_components.trainer.config import TrainConfig
from muster_components.trainer.context import run_context
from muster_components.trainer.data import cache_root
from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, TrainerError
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.kineto_environment import silence_kineto


def main(arguments: Sequence[str]) -> int:
    """Run one rank."""
    try:
        config = parse_train_config(arguments, os.environ)  # --help ends here, as argparse does
        return _train(config)
    except TrainerError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or not error.same_on_all_ranks:
            print(f"trainer: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _train(config: TrainConfig) -> int:
    try:
        context = run_context(os.environ, config.output)
        prepare_environment(os.environ)
        # Only now: torch takes seconds to import, and a mistyped flag should be told at once.
        from torch.distributed.elastic.multiprocessing.errors import record

        from muster_components.trainer.session import train

        # `record` leaves the error where torchrun and Muster's launcher look for it.
        return int(record(train)(config, context, os.environ) or EXIT_OK)
    except TrainerError:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        # Not by returning: at its end Python waits for all threads, and one that writes a checkpoint with ranks that
        # are gone would wait for long. Who started the ranks sees to the others once this one has ended.
        os._exit(EXIT_FAILED)


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """What torch reads when it is imported, where the user has not chosen."""
    # Compiled kernels outlive the run; the default folder is in /tmp.
    if "TORCHINDUCTOR_CACHE_DIR" not in environ:
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_root(environ) / "inductor")
    # Segments that grow instead of many of fixed size: less memory lost to fragmentation.
    environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    silence_kineto(environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
