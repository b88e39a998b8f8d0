"""Entry point `python -m muster.dashboard`: the dashboard as a Service of a cluster, until SIGTERM.

`muster dashboard` serves the same pages to one user's browser, with that user's kubeconfig.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.dashboard.pages import PAGES
from muster.dashboard.render import Renderer
from muster.dashboard.service import CertificateFiles, DashboardService
from muster.dashboard.users import TokenUsers
from muster.kube.config import ClientConfig, in_cluster_server, parse_url
from muster.text import is_count

_LOG = logging.getLogger("muster.dashboard")
_HOST_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_REFRESH_S = 5.0  # between looks at the certificate's files and at tokens that are not used any more


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Values of the flags."""

    address: tuple[str, int]
    tls_folder: Path
    hosts: frozenset[str]
    cluster_name: str
    api_server: str
    api_server_ca: Path


def parse_flags(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ServiceSettings:
    """Parse the flags; exits with a usage message if one is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m muster.dashboard",
        description="Serves Muster's dashboard in a cluster, to users with a token of the API server.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--listen", metavar="HOST:PORT", default="0.0.0.0:8443", help="address, with TLS (default: %(default)s)")
    add(
        "--tls-dir", metavar="DIR", type=Path, default=Path("/etc/muster/dashboard"),
        help="directory with tls.crt and tls.key (default: %(default)s)",
    )  # fmt: skip
    add(
        "--host", metavar="NAME", action="append", required=True, dest="hosts",
        help="name by which clients may address the server; repeat it for several",
    )  # fmt: skip
    add("--cluster-name", metavar="NAME", default="cluster", help="shown on all pages (default: %(default)s)")
    add("--api-server", metavar="URL", default="", help="the API server (default: that of this pod)")
    add(
        "--api-server-ca", metavar="FILE", type=Path, default=Path("/etc/muster/cluster/ca.crt"),
        help="CA of the API server's certificate (default: %(default)s)",
    )  # fmt: skip
    flags = parser.parse_args(argv)
    host, _, port = flags.listen.rpartition(":")
    if not host or not is_count(port) or int(port) > 65535:
        parser.error(f"--listen must be HOST:PORT, such as 0.0.0.0:8443; got {flags.listen!r}")
    for name in flags.hosts:
        if not _HOST_NAME.fullmatch(name):
            parser.error(f"--host must be a DNS name in lower case; got {name!r}")
    try:
        server = flags.api_server or in_cluster_server(environ)
        parse_url("--api-server", server, ("https",))
    except KeyError:
        parser.error("--api-server is required outside of a cluster")
    except ValueError as error:
        parser.error(str(error))
    return ServiceSettings(
        (host.strip("[]"), int(port)), flags.tls_dir, frozenset(flags.hosts), flags.cluster_name,
        server.rstrip("/"), flags.api_server_ca,
    )  # fmt: skip


def serve(settings: ServiceSettings, stop: threading.Event) -> None:
    """Serve until `stop` is set. Raises OSError for an address in use, and files that are no certificates."""
    config = ClientConfig(
        server=settings.api_server,
        tls=ssl.create_default_context(cafile=str(settings.api_server_ca)),
        auth_headers=dict,  # each user's is added
        context_name=settings.cluster_name,
    )
    # Users have a context of this cluster, whose name is not known here.
    renderer = Renderer(PAGES, settings.cluster_name, "muster --cluster kubernetes")
    users = TokenUsers(config, renderer)
    certificate = CertificateFiles(settings.tls_folder)
    with DashboardService(settings.address, settings.hosts, certificate, users) as server:
        _LOG.info("serving on port %d", server.port)
        thread = threading.Thread(target=server.serve_forever, name="accept")
        thread.start()
        try:
            while not stop.wait(_REFRESH_S):
                users.drop_idle()
                _refresh(certificate)
        finally:
            server.shutdown()
            users.end()
            thread.join()


def _refresh(certificate: CertificateFiles) -> None:
    try:
        if certificate.refresh():
            _LOG.info("the certificate was replaced")
    except OSError as error:
        _LOG.warning("the certificate was not replaced: %s", error)


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings, stop = parse_flags(sys.argv[1:]), threading.Event()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve(settings, stop)
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
