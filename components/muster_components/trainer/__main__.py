"""`python -m muster_components.trainer`: parse flags, train, exit with a code of errors.py."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from muster_components.trainer.config import TrainConfig
from muster_components.trainer.context import install_stack_handler, require_run_dir, run_context, silence_kineto
from muster_components.trainer.data.cache_folder import cache_root
from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, MissingTorchError, TrainerError, UserCodeError
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.flight_recorder import serve_flight_recorder
from muster_components.trainer.models.selection import HuggingFaceSource
from muster_components.trainer.reporter import escape


def main(arguments: Sequence[str]) -> int:
    """Run one rank."""
    try:
        config = parse_train_config(arguments, os.environ)  # --help ends here, as argparse does
        return _train(config)
    except TrainerError as error:
        rank = os.environ.get("RANK", "0")
        if isinstance(error, UserCodeError):
            traceback.print_exception(error.__cause__)
        if rank == "0" or not error.same_on_all_ranks:
            print(f"trainer: {escape(str(error))}", file=sys.stderr, flush=True)
        if _is_in_process_group():
            _end_at_once(error.exit_code)  # the error of this rank alone
        return error.exit_code


def _train(config: TrainConfig) -> int:
    try:
        context = run_context(os.environ, config.output)
        if config.planning.layout is None:  # --plan writes nothing
            require_run_dir(context.run_dir)
        install_stack_handler(os.environ)
        serve_flight_recorder(os.environ)
        prepare_environment(os.environ, deterministic=config.deterministic)
        if isinstance(config.model, HuggingFaceSource):
            os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported
        if config.planning.layout is not None:
            from muster_components.trainer.planning.command import print_plan

            print_plan(config)
            return EXIT_OK
        # Imported late: torch takes seconds to import, and invalid flags should be reported at once.
        try:
            from torch.distributed.elastic.multiprocessing.errors import record

            from muster_components.trainer.session import train
        except ImportError as error:
            raise MissingTorchError(
                f"torch cannot be imported: {error}; install it in the environment or image of the job"
            ) from error
        # `record` writes the error file that torchrun and Muster's launcher read.
        return int(record(train)(config, context, os.environ) or EXIT_OK)
    except TrainerError:
        raise
    except BaseException:
        traceback.print_exc()
        _end_at_once(EXIT_FAILED)


def _is_in_process_group() -> bool:
    """Whether this rank would have to wait for others to leave the process group. Does not import torch."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _end_at_once(exit_code: int) -> NoReturn:
    """End without what Python does at exit: it would wait for all threads, and a checkpoint thread waits long for ranks
    that have ended. The launcher stops the other ranks."""
    sys.stdout.flush()
    os._exit(exit_code)


def prepare_environment(environ: MutableMapping[str, str], *, deterministic: bool = False) -> None:
    """Set defaults of environment variables that torch reads on import."""
    # Keep compiled kernels between runs; torch's default folder is in /tmp.
    if "TORCHINDUCTOR_CACHE_DIR" not in environ:
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_root(environ) / "inductor")
    # Less fragmentation of GPU memory.
    environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Symmetric memory (`--symmetric_memory`, `--async_tp`) is used without multicast. torch would create multicast
    # objects nevertheless, and raise an error on GPUs that have none, such as H20.
    environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    if deterministic:
        environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by torch's deterministic mode
        environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # no choice of kernels by their measured speed
    silence_kineto(environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
