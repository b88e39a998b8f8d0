"""How the operator and a collector authenticate each other: HMAC-SHA256 with the job's token, which is never sent.

Another program may listen on the collector's port, in particular with hostNetwork. It cannot replay the request to
another collector and cannot forge a response.

- A request contains its time and a random nonce. The signature covers both, the job's uid, the pod, the path and the
  body, if there is one, so it is valid for one collector and for `MAX_REQUEST_AGE_S`.
- The signature of a response covers the complete request header and the body, so it is valid for one request.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

SCHEME = "Muster-HMAC-SHA256"
SIGNATURE_HEADER = "Muster-Signature"
MAX_REQUEST_AGE_S = 300.0
"""Maximum difference between the time of a request and the collector's clock, in either direction."""

_AUTHORIZATION = re.compile(rf"{SCHEME} time=(\d{{1,12}}), nonce=([0-9a-f]{{32}}), signature=([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class HeartbeatSigner:
    """Signs and verifies for one collector: the token of the job, its uid, and the name of the pod."""

    token: str
    job_uid: str
    pod: str

    def authorization(self, path: str, now: float, nonce: str, body: bytes = b"") -> str:
        """The value of the Authorization header; `nonce` is 32 random hexadecimal digits."""
        signature = self._request_signature(path, str(int(now)), nonce, body)
        return f"{SCHEME} time={int(now)}, nonce={nonce}, signature={signature}"

    def verify_request(self, path: str, header: str, now: float, body: bytes = b"") -> bool:
        """Whether the header is signed for this collector, path and body, within `MAX_REQUEST_AGE_S`."""
        match = _AUTHORIZATION.fullmatch(header)
        if match is None:
            return False
        at, nonce, signature = match.groups()
        return (
            hmac.compare_digest(signature, self._request_signature(path, at, nonce, body))
            and abs(int(at) - now) <= MAX_REQUEST_AGE_S
        )

    def sign_response(self, header: str, body: bytes) -> str:
        """The signature of the response to the request with this header."""
        return self._sign(b"answer", header.encode("latin-1", "replace"), body)

    def verify_response(self, header: str, body: bytes, signature: str) -> bool:
        """Whether the collector signed this response to this request."""
        return hmac.compare_digest(signature.encode("utf-8", "replace"), self.sign_response(header, body).encode())

    def _request_signature(self, path: str, at: str, nonce: str, body: bytes) -> str:
        parts = (self.job_uid, self.pod, path, at, nonce)
        return self._sign(b"request", *(part.encode() for part in parts), *((body,) if body else ()))

    def _sign(self, *parts: bytes) -> str:
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self.token.encode(), text, "sha256").hex()
