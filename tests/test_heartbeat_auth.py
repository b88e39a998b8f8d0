"""What the signatures of heartbeat requests and responses cover."""

from __future__ import annotations

import hmac

from muster.heartbeats.auth import HeartbeatSigner

TOKEN = "0123456789abcdef-token"
SIGNER = HeartbeatSigner(TOKEN, "u1", "p1")
REQUEST = SIGNER.authorization("/heartbeat", 1000.0, "a" * 32)
BODY = b'{"step": 3}'


def signature_of(*parts: bytes) -> str:
    """HMAC-SHA256 over the parts, each after its length: operators and collectors of different versions must agree."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(TOKEN.encode(), text, "sha256").hexdigest()


def test_a_request_with_a_changed_time_or_nonce_is_rejected() -> None:
    assert SIGNER.verify_request("/heartbeat", REQUEST, 1000.0)
    for old, new in (("time=1000", "time=1001"), ("nonce=a", "nonce=b")):
        assert REQUEST.count(old) == 1
        assert not SIGNER.verify_request("/heartbeat", REQUEST.replace(old, new), 1000.0)


def test_the_signature_of_a_request_covers_its_purpose_the_collector_the_path_the_time_and_the_nonce() -> None:
    assert REQUEST.endswith(f"signature={signature_of(b'request', b'u1', b'p1', b'/heartbeat', b'1000', b'a' * 32)}")


def test_the_signature_of_a_response_covers_its_purpose_the_request_and_the_body() -> None:
    signature = SIGNER.sign_response(REQUEST, BODY)
    assert signature == signature_of(b"answer", REQUEST.encode(), BODY)
    assert SIGNER.verify_response(REQUEST, BODY, signature)
    assert not SIGNER.verify_response(REQUEST, BODY + b" ", signature)
    assert not SIGNER.verify_response(REQUEST, b"", signature)
    assert not SIGNER.verify_response(REQUEST + " ", BODY, signature)


def test_a_signed_request_is_no_signed_response() -> None:
    signature = REQUEST.rpartition("=")[2]
    assert len(signature) == 64
    for body in (BODY, b"", REQUEST.encode()):
        assert not SIGNER.verify_response(REQUEST, body, signature)
