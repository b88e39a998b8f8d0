"""A user of a kubeconfig who acts as another, and the headers that say so."""

from __future__ import annotations

from collections.abc import Iterable

USER_FIELDS = {
    "as": "Zoë",
    "as-uid": "17",
    "as-groups": ["readers", "system:authenticated"],
    "as-user-extra": {"Größe 100%": ["x"], "example.com/scopes": ["view", "list"]},
}
HEADERS = [
    ("Impersonate-User", "Zoë"),
    ("Impersonate-Uid", "17"),
    ("Impersonate-Group", "readers"),
    ("Impersonate-Group", "system:authenticated"),
    ("Impersonate-Extra-Gr%C3%B6%C3%9Fe%20100%25", "x"),
    ("Impersonate-Extra-example.com%2Fscopes", "view"),
    ("Impersonate-Extra-example.com%2Fscopes", "list"),
]


def received(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The impersonation headers of a request, as `http.server` reads them."""
    return [(name, value.encode("latin-1").decode()) for name, value in headers if name.startswith("Impersonate")]
