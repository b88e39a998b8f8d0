"""All watches: started together, synced when every first list is complete, and restarted on request. Reads of one
object."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, TypeVar

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError
from muster.kinds.suspended.table import QUEUE_LABEL
from muster.kube import objects, resources
from muster.kube.async_client import AsyncKubeClient
from muster.kube.reflector import OptionalReflector, Reflector, ResourceEventHandler
from muster_operator.cache.cached_object import resource_of
from muster_operator.cache.cluster_cache import ClusterCache

_LOG = logging.getLogger("muster.operator")
_JOB_PAGE_SIZE = 50  # an object may have 1.5 MiB
T = TypeVar("T")


class _RawList(msgspec.Struct):
    items: list[msgspec.Raw] | None


_raw_list = msgspec.json.Decoder(_RawList)


async def read_by_name(api: AsyncKubeClient, collection: str, name: str, kind: type[T]) -> list[T]:
    """The object of this name in the collection at a path, empty if there is none or it cannot be read, which the watch
    reports. It is listed, because the operator has no right to `get`. Raises as `AsyncKubeClient.get` does, and
    ClusterError where the answer is not a list."""
    answer = await api.get(collection, {"fieldSelector": f"metadata.name={name}"})
    try:
        items = decode_truncated(_raw_list.decode, answer).items or ()
    except ValueError as error:
        raise ClusterError(f"the answer to a list of {collection} is not a list: {answer[:200]!r}") from error
    found, decode = [], msgspec.json.Decoder(kind).decode
    for item in items:
        with contextlib.suppress(ValueError):
            found.append(decode_truncated(decode, item))
    return found


class InformerSet:
    """The watches that keep the caches up to date."""

    def __init__(
        self, api: AsyncKubeClient, cache: ClusterCache, captures: ResourceEventHandler[objects.RawCustomObject]
    ) -> None:
        self._reflectors: list[Reflector[Any]] = [
            Reflector(api, resources.NODES, objects.V1Node, cache.nodes),
            Reflector(api, resources.PODS, objects.V1Pod, cache.pods),
            Reflector(api, resources.NAMESPACES, objects.V1Namespace, cache.namespaces),
            Reflector(api, resources.PRIORITY_CLASSES, objects.V1PriorityClass, cache.priority_classes),
            Reflector(api, resources.QUEUES, objects.RawCustomObject, cache.queues),
            Reflector(api, resources.FLAVORS, objects.RawCustomObject, cache.flavors),
            Reflector(api, resources.TRAINING_JOBS, objects.RawCustomObject, cache.jobs, _JOB_PAGE_SIZE),
            Reflector(api, resources.TRACE_CAPTURES, objects.RawCustomObject, captures),
        ]
        if cache.objects.handlers:
            statuses = cache.objects.statuses
            self._reflectors.append(Reflector(api, resources.WORKLOADS, objects.RawCustomObject, statuses))
        for handler in cache.objects.handlers:
            of_kind, page = resource_of(handler.row), _JOB_PAGE_SIZE
            label = "" if handler.shows_others else QUEUE_LABEL
            self._reflectors.append(
                OptionalReflector(
                    api, of_kind, objects.RawQueuedObject, handler, page, label, on_exists=handler.on_exists
                )
            )
        self._tasks: list[asyncio.Task[None]] = []
        self._failure = ""
        self.failed = asyncio.Event()
        """Set when a watch ended unexpectedly: the cache is out of date from then on."""

    def start(self) -> None:
        """List and watch everything, from scratch if started before."""
        self.stop()
        for reflector in self._reflectors:
            reflector.synced.clear()
        self._tasks = [asyncio.create_task(self._watch(reflector)) for reflector in self._reflectors]

    def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def unsynced(self) -> list[str]:
        """Resources that are not listed yet."""
        return [one.resource.plural for one in self._reflectors if not one.synced.is_set()]

    def resource_versions(self) -> dict[str, int]:
        """The resourceVersion that each watch has reached, by resource."""
        return {one.resource.plural: one.version for one in self._reflectors}

    def failure(self) -> str:
        """Which watch ended unexpectedly and why; "" if none."""
        return self._failure

    async def wait_until_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def _watch(self, reflector: Reflector[Any]) -> None:
        why = "it returned"
        try:
            await reflector.run()
        except asyncio.CancelledError:
            if self._is_stopped():
                raise
            why = "it was cancelled"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            _LOG.exception("a watch ended", extra={"resource": reflector.resource.plural})
        self._failure = f"the watch of {reflector.resource.plural} ended: {why}"
        self.failed.set()

    def _is_stopped(self) -> bool:
        """Whether `stop` caused this cancellation."""
        return asyncio.current_task() not in self._tasks
