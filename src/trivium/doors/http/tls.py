"""The TLS context of a listener."""

from __future__ import annotations

import ssl
from pathlib import Path

from trivium.doors.http.config import ServerConfig
from trivium.errors import ConfigError

__all__ = ["tls_context"]

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """What `tls_cert` and its relatives ask for, None without them. With `tls_ca` clients must show a certificate.

    Raises `ConfigError` for a file that cannot be read, is not what it should be, or does not fit the others.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.tls_min_version]
    context.set_alpn_protocols(["http/1.1"])
    for name in ("tls_cert", "tls_key"):
        _read(name, getattr(config, name))
    _load_certificate(context, config.tls_cert, config.tls_key, _password(config))
    if config.tls_ca is not None:
        _read("tls_ca", config.tls_ca)
        try:
            context.load_verify_locations(config.tls_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"tls_ca must hold certificates in PEM, got {config.tls_ca} ({_reason(error)})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, cert: str, key: str, password: bytes | None) -> None:
    encrypted = False

    def give() -> bytes:
        nonlocal encrypted
        encrypted = True
        if password is None:  # the library would ask on the terminal
            raise ConfigError(f"tls_key is encrypted ({key}): tls_key_password_file must name a file with its password")
        return password

    try:
        context.load_cert_chain(cert, key, give)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"tls_key must be the private key of tls_cert, got {key} with {cert}"
        elif encrypted:
            words = f"tls_key_password_file must hold the password of tls_key ({key}), got another"
        else:
            words = f"tls_cert and tls_key must be a certificate and its private key in PEM, got {cert} and {key}"
        raise ConfigError(f"{words} ({_reason(error)})") from error


def _password(config: ServerConfig) -> bytes | None:
    if config.tls_key_password_file is None:
        return None
    lines = _read("tls_key_password_file", config.tls_key_password_file).splitlines()
    return lines[0] if lines else b""


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} must be a file that can be read, got {path}: {error.strerror}") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
