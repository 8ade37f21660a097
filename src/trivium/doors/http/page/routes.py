"""Routes of the page: `/`, and what it loads from `/page/`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

__all__ = ["is_page", "routes"]

_FOLDER = Path(__file__).parent
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# Nothing but the page's own files runs, and text of a model never becomes HTML (Trusted Types without any policy).
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


def routes() -> list[BaseRoute]:
    """`GET /` and `GET /page/…`."""
    files = [_File(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES]
    return [Route("/" if file.name == "index.html" else f"/page/{file.name}", file.answer) for file in files]


def is_page(path: str) -> bool:
    """Whether a path is the page or one of its files: open to everyone, for they hold nothing but code, and ask for the key."""
    return path == "/" or path.startswith("/page/")


class _File:
    """One file of the page, read once."""

    _HEADERS: ClassVar[dict[str, str]] = {
        "cache-control": "no-cache",  # keep it, but ask whether it has changed
        "content-security-policy": _POLICY,
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._content = path.read_bytes()
        self._tag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
        self._headers = {"content-type": f"{_TYPES[path.suffix]}; charset=utf-8", "etag": self._tag, **self._HEADERS}

    async def answer(self, request: Request) -> Response:
        """The file, or 304 for a client that has it."""
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self._tag in known or "*" in known:
            return Response(status_code=304, headers={name: v for name, v in self._headers.items() if name != "content-type"})
        return Response(self._content, headers=self._headers)
