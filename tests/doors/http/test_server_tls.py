"""https: real certificates, real handshakes."""

from __future__ import annotations

import ssl

import httpx
import pytest
import trustme
from bad_days_parts import Client, head
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from engine_parts import make_engine
from http_parts import serving

from trivium.doors.http.config import ServerConfig
from trivium.doors.http.listener import Listener
from trivium.doors.http.protocol import HttpProtocol
from trivium.doors.http.tls import tls_context
from trivium.errors import ConfigError


@pytest.fixture(scope="module")
def engine():
    with make_engine() as running:
        yield running


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority, tmp_path_factory):
    """Paths of the server's certificate and key, of the authority, and of a client's certificate with its key."""
    folder = tmp_path_factory.mktemp("tls")
    server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("client@example.org")
    paths = {name: folder / f"{name}.pem" for name in ("cert", "key", "ca", "client", "other_key", "locked", "password")}
    for blob in server.cert_chain_pems:
        blob.write_to_path(str(paths["cert"]), append=True)
    server.private_key_pem.write_to_path(str(paths["key"]))
    authority.cert_pem.write_to_path(str(paths["ca"]))
    client.private_key_and_cert_chain_pem.write_to_path(str(paths["client"]))
    client.private_key_pem.write_to_path(str(paths["other_key"]))
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame"))
    paths["locked"].write_bytes(locked)
    paths["password"].write_bytes(b"sesame\n")
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def options(files):
    return {"tls_cert": files["cert"], "tls_key": files["key"]}


def client_context(authority, certificate=None):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def get(server, context, path="/health"):
    with httpx.Client(verify=context) as client:
        return client.get(f"https://127.0.0.1:{server.port}{path}")


def test_https(engine, options, authority):
    with serving(engine, **options) as server:
        assert server.server.urls == [f"https://127.0.0.1:{server.port}"]
        assert get(server, client_context(authority)).json() == {"status": "ok"}
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            get(server, ssl.create_default_context())


def test_plain_http_on_that_port_is_no_answer(engine, options):
    with serving(engine, **options) as server, Client(server.port) as client:
        assert client.send(head("/health", method="GET")).closed()


def test_streams_and_a_large_answer(engine, options, authority):
    body = {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": 200}}
    with serving(engine, **options) as server, httpx.Client(verify=client_context(authority)) as client:
        with client.stream("POST", f"https://127.0.0.1:{server.port}/infer", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert len(lines) == 200
        assert client.get(f"https://127.0.0.1:{server.port}/metrics").status_code == 200


def test_client_certificates(engine, options, files, authority):
    with serving(engine, **options, tls_ca=files["ca"]) as server:
        assert get(server, client_context(authority, files["client"])).status_code == 200
        with pytest.raises(httpx.TransportError):
            get(server, client_context(authority))
        stranger = trustme.CA().issue_cert("client@example.org")
        with stranger.private_key_and_cert_chain_pem.tempfile() as path, pytest.raises(httpx.TransportError):
            get(server, client_context(authority, path))
        assert get(server, client_context(authority, files["client"])).status_code == 200


@pytest.mark.parametrize(("least", "taken"), [("1.2", True), ("1.3", False)])
def test_the_oldest_version(engine, options, authority, least, taken):
    context = client_context(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(engine, **options, tls_min_version=least) as server:
        assert get(server, client_context(authority)).status_code == 200
        if taken:
            assert get(server, context).status_code == 200
        else:
            with pytest.raises(httpx.TransportError):
                get(server, context)


def test_nothing_older_than_1_2_by_default(options):
    assert tls_context(ServerConfig(**options)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_an_encrypted_key(engine, options, files, authority):
    locked = {**options, "tls_key": files["locked"], "tls_key_password_file": files["password"]}
    with serving(engine, **locked) as server:
        assert get(server, client_context(authority)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_cert": "missing.pem"}, "tls_cert must be a file that can be read, got missing.pem: No such file or directory"),
        ({"tls_key": "/"}, "tls_key must be a file that can be read, got /: Is a directory"),
        ({"tls_ca": "missing.pem"}, "tls_ca must be a file that can be read, got missing.pem"),
        ({"tls_ca": "password"}, "tls_ca must hold certificates in PEM, got "),
        ({"tls_cert": "password"}, "tls_cert and tls_key must be a certificate and its private key in PEM, got "),
        ({"tls_key": "cert"}, "tls_cert and tls_key must be a certificate and its private key in PEM, got "),
        ({"tls_key": "other_key"}, "tls_key must be the private key of tls_cert, got "),
        ({"tls_key": "locked"}, "tls_key is encrypted"),
        ({"tls_key": "locked", "tls_key_password_file": "key"}, "tls_key_password_file must hold the password of tls_key"),
        ({"tls_key": "locked", "tls_key_password_file": "no"}, "tls_key_password_file must be a file that can be read, got no"),
        ({"tls_key": None}, "tls_key must be given together with tls_cert"),
        ({"tls_cert": None, "tls_key": None, "tls_ca": "ca"}, "tls_ca must be given together with tls_cert"),
        ({"tls_min_version": "1.1"}, "tls_min_version must be '1.2' or '1.3'"),
    ],
)
def test_wrong_files(options, files, changes, message):
    with pytest.raises(ConfigError) as error:
        tls_context(ServerConfig(**options | {name: files.get(value, value) for name, value in changes.items()}))
    assert str(error.value).startswith(message)


def test_no_tls_without_a_certificate():
    assert tls_context(ServerConfig()) is None


def test_refusals_and_deadlines_hold_here_too(engine, options, authority, monkeypatch):
    monkeypatch.setattr(Listener, "tick_seconds", 0.02)
    monkeypatch.setattr(HttpProtocol, "header_seconds", 0.1)
    context = client_context(authority)
    with serving(engine, **options) as server:
        for data, status in ((b"GET / HTTP/1.1\r\n", b"408"), (b"hello\r\n\r\n", b"400")):
            with Client(server.port) as plain, context.wrap_socket(plain.socket, server_hostname="127.0.0.1") as secure:
                plain._file.close()
                secure.sendall(data)
                assert secure.recv(65536)[9:12] == status
        assert get(server, context).status_code == 200


def test_a_handshake_that_never_comes_does_not_hold_up_the_end(engine, options):
    with serving(engine, **options) as server, Client(server.port) as client:
        client.send(b"\x16\x03\x01")
        server.server.stop()
