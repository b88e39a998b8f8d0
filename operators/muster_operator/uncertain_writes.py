"""Writes of which nobody knows whether they happened: the connection broke, and no answer came.

Who decides again from what was seen before such a write may contradict it: create a pod of a gang that this very write
has sent away, or give room to others that a pod, created after all, takes up. And a request that was given up may still
be carried out. So before anything else is decided each of them is made again until there is an answer, any answer: a
status is guarded by the version it was made from, and a pod has the same name, so one of the two is refused. Then the
object is read, since the watch may be behind. So it is, too, after a refusal that may stem from a write of our own, and
after the API server failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from muster.errors import ClusterError
from muster.yaml_input.truncate import decode_truncated
from muster_operator.cache import k8s_types
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.kube.client import ApiError, ApiServerClient, Fenced
from muster_operator.retry_limiter import is_server_wide

_LOG = logging.getLogger("muster.operator")
Write = Callable[[], Awaitable[bytes]]
_REQUEST_LIFETIME_S = 65.0  # an API server gives a request up after 60 s: from then on reading is enough


class _Pods(msgspec.Struct):
    items: list[k8s_types.V1Pod] = []


class _Jobs(msgspec.Struct):
    items: list[k8s_types.RawTrainingJob] = []


_pods = msgspec.json.Decoder(_Pods)
_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(frozen=True, slots=True)
class _UncertainWrite:
    write: Write | None  # None: the object needs to be read only
    still_wanted: Callable[[], bool]
    since: float


@dataclass(slots=True)
class UncertainWrites:
    """Of TrainingJobs and pods, by the address of each."""

    api: ApiServerClient
    cache: ClusterCache
    clock: Callable[[], float] = time.monotonic
    _unresolved: dict[str, _UncertainWrite] = field(default_factory=dict)

    async def perform(self, path: str, write: Write, still_wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Make a write of the object at `path`. Raises what the write raises, and remembers it if there was no answer,
        or the object if it may be another than the one we know. It is made again only while it is `wanted`."""
        try:
            return await write()
        except Fenced:
            raise  # it was not begun
        except ApiError as error:
            if error.code == 409 or error.code >= 500:
                self._unresolved[path] = _UncertainWrite(None, still_wanted, self.clock())
            raise
        except ClusterError:
            self._unresolved[path] = _UncertainWrite(write, still_wanted, self.clock())
            raise

    async def resolve_all(self) -> None:
        """Find out about all of them. Raises ClusterError where there is no answer still, and Fenced."""
        ended = await asyncio.gather(*(self._resolve(path) for path in tuple(self._unresolved)), return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result

    def clear(self) -> None:
        """Somebody else has led since: what we wanted then does not count, and everything is listed anew."""
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
                raise  # it was turned away, and says nothing of the first one
        await self._read(path)
        del self._unresolved[path]
        _LOG.info("write settled", extra={"object": path, "had_answer": doubt.write is None})

    async def _read(self, path: str) -> None:
        """By a list of one: the operator has no right to get single objects, and needs none for this."""
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
            return  # the watch says what is wrong with it
        except Exception:  # a bug that this object met: the watch leaves it out, and others are decided about
            _LOG.exception("cannot be read", extra={"object": path})
