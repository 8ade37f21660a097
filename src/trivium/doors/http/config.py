"""`ServerConfig`: the only source of the http door's options, for flags, `TRIVIUM_…` variables and TOML's `[server]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trivium.settings import Settings, option, require

__all__ = ["ServerConfig"]

_MB = 2**20


@dataclass(slots=True)
class ServerConfig(Settings):
    """Options of the http door. Raises `ConfigError` naming the field, what is allowed and what came."""

    table: ClassVar[str | None] = "server"

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for every one")
    port: int = option(8000, "TCP port; 0 takes a free one")
    management_port: int | None = option(None, "port of its own for health, metrics and stop routes; default: that of --port")
    management_host: str | None = option(None, "address that management_port listens on; default: that of --host")
    api_key: list[str] = option([], "key that clients must send; give it several times for several keys")
    allowed_host: list[str] = option([], "name that requests may have in their Host header, beside local ones; '*' for any")
    cors_origin: list[str] = option([], "origin, like https://app.example, whose pages may call this server; '*' for any")
    tls_cert: str | None = option(None, "certificate chain (PEM): serve https")
    tls_key: str | None = option(None, "its private key (PEM)")
    tls_key_password_file: str | None = option(None, "file whose first line is the password of an encrypted tls_key")
    tls_ca: str | None = option(None, "certificates (PEM): every client must show one that these have signed")
    tls_min_version: Literal["1.2", "1.3"] = option("1.2", "oldest version of TLS that is spoken")
    max_connections: int = option(1000, "connections at once; more are answered 503")
    max_request_bytes: int = option(40 * _MB, "bytes of a request's body")
    max_input_len: int | None = option(None, "tokens of a prompt; default: what max_model_len leaves")
    max_output_len: int | None = option(
        None, "tokens of an answer, whatever the request asks for; default: what max_model_len leaves"
    )
    request_timeout: float | None = option(None, "seconds from a request's arrival to the end of its answer; default: no limit")
    shutdown_timeout: float = option(30.0, "seconds that running answers get to finish when the server is told to end")
    infer_full_text: bool = option(False, "stream events of /infer hold all the text so far, not what is new")
    infer_truncation: Literal["none", "right", "left"] = option(
        "none", "/infer prompts longer than max_input_len: none refuses them, right and left cut that end off"
    )
    log_format: Literal["text", "json"] = option("text", "form of the log's lines")

    def __post_init__(self) -> None:
        self.coerce()
        require(0 <= self.port <= 65535, "port", "0..65535", self.port)
        management = self.management_port
        require(management is None or 0 <= management <= 65535, "management_port", "0..65535", management)
        same_host = self.management_host in (None, self.host)
        require(not management or management != self.port or not same_host, "management_port", "another than port", management)
        require(self.management_host is None or management is not None, "management_port", "given with management_host", None)
        for name in ("api_key", "allowed_host", "cors_origin"):
            require(all(getattr(self, name)), name, "without empty strings", "''")
        require(
            all(key.isascii() and key.isprintable() for key in self.api_key), "api_key", "printable ASCII", "another string"
        )
        require((self.tls_cert is None) == (self.tls_key is None), "tls_key", "given together with tls_cert", self.tls_key)
        for name in ("tls_ca", "tls_key_password_file"):
            value = getattr(self, name)
            require(value is None or self.tls_cert is not None, name, "given together with tls_cert", value)
        require(1 <= self.max_connections <= 65536, "max_connections", "1..65536", self.max_connections)
        require(1024 <= self.max_request_bytes <= 2**31, "max_request_bytes", "1024..2^31", self.max_request_bytes)
        for name in ("max_input_len", "max_output_len"):
            value = getattr(self, name)
            require(value is None or 1 <= value <= 2**24, name, "1..2^24", value)
        timeout = self.request_timeout
        require(timeout is None or 0 < timeout <= 86400, "request_timeout", "a number of seconds in (0, 86400]", timeout)
        require(
            0 <= self.shutdown_timeout <= 86400, "shutdown_timeout", "a number of seconds in [0, 86400]", self.shutdown_timeout
        )
