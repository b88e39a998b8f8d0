"""A TCP proxy between an operator and the API server that can cut connections and delay bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time


class Proxy:
    """Forwards from `port` of loopback to `target_port`, without terminating TLS."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._slow_until, self._delay_s = 0.0, 0.0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def cut(self, part: float = 1.0) -> None:
        """Reset this part of all connections, at least one. Bytes in transit are lost."""
        self._loop.call_soon_threadsafe(self._cut, part)

    def slow(self, seconds: float, delay_s: float) -> None:
        """Delay every chunk by `delay_s` for so long."""
        self._slow_until, self._delay_s = time.monotonic() + seconds, delay_s

    def fast(self) -> None:
        """Stop delaying."""
        self._slow_until = 0.0

    def stop(self) -> None:
        """Reset all connections and stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._cut(1.0)
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _cut(self, part: float) -> None:
        pairs = list(self._pairs)
        for pair in pairs[: max(1, round(len(pairs) * part))]:
            for writer in pair:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # the API server is down
            writer.transport.abort()
            return
        pair = (writer, back)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, back))
                group.create_task(self._pass_on(there, writer))
        finally:
            self._pairs.discard(pair)
            for one in pair:
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                if time.monotonic() < self._slow_until:
                    await asyncio.sleep(self._delay_s)
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof() if writer.can_write_eof() else None
