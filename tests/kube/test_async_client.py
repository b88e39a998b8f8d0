"""What the asynchronous client sends to the API server, and to whom."""

from __future__ import annotations

import pytest
from aiohttp import web
from tests.operator.api_server import serve

from muster.kube.async_client import ApiError, AsyncKubeClient


class Redirecting:
    """Redirects every request to itself; `paths` are those that were requested."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A redirect to another path."""
        self.paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})


def test_no_redirect_is_followed() -> None:
    server = Redirecting()

    async def story(api: AsyncKubeClient) -> None:
        with pytest.raises(ApiError) as read:
            await api.get("/api/v1/pods")
        with pytest.raises(ApiError) as written:
            await api.post("/api/v1/pods", b"{}")
        with pytest.raises(ApiError) as watched:
            async with api.stream("/api/v1/pods", {"watch": "1"}, 60.0):
                pass
        assert [read.value.code, written.value.code, watched.value.code] == [307, 307, 307]

    serve(server, story)
    assert server.paths == ["/api/v1/pods"] * 3
