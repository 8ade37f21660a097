"""Keys, names and origins."""

from __future__ import annotations

import socket

import pytest
from bad_days_parts import ask, error_of, head, post
from engine_parts import make_engine
from http_parts import serving

from trivium.doors.http.config import ServerConfig
from trivium.errors import ConfigError

INFER = {"inputs": "hello", "parameters": {"max_new_tokens": 4}}
HEALTH = ["/health", "/ready", "/v2/health/live", "/v2/health/ready"]


@pytest.fixture(scope="module")
def engine():
    with make_engine() as running:
        yield running


@pytest.fixture(scope="module")
def plain(engine):
    with serving(engine) as server:
        yield server


@pytest.fixture(scope="module")
def keyed(engine):
    with serving(engine, api_key=["sesame", "second key"]) as server:
        yield server


@pytest.fixture(scope="module")
def listing(engine):
    """A server that lists a name and two origins."""
    origins = ["https://app.example", "http://Other.example:8080/"]
    with serving(engine, allowed_host=["models.lan"], cors_origin=origins) as server:
        yield server


def named(host, path="/infer", *lines):
    """A request with this Host header, None for none."""
    data = post(path, INFER, *lines).replace(b"Host: localhost\r\n", b"" if host is None else f"Host: {host}\r\n".encode())
    return data.replace(b"POST", b"GET", 1) if path != "/infer" else data


class TestKeys:
    @pytest.mark.parametrize(
        "line",
        [
            "Authorization: Bearer sesame",
            "authorization: bearer   sesame ",
            "Authorization: Bearer second key",
            "x-api-key: sesame",
            "X-API-Key: second key",
        ],
    )
    def test_a_key_opens(self, keyed, line):
        assert ask(keyed, post("/infer", INFER, line)).status == 200

    def test_one_right_key_among_wrong_ones_opens(self, keyed):
        lines = ("Authorization: Bearer other", "x-api-key: sesame")
        assert ask(keyed, post("/infer", INFER, *lines)).status == 200

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("X: y", "an API key is needed"),
            ("Authorization: Basic sesame", "an API key is needed"),
            ("Authorization: sesame", "an API key is needed"),
            ("Authorization: Bearer", "the API key is wrong"),
            ("Authorization: Bearer sesam", "the API key is wrong"),
            ("Authorization: Bearer sesame2", "the API key is wrong"),
            ("Authorization: Bearer SESAME", "the API key is wrong"),
            ("x-api-key: \xff\xfe", "the API key is wrong"),
            ("x-api-key: " + "a" * 10_000, "the API key is wrong"),
        ],
    )
    def test_nothing_else_does(self, keyed, line, words):
        for path in ("/infer", "/v1/messages", "/v1/chat/completions"):
            answer = ask(keyed, post(path, INFER, line))
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert error_of(path, answer).startswith(words)
            assert "sesame" not in answer.body.decode().replace("Bearer KEY", "")

    def test_everything_is_guarded_but_health_and_the_page(self, keyed):
        for path in HEALTH:
            assert ask(keyed, head(path, method="GET")).status == 200
        assert ask(keyed, head("/", method="GET")).headers["content-type"].startswith("text/html")
        guarded = [
            "/version",
            "/metrics",
            "/stats",
            "/v1/models",
            "/openapi.json",
            "/nothing",
            "/health/",
            "//",
            "/stopService",
        ]
        for path in guarded:
            assert ask(keyed, head(path, method="GET")).status == 401, path

    def test_a_management_port_is_guarded_too(self, engine):
        with serving(engine, api_key=["sesame"], management_port=0) as server:
            server.server.port = server.management_port
            assert ask(server, head("/health", method="GET")).status == 200
            for path in ("/metrics", "/stopService", "/version"):
                assert ask(server, head(path, method="GET")).status == 401
            assert ask(server, head("/metrics", "x-api-key: sesame", method="GET")).status == 200

    def test_with_keys_any_name_will_do(self, keyed):
        assert ask(keyed, named("elsewhere.example", "/infer", "x-api-key: sesame")).status == 200

    def test_no_key_is_logged(self, engine, caplog):
        caplog.set_level("DEBUG")
        with serving(engine, api_key=["sesame"]) as server:
            ask(server, post("/infer", INFER, "Authorization: Bearer sesame"))
            ask(server, post("/infer", INFER, "Authorization: Bearer sesame-but-wrong"))
        assert caplog.text
        assert "sesame" not in caplog.text

    @pytest.mark.parametrize("text", ["", " ", ", ,"])
    def test_a_variable_without_a_key_does_not_open_the_server(self, text):
        with pytest.raises(ConfigError, match="TRIVIUM_API_KEY must be a list of strings"):
            ServerConfig.load(environ={"TRIVIUM_API_KEY": text})
        assert ServerConfig.load(environ={"TRIVIUM_API_KEY": "a, b"}).api_key == ["a", "b"]

    @pytest.mark.parametrize("key", ["", "tab\tkey", "schlüssel"])
    def test_keys_that_cannot_be_sent(self, key):
        with pytest.raises(ConfigError, match="api_key must be"):
            ServerConfig(api_key=[key])


