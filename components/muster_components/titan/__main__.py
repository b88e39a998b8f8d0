"""`python -m muster_components.titan FLAGS`: one attempt of a rank of TorchTitan, with its own flags.

Exit codes: 0 after the last step, 143 after a checkpoint because the job is to stop, 2 for an invalid configuration or
another version of TorchTitan, 78 without it, else 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from muster_components.titan.config import TitanLayout, check_config, read_config, require_version
from muster_components.trainer.config import TraceConfig, parse_trace_config
from muster_components.trainer.context import RunContext, install_stack_handler, run_context, silence_kineto
from muster_components.trainer.errors import EXIT_FAILED, EXIT_OK, TrainerError
from muster_components.trainer.flight_recorder import serve_flight_recorder
from muster_components.trainer.reporter import Reporter
from muster_components.trainer.stop_signal import StopSignal


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    environ = os.environ
    try:
        require_version()
        context = run_context(environ)
        named = ("STEPS", "RANKS", "EVERY", "WHEN_SLOWER")
        trace = parse_trace_config(*(environ.get(f"MUSTER_TRACE_{name}", "") for name in named))
        from muster_components.titan.cpu import use_cpu

        use_cpu()
        pods = max(1, context.world_size // max(1, context.local_world_size))
        check_config(read_config(arguments), TitanLayout(pods, pods, context.local_world_size))
    except TrainerError as error:
        if environ.get("RANK", "0") == "0":
            print(f"titan: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    install_stack_handler(environ)
    serve_flight_recorder(environ)
    silence_kineto(environ)
    stop = StopSignal()
    stop.install()
    return _train(context, trace, stop)


def _train(context: RunContext, trace: TraceConfig, stop: StopSignal) -> int:
    import torchtitan.train

    from muster_components.titan.trainer import MusterTrainer, TitanAttempt

    attempt = TitanAttempt(context, trace, Reporter(context), stop)
    trainers: list[MusterTrainer] = []

    def create(config: Any) -> MusterTrainer:
        trainers.append(MusterTrainer(config, attempt))
        return trainers[-1]

    try:
        torchtitan.train.main(create)  # which reads its flags from sys.argv
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return EXIT_FAILED
    finally:
        attempt.reporter.flush()
    return stop.exit_code if trainers[-1].stopped else EXIT_OK


def _exit(code: int) -> NoReturn:
    """End this process at once after an error: the destructors of its process groups would wait for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == EXIT_FAILED:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _exit(main(sys.argv[1:]))
