"""The snippets of the README and the docs run, in order, as a reader would run them: in Python, and `curl` in a shell.

Where they speak to the server's address, one answers. docs/unit.md, whose programs need more than that, has a test of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from http_parts import serving

from trivium.config import EngineConfig
from trivium.engine.native_engine import NativeEngine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SERVER = "http://127.0.0.1:8000"

# Does what the docs want of curl, for machines that have none.
CURL = f"""#!{sys.executable}
import argparse, urllib.request

parser = argparse.ArgumentParser()
for flag in ("-s", "-N", "-i"):
    parser.add_argument(flag, action="store_true")
parser.add_argument("-H", action="append", default=[])
parser.add_argument("-d")
parser.add_argument("url")
asked = parser.parse_args()
request = urllib.request.Request(asked.url, None if asked.d is None else asked.d.encode())
for header in asked.H:
    request.add_header(*header.split(": ", 1))
with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request) as answer:
    if asked.i:
        print(answer.status, answer.headers, sep="\\n")
    print(answer.read().decode())
"""


def with_blocks(kind: str) -> list[Path]:
    return [page for page in PAGES if f"```{kind}" in page.read_text()]


def blocks(page: Path, kind: str) -> list[tuple[int, str]]:
    """The lines where they begin, and the texts."""
    text = page.read_text()
    found = re.finditer(rf"^```{kind}\n(.*?)^```", text, re.S | re.M)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found]


@pytest.fixture(scope="module")
def url(smollm2):
    config = EngineConfig(model=smollm2, served_model_name="smollm2", max_model_len=2048)
    with NativeEngine.load(config) as engine, serving(engine) as server:
        yield server.url


@pytest.mark.parametrize("page", [p for p in with_blocks("python") if p.name != "unit.md"], ids=lambda page: page.name)
def test_snippets_run(page, request, smollm2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        if SERVER in code:
            code = code.replace(SERVER, request.getfixturevalue("url"))
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("curl", ["curl", "stand-in"])
@pytest.mark.parametrize("page", [page for page in PAGES if "```sh\ncurl" in page.read_text()], ids=lambda page: page.name)
def test_curl_runs(page, curl, url, tmp_path):
    if curl == "stand-in" or shutil.which("curl") is None:
        (tmp_path / "curl").write_text(CURL)
        (tmp_path / "curl").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "no_proxy": "*"}
    for line, code in blocks(page, "sh"):
        if code.startswith("curl"):
            command = ["bash", "-euo", "pipefail", "-c", code.replace(SERVER, url)]
            done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (line, done.stderr)
            assert done.stdout
            assert '"error"' not in done.stdout, (line, done.stdout)


@pytest.mark.parametrize("page", with_blocks("json"), ids=lambda page: page.name)
def test_examples_are_json(page):
    for _, text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#]*?)(#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        path = page if not target else page.parent / target
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in headings(path), f"{page.name} links to {target}#{anchor}"


def headings(page: Path) -> set[str]:
    """Anchors of a page, as they are made of its headings."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