class TestNames:
    """A page of a site that has pointed its own name to this machine shares our origin; only the name gives it away."""

    @pytest.mark.parametrize(
        "host",
        [
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "app.localhost:1",
            "127.0.0.1",
            "127.0.0.1:8000",
            "192.168.1.7",
            "[::1]:8000",
            "[fe80::1]",
            socket.gethostname(),
            f"{socket.gethostname()}.local:8000",
            None,
        ],
    )
    def test_own_names_and_addresses(self, plain, host):
        assert ask(plain, named(host)).status == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "1",
            "[evil]",
            "a@localhost",
            "evil.example#localhost",
            "localhost\r\nHost: evil.example",
            "",
        ],
    )
    def test_other_names(self, plain, host):
        for path in ("/infer", "/v1/models", "/metrics", "/"):
            answer = ask(plain, named(host, path))
            assert answer.status == 403, (host, answer)
            assert "--allowed-host" in error_of(path, answer)
            assert len(answer.body) < 500

    def test_health_answers_under_any_name(self, plain):
        for path in HEALTH:
            assert ask(plain, named("probe.example", path)).status == 200

    def test_listed_names(self, listing):
        for host in ("models.lan", "Models.LAN:8000", "localhost"):
            assert ask(listing, named(host)).status == 200
        assert ask(listing, named("other.lan")).status == 403

    def test_every_name(self, engine):
        with serving(engine, allowed_host=["*"]) as server:
            assert ask(server, named("evil.example")).status == 200

    def test_the_name_it_listens_on(self, engine):
        with serving(engine, host="localhost") as server:
            assert ask(server, named("localhost")).status == 200


class TestOrigins:
    @pytest.mark.parametrize("origin", ["http://localhost", "http://localhost:80", "https://localhost:443", "HTTP://LOCALHOST"])
    def test_the_same_origin(self, plain, origin):
        assert ask(plain, post("/infer", INFER, f"Origin: {origin}")).status == 200

    @pytest.mark.parametrize(
        "origin",
        [
            "https://evil.example",
            "http://localhost:3000",
            "http://localhost.evil.example",
            "null",
            "localhost",
            "http://",
            "//",
            "",
        ],
    )
    def test_foreign_origins(self, plain, keyed, origin):
        for server, key in ((plain, "X: y"), (keyed, "x-api-key: sesame")):
            for path in ("/infer", "/v1/chat/completions", "/metrics"):
                answer = ask(server, post(path, INFER, f"Origin: {origin}", key))
                assert answer.status == 403, answer
                assert "--cors-origin" in error_of(path, answer)
                assert "access-control-allow-origin" not in answer.headers

    def test_a_form_of_another_site(self, plain):
        """What a page may send without asking first, with a browser's headers."""
        data = post("/infer", INFER, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors")
        assert ask(plain, data.replace(b"application/json", b"text/plain")).status == 403

    def test_listed_origins(self, listing):
        for origin in ("https://app.example", "http://other.example:8080"):
            answer = ask(listing, post("/infer", INFER, f"Origin: {origin}"))
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["vary"] == "Origin"
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        answer = ask(listing, post("/infer", INFER, "Origin: https://evil.example"))
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers

    def test_pages_of_listed_origins_can_read_errors(self, listing):
        for path, status in (("/infer", 422), ("/nothing", 404)):
            answer = ask(listing, post(path, {}, "Origin: https://app.example"))
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "https://app.example")

    def test_preflight(self, listing):
        lines = (
            "Origin: https://app.example",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization, content-type",
        )
        answer = ask(listing, head("/v1/chat/completions", *lines, method="OPTIONS"))
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]

    def test_preflight_needs_no_key(self, engine):
        with serving(engine, api_key=["sesame"], cors_origin=["*"]) as server:
            lines = ("Origin: https://any.example", "Access-Control-Request-Method: POST")
            answer = ask(server, head("/infer", *lines, method="OPTIONS"))
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
            answer = ask(server, post("/infer", INFER, "Origin: https://any.example"))
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (401, "*")

    def test_no_preflight_succeeds_unless_asked_for(self, plain):
        lines = ("Origin: https://app.example", "Access-Control-Request-Method: POST")
        answer = ask(plain, head("/infer", *lines, method="OPTIONS"))
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
