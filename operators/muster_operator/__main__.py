"""Entry point `python -m muster_operator`: runs the operator until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import AsyncExitStack

import uvloop

from muster.engine import reduce_gc_frequency
from muster.errors import ClusterError, MusterError
from muster.kube.async_client import ApiRateLimits, AsyncKubeClient
from muster.kube.config import ClientConfig, KubeContext, load_config, load_in_cluster_config
from muster.kube.lease import Fence, LeaderElector, LeaseCandidate
from muster.kube.outages import Outages
from muster_operator.logs import log_to_stderr
from muster_operator.metrics import OperatorMetrics
from muster_operator.settings import Settings, parse_flags
from muster_operator.wiring import Operator

_LOG = logging.getLogger("muster.operator")
_REVIEW_RATE_LIMITS = ApiRateLimits(in_flight=16, per_s=200.0, burst=400)
_LEASE_RATE_LIMITS = ApiRateLimits(in_flight=2, per_s=20.0, burst=20)


async def run_operator(settings: Settings, config: ClientConfig) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    metrics, stop = OperatorMetrics(), asyncio.Event()
    async with AsyncExitStack() as stack:
        election, outages = None, Outages()
        if settings.lease_times is not None:
            lease_api = await stack.enter_async_context(
                AsyncKubeClient(config, _LEASE_RATE_LIMITS, count=metrics.count_call, outages=outages)
            )
            candidate = LeaseCandidate(settings.identity, settings.lease_times)
            election = LeaderElector(lease_api, settings.namespace, settings.lease_name, candidate)
        fence = Fence(election)
        api = await stack.enter_async_context(
            AsyncKubeClient(
                config,
                settings.limits,
                may_write=lambda: fence() and outages.is_synced(),
                count=metrics.count_call,
                outages=outages,
            )
        )
        review_api = None
        if settings.visibility.address:
            review_api = await stack.enter_async_context(
                AsyncKubeClient(config, _REVIEW_RATE_LIMITS, count=metrics.count_call)
            )
        operator = Operator(settings, api, fence, metrics, review_api)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, operator.dump_snapshot)
        await operator.run(stop)


def main(argv: list[str]) -> int:
    """Run the operator and return its exit code."""
    settings = parse_flags(argv)
    log_to_stderr(settings.log_level)
    reduce_gc_frequency()
    try:
        config = (
            load_in_cluster_config()
            if settings.kubeconfig is None
            else load_config(KubeContext(settings.kubeconfig, settings.context))
        )
        _LOG.info("operator starts", extra={"server": config.server, "identity": settings.identity})
        uvloop.run(run_operator(settings, config))  # uses a sixth less CPU than asyncio's own event loop
    except (MusterError, ClusterError, OSError) as error:
        _LOG.error("operator ends", extra={"why": str(error)})
        return 1
    except (Exception, asyncio.CancelledError) as error:  # a bug: the last log line names it
        _LOG.error("operator ends", extra={"why": f"{type(error).__name__}: {error}"}, exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
