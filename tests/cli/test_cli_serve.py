"""The command `serve` as users start it: a process, a port, signals."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest
import trustme
from cli_parts import run
from engine_parts import make_engine

from trivium.cli import serve
from trivium.config import EngineConfig
from trivium.doors.http.config import ServerConfig
from trivium.doors.unit.config import UnitConfig
from trivium.errors import ConfigError

SECONDS = 60  # a slow, busy machine
STORY = {"inputs": "Once upon a time", "stream": True, "parameters": {"max_new_tokens": 300}}


class Process:
    """`trivium serve`, its unit door on a free port, and what it writes to stderr."""

    def __init__(self, *args, **options):
        command = [sys.executable, "-m", "trivium", "serve", "--unit-port", "0", *map(str, args)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self.lines.append(None)
            self._changed.notify_all()

    @property
    def text(self):
        return "\n".join(line for line in self.lines if line is not None)

    def wait_for(self, pattern):
        """The first match of a pattern in a line."""

        def found():
            matches = (re.search(pattern, line) for line in self.lines if line is not None)
            return next((match for match in matches if match), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() or self.lines[-1:] == [None], SECONDS), self.text
            assert found(), self.text
            return found()

    def signal(self, signum):
        self.process.send_signal(signum)

    def end(self):
        """Its exit code, once it has ended by itself."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        self.process.stderr.close()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.end()


@contextmanager
def started(*args, **options):
    process = Process(*args, **options)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def small(smollm2):
    """Options of a small engine on a free port."""
    return ["-m", smollm2, "--max-model-len", "1024", "--max-num-seqs", "4", "--port", "0"]


def url_of(process):
    process.wait_for("ready: .* takes requests")
    return process.wait_for(r"trivium\.http http: (https?://\S+)")[1]


def can_connect(url):
    host, _, port = url.rpartition("/")[2].partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except ConnectionRefusedError:
        return False
    return True


class Stream:
    """An answer that is being read, in a thread of its own."""

    def __init__(self, url):
        self.events = []
        self.failure = None
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))
        self._thread.start()
        assert self.begun.wait(SECONDS)

    def _read(self, url):
        try:
            with httpx.stream("POST", f"{url}/infer", json=STORY, timeout=SECONDS) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.events.append(json.loads(line.removeprefix("data: ")))
                        self.begun.set()
        except httpx.TransportError as error:
            self.failure = error
        finally:
            self.begun.set()

    def join(self):
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


def test_what_it_says_works_and_a_signal_lets_a_stream_finish(small):
    with started(*small) as process:
        url = url_of(process)
        process.wait_for(f"Open {url}/ in a browser")
        assert "<html" in httpx.get(f"{url}/").text
        process.wait_for("/v1/chat/completions")
        commands = [shlex.split(line) for line in process.lines if line.startswith("  curl ")]
        assert [command[1] for command in commands] == [f"{url}/infer", f"{url}/v1/chat/completions"]
        for command in commands:
            assert command[2:4] == ["-H", "Content-Type: application/json"]
            answer = httpx.post(command[1], content=command[command.index("-d") + 1], timeout=SECONDS)
            assert answer.status_code == 200, answer.text
        stream = Stream(url)
        process.signal(signal.SIGTERM)
        process.wait_for("SIGTERM: running answers may finish")
        refused = httpx.post(f"{url}/infer", json=STORY)
        assert refused.status_code == 503 or stream.events[-1].get("generated_text")
        stream.join()
        assert stream.failure is None
        assert stream.events[-1]["generated_text"]
        assert process.end() == 0
        assert not can_connect(url)
    told = [line.split(" ", 3)[3] for line in process.lines if re.match(r"\d{4}-", line or "")]
    assert [line for line in told if line.startswith("trivium ")][:5] == [
        next(line for line in told if line.startswith(f"trivium {start}"))
        for start in ("model: ", "threads: ", "total_block_num: ", "max_model_len: ", "ready: ")
    ]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(small, signum):
    with started(*small, "--log-format", "json") as process:
        process.wait_for('"message": "ready: ')
        url = json.loads(process.wait_for(r'\{.*"message": "http: .*\}')[0])["message"].removeprefix("http: ")
        stream = Stream(url)
        process.signal(signum)
        process.wait_for("a second signal ends at once")
        assert process.process.poll() is None
        process.signal(signum)
        assert process.end() in (-signum, 0)  # 0 if the story was shorter than expected
        stream.join()
        assert stream.failure or stream.events[-1].get("generated_text")
        assert not can_connect(url)
    for line in process.lines[:-1]:
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))


