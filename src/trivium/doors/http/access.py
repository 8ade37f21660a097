"""Who may ask: API keys, and checks that keep web pages from driving a server that they can merely reach."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.errors import HttpError
from trivium.doors.http.page.routes import is_page

__all__ = ["AccessMiddleware", "allowed_origins"]

_HEALTH = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_SHOWN_CHARS = 200


class AccessMiddleware:
    """Lets a request pass, or raises `HttpError` 401 or 403. Routes of health are open to everyone.

    A browser sends what a page of any site asks it to, also to this machine; but it says from which origin, and under which
    name it found the server. A foreign origin is refused unless it is listed. A foreign name is refused, too, for a site may
    point its own name to this machine, and then its pages share our origin; keys, or a certificate, prevent that as well.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in config.api_key]
        self._origins = frozenset(allowed_origins(config))
        self._check_names = not config.api_key and config.tls_cert is None
        self._names = {name.lower() for name in (config.host, *config.allowed_host)} | _own_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _HEALTH:
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"authorization": [], b"x-api-key": []}
        for name, value in scope["headers"]:
            if name in headers:
                headers[name].append(value)
        hosts = [host.decode("latin-1").lower() for host in headers[b"host"]]
        for origin in headers[b"origin"]:
            self._check_origin(origin.decode("latin-1").lower(), hosts)
        if self._check_names:
            for host in hosts:
                self._check_name(host)
        if self._keys and not is_page(scope["path"]):
            self._check_key(headers[b"authorization"], headers[b"x-api-key"])

    def _check_origin(self, origin: str, hosts: list[str]) -> None:
        if origin in self._origins or "*" in self._origins or (len(hosts) == 1 and _is_same(origin, hosts[0])):
            return
        shown = origin[:_SHOWN_CHARS]
        raise HttpError(403, f"pages of {shown} may not call this server; the option --cors-origin {shown} would let them")

    def _check_name(self, host: str) -> None:
        name = _without_port(host)
        if name in self._names or "*" in self._names or name.endswith(".localhost") or _is_address(name):
            return
        shown = name[:_SHOWN_CHARS]
        raise HttpError(403, f"this server is not known as {shown}; the option --allowed-host {shown} would make it so")

    def _check_key(self, authorization: list[bytes], keys: list[bytes]) -> None:
        given = list(keys)
        for value in authorization:
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer":
                given.append(rest.strip())
        known = False
        for candidate in given:
            digest = _digest(candidate)
            for key in self._keys:  # all of them, so that the time tells nothing
                known |= hmac.compare_digest(digest, key)
        if not known:
            words = (
                "the API key is wrong" if given else "an API key is needed, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
            raise HttpError(401, words, headers={"WWW-Authenticate": "Bearer"})


def allowed_origins(config: ServerConfig) -> list[str]:
    """Foreign origins whose pages may call, as browsers write them."""
    return [origin.rstrip("/").lower() for origin in config.cors_origin]


def _digest(key: bytes) -> bytes:
    """Keys of any length compare in the same time."""
    return hashlib.sha256(key).digest()


def _own_names() -> set[str]:
    """Names under which this machine is known to itself, and to its neighbours by mDNS."""
    name = socket.gethostname().lower()
    return {"localhost", name, f"{name}.local"}


def _without_port(host: str) -> str:
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin is that of the Host header. Behind a proxy that ends TLS the scheme is not the one that came here."""
    scheme, _, place = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return place != "" and place.removesuffix(port) == host.removesuffix(port)
