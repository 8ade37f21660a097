"""The page's routes over a real server, and what its files may not do. A browser drives it in tests/browser."""

from __future__ import annotations

import contextlib
import http.client
import re
from pathlib import Path

import httpx
import pytest
from engine_parts import make_engine
from http_parts import serving

from trivium.doors.http import page
from trivium.doors.http.page.routes import is_page

FOLDER = Path(page.__file__).parent
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".css", ".html", ".js", ".svg"))
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}


@pytest.fixture(scope="module")
def server():
    with make_engine() as engine, serving(engine) as running, httpx.Client(base_url=running.url) as client:
        yield client


def address(path: Path) -> str:
    return "/" if path.name == "index.html" else f"/page/{path.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_served_as_it_is(server, path):
    answer = server.get(address(path))
    assert answer.status_code == 200
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == TYPES[path.suffix]
    assert server.head(address(path)).headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_else_may_run_in_the_page(server, path):
    headers = server.get(address(path)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_browser_that_has_the_page_gets_no_copy(server):
    first = server.get("/")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = server.get("/", headers={"if-none-match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
        assert "content-security-policy" in answer.headers
    assert server.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    assert server.get("/page/app.js").headers["etag"] != tag


@pytest.mark.parametrize(
    "path", ["/page", "/page/", "/page/routes.py", "/page/../routes.py", "/page/%2e%2e/routes.py", "/index.html"]
)
def test_no_other_file_is_served(server, path):
    connection = http.client.HTTPConnection(server.base_url.host, server.base_url.port)  # sends the path as it is
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 404
        assert b"there is nothing at" in answer.read()


def test_only_reading_is_possible(server):
    answer = server.post("/", json={})
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_the_page_is_open_where_a_key_is_needed():
    with make_engine() as engine, serving(engine, api_key=["secret"]) as running, httpx.Client(base_url=running.url) as client:
        assert {client.get(address(path)).status_code for path in FILES} == {200}
        assert client.get("/stats").status_code == 401


def test_what_counts_as_the_page():
    assert all(is_page(address(path)) for path in FILES)
    assert not any(is_page(path) for path in ("/stats", "/pages", "/page", "/v1/models", ""))


def test_every_file_is_used_and_every_used_file_is_there():
    used = {"index.html"}
    for path in FILES:
        used |= set(re.findall(r'(?:from "\./|(?:href|src)="page/)([\w.]+)"', path.read_text()))
    assert used == {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_needs_no_other_host_and_no_html_from_text(path):
    text = path.read_text()
    hosts = set(re.findall(r"https?://[\w.]+|(?<=[\"'(])//[\w.]+", text))
    assert hosts <= {"http://www.w3.org"}  # names of XML
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc", text)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|<style|<script>", text)
    assert len(text.splitlines()) <= 500
