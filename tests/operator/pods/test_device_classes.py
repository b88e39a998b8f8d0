"""Device classes by the extended resources that they provide; without the right to read them there are none."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import Server, serve

from muster.kube.async_client import ApiError, AsyncKubeClient
from muster_operator.device_classes import list_device_classes


class DeviceServer(Server):
    """Has these device classes: specs by name."""

    def __init__(self, **specs: dict[str, Any]) -> None:
        super().__init__()
        self.specs = specs

    async def answer(self, request: web.Request) -> web.StreamResponse:
        refused = any(method == "GET" for method, _, _ in self.refuses)
        if request.path == "/apis/resource.k8s.io/v1/deviceclasses" and not refused:
            return web.json_response(
                {"items": [{"metadata": {"name": name}, "spec": spec} for name, spec in self.specs.items()]}
            )
        return await super().answer(request)


def test_explicit_and_implicit_names() -> None:
    server = DeviceServer(gpus={"extendedResourceName": "nvidia.com/gpu"}, plain={"selectors": []})

    async def scenario(api: AsyncKubeClient) -> None:
        assert await list_device_classes(api) == {
            "nvidia.com/gpu": "gpus",
            "deviceclass.resource.kubernetes.io/gpus": "gpus",
            "deviceclass.resource.kubernetes.io/plain": "plain",
        }

    serve(server, scenario)


@pytest.mark.parametrize("code", [403, 404])
def test_without_the_right_or_the_api_there_are_none(code: int) -> None:
    server = DeviceServer(gpus={"extendedResourceName": "nvidia.com/gpu"})
    server.refuses = [("GET", "deviceclasses", code)]

    async def scenario(api: AsyncKubeClient) -> None:
        assert await list_device_classes(api) == {}

    serve(server, scenario)


def test_other_errors_are_raised() -> None:
    server = DeviceServer()
    server.refuses = [("GET", "deviceclasses", 500)]

    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(ApiError):
            await list_device_classes(api)

    serve(server, scenario)
