"""Device classes, which provide extended resources by dynamic resource allocation (DRA).

Where nodes list no such resource, kube-scheduler takes it from a DeviceClass. Muster does not count devices: such jobs
wait, with a message that says why. The list is polled, since it is small, changes rarely, and only explains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.convert import device_classes_by_resource
from muster.kube.objects import V1DeviceClass
from muster.kube.resources import DEVICE_CLASSES

_LOG = logging.getLogger("muster.operator")
_POLL_S = 30.0


class _DeviceClassList(msgspec.Struct):
    items: list[V1DeviceClass] = []


async def poll_device_classes(api: AsyncKubeClient, on_listed: Callable[[Mapping[str, str]], None]) -> None:
    """List them every 30 s until cancelled."""
    while True:
        try:
            on_listed(await list_device_classes(api))
        except ClusterError as error:
            _LOG.debug("device classes not listed", extra={"why": str(error)})
        await asyncio.sleep(_POLL_S)


async def list_device_classes(api: AsyncKubeClient) -> dict[str, str]:
    """Device classes by the extended resources that each provides: the name in its spec, and the implicit one. None
    where they are not served or may not be read. Raises ClusterError if there is no answer."""
    try:
        answer = await api.get(DEVICE_CLASSES.path())
    except ApiError as error:
        if error.code in (403, 404):
            return {}
        raise
    return device_classes_by_resource(msgspec.json.decode(answer, type=_DeviceClassList).items)
