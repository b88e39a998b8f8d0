"""An in-memory S3 server for tests: single-part objects that are listed, read and written, without authentication."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Bucket:
    """Objects by name within one bucket."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.objects: dict[str, bytes] = {}
        self.url = f"http://{address}"


@contextmanager
def serve(address: str, bucket_name: str) -> Iterator[Bucket]:
    """Serve one bucket on a free port of an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            key, query = self._asked()
            if not key:
                self._answer(200, _listing(bucket, query.get("prefix", [""])[0]))
            elif key not in bucket.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                content, span = bucket.objects[key], self.headers.get("Range")
                if span is None:
                    self._answer(200, content, key)
                else:
                    first, _, last = span.removeprefix("bytes=").partition("-")
                    self._answer(206, content[int(first) : int(last) + 1 if last else None], key)

        def do_HEAD(self) -> None:
            key, _ = self._asked()
            if key and key not in bucket.objects:
                self._answer(404)
            else:
                self._answer(200, bucket.objects.get(key, b""), key)

        def do_PUT(self) -> None:
            key, _ = self._asked()
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if key:
                chunked = "aws-chunked" in (self.headers.get("Content-Encoding") or "")
                bucket.objects[key] = _whole(content) if chunked else content
            self._answer(200, key=key)

        def do_DELETE(self) -> None:
            bucket.objects.pop(self._asked()[0], None)
            self._answer(204)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")

        def _asked(self) -> tuple[str, dict[str, list[str]]]:
            parts = urlsplit(self.path)
            _, _, key = unquote(parts.path).lstrip("/").partition("/")
            return key, parse_qs(parts.query, keep_blank_values=True)

        def _answer(self, code: int, body: bytes = b"", key: str = "") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            if key in bucket.objects:
                self.send_header("ETag", _tag(bucket.objects[key]))
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((address, 0), Handler)
    bucket = Bucket(bucket_name, f"{address}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(bucket: Bucket, prefix: str) -> bytes:
    rows = [
        f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><ETag>{escape(_tag(content))}</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, content in sorted(bucket.objects.items())
        if key.startswith(prefix)
    ]
    head = f"<Name>{bucket.name}</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{head}{''.join(rows)}</ListBucketResult>".encode()


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _whole(content: bytes) -> bytes:
    """The object in a body of signed chunks: a line "SIZE;chunk-signature=..." before each, the last of size 0."""
    out = bytearray()
    while content:
        head, _, content = content.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if size == 0:
            break
        out += content[:size]
        content = content[size + 2 :]
    return bytes(out)
