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

from muster.documents.shorn import decoded
from muster.errors import ClusterError
from muster_operator.kube.api import Api, ApiError, Fenced
from muster_operator.refusals import concerns_everybody
from muster_operator.sight import shapes
from muster_operator.sight.world import Sight

_LOG = logging.getLogger("muster.operator")
Write = Callable[[], Awaitable[bytes]]
_LATE_S = 65.0  # an API server gives a request up after 60 s: from then on reading is enough


class _Pods(msgspec.Struct):
    items: list[shapes.Pod] = []


class _Jobs(msgspec.Struct):
    items: list[shapes.Job] = []


_pods = msgspec.json.Decoder(_Pods)
_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(frozen=True, slots=True)
class _Doubt:
    write: Write | None  # None: the object needs to be read only
    wanted: Callable[[], bool]
    since: float


@dataclass(slots=True)
class Doubts:
    """Of TrainingJobs and pods, by the address of each."""

    api: Api
    sight: Sight
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, _Doubt] = field(default_factory=dict)

    async def watch_over(self, path: str, write: Write, wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Make a write of the object at `path`. Raises what the write raises, and remembers it if there was no answer,
        or the object if it may be another than the one we know. It is made again only while it is `wanted`."""
        try:
            return await write()
        except Fenced:
            raise  # it was not begun
        except ApiError as error:
            if error.code == 409 or error.code >= 500:
                self._open[path] = _Doubt(None, wanted, self.clock())
            raise
        except ClusterError:
            self._open[path] = _Doubt(write, wanted, self.clock())
            raise

    async def settle(self) -> None:
        """Find out about all of them. Raises ClusterError where there is no answer still, and Fenced."""
        ended = await asyncio.gather(*(self._settle(path) for path in tuple(self._open)), return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result

    def forget(self) -> None:
        """Somebody else has led since: what we wanted then does not count, and everything is listed anew."""
        self._open.clear()

    async def _settle(self, path: str) -> None:
        doubt = self._open[path]
        try:
            if doubt.write is not None and doubt.wanted() and self.clock() - doubt.since < _LATE_S:
                await doubt.write()
        except Fenced:
            raise
        except ApiError as error:
            if concerns_everybody(error):
                raise  # it was turned away, and says nothing of the first one
        await self._read(path)
        del self._open[path]
        _LOG.info("write settled", extra={"object": path, "had_answer": doubt.write is None})

    async def _read(self, path: str) -> None:
        """By a list of one: the operator has no right to get single objects, and needs none for this."""
        collection, _, name = path.rpartition("/")
        answer = await self.api.read(collection, {"fieldSelector": f"metadata.name={name}"})
        try:
            if collection.endswith("/pods"):
                for pod in decoded(_pods.decode, answer).items:
                    self.sight.pods.found(pod)
            else:
                for job in decoded(_jobs.decode, answer).items:
                    self.sight.jobs.found(job)
        except ValueError:
            return  # the watch says what is wrong with it
        except Exception:  # a bug that this object met: the watch leaves it out, and others are decided about
            _LOG.exception("cannot be read", extra={"object": path})
