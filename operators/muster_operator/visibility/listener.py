"""The TLS listener: its certificate and the CA of its clients may change while it runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

CERTIFICATE, KEY = "tls.crt", "tls.key"  # as in a Secret of type kubernetes.io/tls


@dataclass(frozen=True, slots=True)
class Identity:
    """The server's certificate and key, and the CA of its clients, all PEM."""

    certificate: bytes
    key: bytes
    client_ca: str

    @classmethod
    def read(cls, folder: Path, client_ca: str) -> Identity:
        """Of the files of a mounted Secret. Raises OSError."""
        return cls((folder / CERTIFICATE).read_bytes(), (folder / KEY).read_bytes(), client_ca)


class TlsListener:
    """Serves one application on one address to clients with a certificate of `client_ca`."""

    def __init__(self, runner: web.AppRunner, address: str, folder: Path) -> None:
        self._runner = runner
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._folder = folder
        self._site: web.TCPSite | None = None
        self._served: Identity | None = None

    async def serve(self, client_ca: str) -> bool:
        """Serve with the present files and this CA; whether anything changed. Open connections are kept. Raises
        OSError, also for files that are no certificate and key."""
        identity = Identity.read(self._folder, client_ca)
        if identity == self._served:
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)
        context.load_verify_locations(cadata=client_ca)
        await self.stop()
        site = web.TCPSite(self._runner, self._host.strip("[]") or None, self._port, ssl_context=context)
        await site.start()
        self._site, self._served = site, identity
        return True

    async def stop(self) -> None:
        """Accept no more connections."""
        site, self._site, self._served = self._site, None, None
        if site is not None:
            await site.stop()