def test_a_second_signal_ends_the_first_process_of_a_container(small, tmp_path):
    """Which the system spares: it ends by itself, and says so like a shell."""
    (tmp_path / "sitecustomize.py").write_text("import os\n\nos.getpid = lambda: 1\n")
    with started(*small, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        stream = Stream(url_of(process))
        process.signal(signal.SIGTERM)
        process.wait_for("a second signal ends at once")
        process.signal(signal.SIGTERM)
        assert process.end() in (128 + signal.SIGTERM, 0)  # 0 if the story was shorter than expected
        stream.join()


def test_a_signal_while_it_loads(small):
    with started(*small) as process:
        process.wait_for(r"http: http://")
        process.signal(signal.SIGINT)
        assert process.end() == 0


def test_a_port_in_use(small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(*small, "--port", port) as process:
            assert process.end() == 1
    expected = f"trivium: error: cannot listen on 127.0.0.1, port {port}: Address already in use; --port chooses another"
    assert process.lines == [expected, None]


def test_the_unit_doors_port_in_use(small):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(*small, "--unit-port", port) as process:
            assert process.end() == 1
    assert process.lines == [
        f"trivium: error: cannot listen on 127.0.0.1, unit_port {port}: Address already in use; --unit-port chooses another; "
        "--no-unit does without the unit door",
        None,
    ]


def test_devices_and_http_share_the_engine(small, smollm2):
    with started(*small) as process:
        url = url_of(process)
        host, port = process.wait_for(r"unit: ([0-9.]+):(\d+)").groups()
        name = httpx.get(f"{url}/v1/models", timeout=SECONDS).json()["data"][0]["id"]
        with socket.create_connection((host, int(port)), SECONDS) as device, device.makefile("rw", encoding="utf-8") as lines:

            def say(work_id, action, object, data):
                message = {"request_id": "1", "work_id": work_id, "action": action, "object": object, "data": data}
                lines.write(json.dumps(message))
                lines.flush()
                return json.loads(lines.readline())

            settings = {
                "model": name,
                "response_format": "llm.utf-8.stream",
                "input": "llm.utf-8",
                "enoutput": True,
                "max_token_len": 900,
                "prompt": "",
            }
            task = say("llm", "setup", "llm.setup", settings)
            assert task["error"]["code"] == 0
            frame = say(task["work_id"], "inference", "llm.utf-8", "Tell me a very long story.")
            process.signal(signal.SIGTERM)
            while not frame["data"]["finish"]:
                frame = json.loads(lines.readline())
        assert process.end() == 0
    assert "aborted" not in process.text


def test_no_unit_door(small):
    with started(*small, "--no-unit") as process:
        url_of(process)
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    assert "unit: " not in process.text


def test_a_model_that_is_not_there(tmp_path):
    with started(tmp_path / "no.gguf", "--port", "0") as process:
        assert process.end() == 1
    assert process.lines[-2].startswith("trivium: error: ")
    assert "no.gguf" in process.lines[-2]


def test_keys_tls_and_a_management_port(small, smollm2, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    path = tmp_path / "server.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
    config = tmp_path / "trivium.toml"
    config.write_text(f'max_model_len = 1024\n[server]\ntls_cert = "{path}"\ntls_key = "{path}"\nmanagement_port = 0\n')
    environ = {**os.environ, "TRIVIUM_API_KEY": "sesame", "TRIVIUM_MAX_NUM_SEQS": "4"}
    with started(smollm2, "--port", "0", "--config", config, env=environ) as process:
        url = url_of(process)
        management = process.wait_for(r"management: (https://\S+)")[1]
        process.wait_for("in the variable TRIVIUM_API_KEY")
        assert url.startswith("https://")
        shown = [line for line in process.lines if line.startswith("  curl ")]
        assert len(shown) == 2
        assert all(f'-H "Authorization: Bearer $TRIVIUM_API_KEY" {url}/' in line for line in shown)
        assert "sesame" not in process.text
        context = httpx.create_ssl_context()
        authority.configure_trust(context)
        with httpx.Client(verify=context, timeout=SECONDS) as client:
            assert client.get(f"{url}/v1/models").status_code == 401
            client.headers["Authorization"] = "Bearer sesame"
            assert client.get(f"{url}/v1/models").status_code == 200
            assert client.get(f"{url}/health").status_code == 404
            assert client.get(f"{management}/health").status_code == 200
            assert client.get(f"{management}/stopService").status_code == 200
        assert process.end() == 0


def test_few_open_files(small):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))

    with started(*small, preexec_fn=limit) as process:
        process.wait_for("max_connections: the system allows only 200 open files")
        process.signal(signal.SIGTERM)
        process.end()


@pytest.mark.parametrize(("unit", "more"), [(True, 1000), (False, 0)])
def test_files_for_the_connections_of_both_doors(monkeypatch, unit, more):
    def allow(count):
        raise ConfigError(f"{count} files")

    monkeypatch.setattr(serve, "_allow_files", allow)
    config = EngineConfig(model="none")
    with pytest.raises(ConfigError, match=f"^{77 + more + serve._OTHER_FILES} files$"):
        serve._run(config, ServerConfig(port=0, max_connections=77), UnitConfig(unit=unit, unit_port=0))


class TestUse:
    """What is told before anything is opened."""

    def test_help(self):
        result = run("serve", "--help")
        assert result.exit_code == 0
        assert result.output.startswith("Usage: trivium serve [OPTIONS] [MODEL]\n")
        sections = ("\nServer options:\n", "\nUnit options:\n", "\nEngine options:\n")
        for text in (*sections, "--api-key", "--unit-port", "--mindie-config FILE", "--max-model-len"):
            assert text in result.output

    def test_help_imports_no_server(self):
        code = (
            "import sys, trivium.cli.main as m\n"
            "try: m.cli(['serve', '--help'])\n"
            "except SystemExit: pass\n"
            "print(sorted({'numpy', 'tokenizers', 'asyncio', 'uvicorn', 'starlette', 'prometheus_client'} & set(sys.modules)))"
        )
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert output.endswith("\n[]\n")

    @pytest.mark.parametrize(
        ("args", "code", "words"),
        [
            (["one", "--model", "two"], 2, "MODEL is one, but --model is two"),
            (["--port", "70000"], 1, "port must be 0..65535, got 70000"),
            (["--reasoning-parser", "nonsense"], 1, "nonsense"),
            (["--tool-call-parser", "nonsense"], 1, "nonsense"),
            (["--tls-cert", "x.pem"], 1, "tls_key must be given together with tls_cert"),
            (["--mindie-config", "no-such-file.json"], 2, "no-such-file.json"),
            (["--log-format", "xml"], 2, "--log-format"),
        ],
    )
    def test_wrong_options(self, args, code, words):
        result = run("serve", *args)
        assert (result.exit_code, words in result.output) == (code, True), result.output

    def test_an_unknown_key_of_the_servers_table(self, tmp_path):
        config = tmp_path / "trivium.toml"
        config.write_text("[server]\nprot = 1\n")
        result = run("serve", "--config", config)
        assert (result.exit_code, "unknown option 'prot'" in result.output) == (1, True)


class TestConfigurations:
    def flags(self, **given):
        """All keywords of the command, as click gives them."""
        names = [option.name for option in serve.command.params if option.name not in ("model_name", "mindie_config")]
        return {**dict.fromkeys(names), **given}

    def test_flags_above_environment_above_file(self, tmp_path, monkeypatch):
        config = tmp_path / "trivium.toml"
        config.write_text("max_num_seqs = 3\nmax_waiting = 30\n[server]\nport = 1111\nmax_connections = 11\nhost = '::1'\n")
        monkeypatch.setenv("TRIVIUM_MAX_CONNECTIONS", "22")
        monkeypatch.setenv("TRIVIUM_MAX_WAITING", "40")
        flags = self.flags(port=3333, max_num_seqs=5, config_file=str(config))
        engine, server, notes = serve._read_configs(flags, None)
        assert (server.port, server.max_connections, server.host) == (3333, 22, "::1")
        assert (engine.max_num_seqs, engine.max_waiting, notes) == (5, 40, [])

    def test_mindies_file_stands_below_all(self, tmp_path, monkeypatch):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"ServerConfig": {"port": 1234, "httpsEnabled": False, "maxLinkNum": 7, "nonsense": 1}}))
        config = tmp_path / "trivium.toml"
        config.write_text("[server]\nmax_connections = 8\n")
        monkeypatch.setenv("TRIVIUM_MANAGEMENT_PORT", "5555")
        engine, server, notes = serve._read_configs(self.flags(config_file=str(config), max_model_len=640), str(file))
        assert (server.port, server.max_connections, server.management_port) == (1234, 8, 5555)
        assert (server.max_output_len, server.tls_cert, engine.max_model_len) == (512, None, 640)
        assert any("nonsense" in note for note in notes)

    def test_parsers_that_the_vocabulary_does_not_suit(self):
        config = EngineConfig(reasoning_parser="qwen3")
        serve._check_parsers(config)
        with make_engine() as engine, pytest.raises(ConfigError, match="needs the token '</think>'"):
            serve._check_parsers(config, engine)


class TestHints:
    class Server:
        def __init__(self, url, **options):
            self.urls = [url]
            self.config = ServerConfig(**options)

    class Engine:
        class model_info:  # noqa: N801
            name = "it's"

    def test_an_address_that_can_be_opened(self):
        for url, shown in (
            ("http://0.0.0.0:8000", "http://127.0.0.1:8000/"),
            ("https://[::]:8000", "https://[::1]:8000/"),
            ("http://[fe80::1]:1", "http://[fe80::1]:1/"),
        ):
            assert f"Open {shown} in a browser" in serve._hints(self.Server(url), self.Engine)

    def test_names_are_quoted(self):
        line = next(line for line in serve._hints(self.Server("http://127.0.0.1:1"), self.Engine).split("\n") if "/v1/" in line)
        assert json.loads(shlex.split(line)[-1])["model"] == "it's"

    def test_client_certificates(self):
        options = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}
        assert "curl --cert CLIENT.pem --key CLIENT.key https" in serve._hints(
            self.Server("https://127.0.0.1:1", **options), self.Engine
        )
