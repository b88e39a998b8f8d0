"""A real S3 server: that of moto, as a process on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue

import fsspec

BUCKET = "traces"
AWS_PART_BYTES = 5 << 20  # parts of an upload but the last must have as many
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
_START_S = 300.0
_RUN = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def serving(part_bytes: int = AWS_PART_BYTES) -> Iterator[dict[str, str]]:
    """The environment variables for this server, with one empty bucket. `part_bytes`: as AWS_PART_BYTES."""
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"S3_UPLOAD_PART_MIN_SIZE": str(part_bytes)},
    )
    try:
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{_port(process)}"}
        here = fsspec.filesystem(
            "s3",
            key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            client_kwargs={"endpoint_url": environment["AWS_ENDPOINT_URL_S3"]},
            skip_instance_cache=True,
        )
        here.mkdir(BUCKET)
        yield environment
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _port(process: subprocess.Popen[str]) -> str:
    """The port that it prints when it listens."""
    lines: Queue[str] = Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda out=process.stdout: lines.put(out.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=_START_S).strip()
    except Empty:
        line = ""
    assert line.isdecimal(), "the S3 server did not start"
    return line
