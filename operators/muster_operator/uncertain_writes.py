"""Writes with an unknown outcome: the connection broke before an answer.

A decision on the state before such a write may contradict it: create a pod of a gang that the write has evicted, or use
capacity that a pod, created after all, occupies. And the API server may still execute the request. So each of them is
repeated before the next decision until there is any answer: a status is guarded by its version and a pod by its name,
so one of the two requests is rejected. Then the object is read, because the watch may lag. It is also read after a
conflict that our own earlier write may have caused, and after a 5xx.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError
from muster.kube import objects
from muster.kube.async_client import ApiError, AsyncKubeClient, Fenced
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.write_queue import is_server_wide

_LOG = logging.getLogger("muster.operator")
Write = Callable[[], Awaitable[bytes]]
_REQUEST_LIFETIME_S = 65.0  # the API server aborts requests after 60 s: then reading is enough


class _Pods(msgspec.Struct):
    items: list[objects.V1Pod] = []


class _Jobs(msgspec.Struct):
    items: list[objects.RawTrainingJob] = []


_pods = msgspec.json.Decoder(_Pods)
_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(frozen=True, slots=True)
class _UncertainWrite:
    write: Write | None  # None: the object only has to be read
    still_wanted: Callable[[], bool]
    since: float


@dataclass(slots=True)
class UncertainWrites:
    """By path, of TrainingJobs and pods."""

    api: AsyncKubeClient
    cache: ClusterCache
    clock: Callable[[], float] = time.monotonic
    _unresolved: dict[str, _UncertainWrite] = field(default_factory=dict)

    async def perform(self, path: str, write: Write, still_wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Write the object at `path`. Raises what the write raises, and records the write if there was no answer, or
        the object if our state of it may be old. The write is repeated only while `still_wanted`."""
        try:
            return await write()
        except Fenced:
            raise  # not started
        except ApiError as error:
            if error.code == 409 or error.code >= 500:
                self._unresolved[path] = _UncertainWrite(None, still_wanted, self.clock())
            raise
        except ClusterError:
            self._unresolved[path] = _UncertainWrite(write, still_wanted, self.clock())
            raise

    async def resolve_all(self) -> None:
        """Resolve all. Raises ClusterError where there is still no answer, and Fenced."""
        ended = await asyncio.gather(*(self._resolve(path) for path in tuple(self._unresolved)), return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result

    def clear(self) -> None:
        """Another operator led meanwhile: our writes are obsolete, and everything is listed again."""
        self._unresolved.clear()

    async def _resolve(self, path: str) -> None:
        doubt = self._unresolved[path]
        try:
            if doubt.write is not None and doubt.still_wanted() and self.clock() - doubt.since < _REQUEST_LIFETIME_S:
                await doubt.write()
        except Fenced:
            raise
        except ApiError as error:
            if is_server_wide(error):
                raise  # not executed; the outcome of the first is still unknown
        await self._read(path)
        del self._unresolved[path]
        _LOG.info("write settled", extra={"object": path, "had_answer": doubt.write is None})

    async def _read(self, path: str) -> None:
        """List the one object, because the operator has no right to `get`."""
        collection, _, name = path.rpartition("/")
        answer = await self.api.get(collection, {"fieldSelector": f"metadata.name={name}"})
        try:
            if collection.endswith("/pods"):
                for pod in decode_truncated(_pods.decode, answer).items:
                    self.cache.pods.on_read(pod)
            else:
                for job in decode_truncated(_jobs.decode, answer).items:
                    self.cache.jobs.on_read(job)
        except ValueError:
            return  # the watch reports the error
        except Exception:  # a bug that this object caused: the watch skips it, and others are decided on
            _LOG.exception("object skipped", extra={"object": path})
