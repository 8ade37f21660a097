"""`trivium bench serve`: against real servers of this project, and against scripted ones that do what servers may do."""

from __future__ import annotations

import asyncio
import json
import math
import random
import ssl
import threading
from contextlib import contextmanager

import pytest
import trustme
from cli_parts import run
from engine_parts import make_engine
from http_parts import serving

from trivium.cli.bench.backends import BACKENDS, EventReader, StreamError
from trivium.cli.bench.client import Client, ClientError, WholeAnswer
from trivium.cli.bench.load import Load
from trivium.cli.bench.outcome import Outcome, StreamReader
from trivium.cli.bench.prompts import Prompt, load_tokenizer, make_prompts
from trivium.cli.bench.summary import details, summarise, to_text
from trivium.errors import ConfigError
from trivium.models.chat_template import ChatTemplate

TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def event(**content):
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def tokens(*texts, usage=True):
    """An OpenAI stream of completions."""
    events = [event(choices=[{"text": text}]) for text in texts]
    events += [event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": len(texts)})] if usage else []
    return [*events, b"data: [DONE]\n\n"]


class Scripted:
    """A server that answers the requests of a connection with one script after the other.

    A script is a list of byte strings, written one by one; at its end None closes the connection. Requests are kept. The
    first answers wait until there are `together` requests at once.
    """

    def __init__(self, *scripts, tls=None, together=1):
        self.scripts = list(scripts)
        self.requests = []
        self.num_connections = 0
        self.open = self.most_open = 0
        self.url = ""
        self._tls, self._together = tls, together
        self._are_together = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get(b"Content-Length", 0)))
                self.requests.append((head, body))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                if self.open >= self._together:
                    self._are_together.set()
                await self._are_together.wait()
                await asyncio.sleep(0.002)
                self.open -= 1
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                for part in script:
                    if part is None:
                        return
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def get(*scripts, count=1, timeout=10.0):
    """What GETs of a scripted server give, and the server."""

    async def main():
        async with Scripted(*scripts) as server:
            client = Client(server.url)
            answers = []
            try:
                for _ in range(count):
                    answer = WholeAnswer()
                    await client.exchange("GET", "/x", b"", answer, timeout)
                    answers.append((answer.status, bytes(answer.body)))
            finally:
                await client.close()
            return answers, server

    return asyncio.run(main())


def one_by_one(data):
    return [data[i : i + 1] for i in range(len(data))]


# The client


@pytest.mark.parametrize("cut", [one_by_one, lambda data: [data]])
def test_chunked_bodies_however_they_are_cut(cut):
    body = chunked(b"hello ", b"0\r\n\r\n", b"x" * 300)
    answers, server = get(cut(HEAD + body), count=2)
    assert answers == [(200, b"hello 0\r\n\r\n" + b"x" * 300)] * 2
    assert server.num_connections == 1
    assert server.requests[0][0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")


def test_chunk_extensions_and_trailers():
    body = b"3;name=value\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
    assert get([HEAD + body])[0] == [(200, b"abcde")]


def test_bodies_of_a_known_length_and_of_none():
    ok = b"HTTP/1.1 200 OK\r\n"
    assert get([ok + b"Content-Length: 5\r\n\r\nhe", b"llo"], count=2)[0] == [(200, b"hello")] * 2
    assert get([ok + b"Content-Length: 0\r\n\r\n"])[0] == [(200, b"")]
    assert get([b"HTTP/1.1 100 Continue\r\n\r\n", ok + b"Content-Length: 2\r\n\r\nhi"])[0] == [(200, b"hi")]
    answers, server = get([ok + b"\r\nuntil ", b"the end", None], count=2)
    assert answers == [(200, b"until the end")] * 2
    assert server.num_connections == 2
    answers, server = get([ok + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi"], count=2)
    assert server.num_connections == 2


def test_a_connection_that_was_closed_meanwhile_is_replaced():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    answers, server = get([answer, None], count=3)
    assert answers == [(200, b"hi")] * 3
    assert server.num_connections == 3
    # Here it is closed when the second request is there already.
    answers, server = get([answer], [None], [answer], count=2)
    assert answers == [(200, b"hi")] * 2
    assert server.num_connections == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([None], "connection was lost"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", None], "connection was lost"),
        ([HEAD + b"5\r\nhe", None], "connection was lost"),
        ([HEAD + b"zz\r\nhello\r\n"], "not HTTP"),
        ([b"SSH-2.0-OpenSSH\r\n"], "not HTTP"),
        ([], "no complete answer after 0.2 seconds"),
    ],
)
def test_broken_answers(script, words):
    with pytest.raises(ClientError, match=words):
        get(script, timeout=0.2)


def test_nobody_there():
    async def main():
        await Client("http://127.0.0.1:9").exchange("GET", "/", b"", WholeAnswer(), 10)  # nothing is open, nothing to close

    with pytest.raises(ClientError, match=r"cannot connect to 127\.0\.0\.1:9"):
        asyncio.run(main())


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://h:99999", "http://h/?q=1", "http://[::1"])
def test_wrong_urls(url):
    result = run("bench", "serve", "--base-url", url)
    assert result.exit_code == 1
    assert "base_url" in result.stderr
    assert url in result.stderr


def test_wrong_keys():
    for key in ("a\r\nHost: b", "ä", ""):
        with pytest.raises(ConfigError, match="api_key"):
            Client("http://h", api_key=key)


@contextmanager
def tls_files(tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    yield context, path


def test_tls(tmp_path, monkeypatch):
    async def ask(context, **options):
        async with Scripted([HEAD + chunked(b"safe")], tls=context) as server:
            client, answer = Client(server.url, **options), WholeAnswer()
            try:
                await client.exchange("GET", "/", b"", answer, 10)
            finally:
                await client.close()
            return bytes(answer.body)

    with tls_files(tmp_path) as (context, path):
        with pytest.raises(ClientError, match="certificate"):
            asyncio.run(ask(context))
        assert asyncio.run(ask(context, verify=False)) == b"safe"
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        assert asyncio.run(ask(context)) == b"safe"


# Events


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_events_however_they_are_cut(newline, step):
    text = (
        b'data: {"a": 1}\n\n: a comment\n\nevent: x\ndata:no space\nid: 3\n\ndata: two\ndata: lines\n\ndata: [DONE]\n\ndata: un'
    )
    data = text.replace(b"\n", newline)
    reader = EventReader()
    events = [found for i in range(0, len(data), step) for found in reader.feed(data[i : i + step])]
    assert events == [b'{"a": 1}', b"no space", b"two\nlines", b"[DONE]"]


def test_what_brings_tokens():
    chat, completions, infer = BACKENDS["openai-chat"], BACKENDS["openai"], BACKENDS["infer"]
    assert not chat.brings_tokens({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    assert not chat.brings_tokens({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    for delta in ({"content": "a"}, {"reasoning_content": "a"}, {"tool_calls": [{}]}):
        assert chat.brings_tokens({"choices": [{"delta": delta}]})
    assert completions.brings_tokens({"choices": [{"text": "a"}]})
    assert not completions.brings_tokens({"choices": [], "usage": {}})
    assert infer.brings_tokens({"token": {"id": [1], "text": None}, "generated_text": "x"})
    for backend, content in ((chat, {"error": {"message": "no"}}), (infer, {"error": "no", "error_type": "x"})):
        with pytest.raises(StreamError, match="no"):
            backend.brings_tokens(content)


def read(*parts, backend="openai", status=200, kind="text/event-stream", step=0.25):
    """The outcome of an answer whose parts come `step` seconds apart, the first that long after the start."""
    reader = StreamReader(BACKENDS[backend], 5)
    start = reader.finish(ClientError("not yet")).start
    reader = StreamReader(BACKENDS[backend], 5)
    reader._outcome.start = start
    reader.started(status, kind)
    for i, part in enumerate(parts):
        reader.received(part, start + step * (i + 1))
    return reader.finish()


def test_times_of_an_answer():
    outcome = read(*tokens("a", "b", "c"))
    assert outcome.error is None
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 3)
    assert outcome.ttft == pytest.approx(0.25)
    assert outcome.itl == pytest.approx([0.25, 0.25])
    assert outcome.e2el == pytest.approx(0.75)
    assert outcome.tpot == pytest.approx(0.25)


def test_first_events_without_text_are_no_tokens():
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    word = event(choices=[{"delta": {"content": "a"}}])
    outcome = read(role, word, word, b"data: [DONE]\n\n", backend="openai-chat")
    assert outcome.ttft == pytest.approx(0.5)
    assert (outcome.output_tokens, len(outcome.itl), outcome.prompt_tokens) == (2, 1, 5)  # counted here: no usage


def test_answers_of_infer():
    first = event(prefill_time=1.5, decode_time=None, token={"id": [1], "text": "a"})
    last = event(prefill_time=None, decode_time=1, generated_text="ab", details={"generated_tokens": 2}, token={"text": None})
    outcome = read(first, last, backend="infer")
    assert (outcome.error, outcome.output_tokens, len(outcome.itl)) == (None, 2, 1)
    assert "before its last event" in read(first, backend="infer").error
    assert read(first, event(error="too late", error_type="x"), backend="infer").error == "too late"


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        (
            [b'{"error": {"message": "full"}}'],
            {"status": 429, "kind": "application/json"},
            'status 429: {"error": {"message": "full"}}',
        ),
        ([b"{}"], {"kind": "application/json"}, "no event stream"),
        (tokens("a")[:-1], {}, "before its last event"),
        (tokens(), {}, "has no tokens"),
        ([event(error={"message": "broken"})], {}, "broken"),
        ([event(error="broken")], {}, "broken"),
        ([b"data: {\n\n"], {}, "not JSON"),
        ([b"data: [1]\n\n"], {}, "not a JSON object"),
        ([event(choices=5)], {}, "int"),
        ([event(choices=[{"delta": 5}])], {"backend": "openai-chat"}, "int"),
    ],
)
def test_failed_answers(parts, options, words):
    outcome = read(*parts, **options)
    assert words in outcome.error


# Prompts


def test_words_are_tokens_without_a_tokenizer():
    prompts = make_prompts(200, (3, 6), (1, 2), random.Random(5), None)
    assert {len(prompt.text.split()) for prompt in prompts} == {3, 4, 5, 6} == {prompt.num_tokens for prompt in prompts}
    assert {prompt.max_tokens for prompt in prompts} == {1, 2}
    assert prompts == make_prompts(200, (3, 6), (1, 2), random.Random(5), None)
    assert prompts != make_prompts(200, (3, 6), (1, 2), random.Random(6), None)


def test_lengths_are_exact_with_a_tokenizer(smollm2):
    tokenizer = load_tokenizer(smollm2)
    prompts = make_prompts(40, (1, 90), (1, 1), random.Random(0), tokenizer)
    draw = random.Random(0)
    for prompt in prompts:
        assert len(tokenizer.encode_prompt(prompt.text)) == prompt.num_tokens
    lengths = {prompt.num_tokens for prompt in make_prompts(5, (33, 33), (1, 1), draw, tokenizer)}
    assert lengths == {33}


# Load


def under_load(server, count=6, **options):
    """Outcomes of prompts sent to a scripted server."""

    async def main():
        async with server:
            chosen = {"rate": math.inf, "max_concurrency": None, "timeout": 10.0, **options}
            load = Load(Client(server.url), BACKENDS["openai"], "/v1/completions", "m", True, **chosen)
            ended = []
            outcomes = await load.run([Prompt(f"p{i}", 1, 3) for i in range(count)], random.Random(3), ended.append)
            await load.client.close()
            assert sorted(map(id, ended)) == sorted(map(id, outcomes))
            return outcomes

    return asyncio.run(main())


def test_requests_and_their_outcomes_in_order():
    server = Scripted([HEAD + chunked(*tokens("a", "b", "c"))])
    outcomes = under_load(server)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    bodies = [json.loads(body) for _, body in server.requests]
    assert sorted(body["prompt"] for body in bodies) == [f"p{i}" for i in range(6)]
    assert bodies[0] == {
        "prompt": bodies[0]["prompt"],
        "max_tokens": 3,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "model": "m",
        "ignore_eos": True,
    }


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (None, 6)])
def test_concurrency(limit, most):
    server = Scripted([HEAD + chunked(*tokens("a"))], together=most)
    outcomes = under_load(server, max_concurrency=limit)
    assert server.most_open == most
    assert server.num_connections == most
    assert [outcome.error for outcome in outcomes] == [None] * 6


def test_a_rate_spreads_the_requests():
    outcomes = under_load(Scripted([HEAD + chunked(*tokens("a"))]), count=40, rate=400.0)
    starts = [outcome.start for outcome in outcomes]
    draw = random.Random(3)
    wanted = 0.0
    for start in starts:
        assert start - starts[0] >= wanted - 0.01
        wanted += draw.expovariate(400.0)
    assert wanted > 0.05


def test_failures_are_outcomes():
    bad = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
    good = HEAD + chunked(*tokens("a"))
    outcomes = under_load(Scripted([bad], [good], [None], [good]), count=4, max_concurrency=1)
    assert [outcome.error for outcome in outcomes] == ["status 503: busy", None, None, None]  # a lost connection is replaced
    outcomes = under_load(Scripted([good], [HEAD + b"5\r\ndat", None], [good]), count=3, max_concurrency=1)
    assert [bool(outcome.error) for outcome in outcomes] == [False, True, False]


# Figures


def outcome(start, ttft, itl, output_tokens=None, error=None):
    count = output_tokens if output_tokens is not None else 1 + len(itl)
    return Outcome(start, 10, count, ttft, ttft + sum(itl), itl, error)


def test_figures():
    outcomes = [
        outcome(0.0, 0.1, [0.1, 0.3]),
        outcome(0.2, 0.2, [0.5], output_tokens=4),
        outcome(5.0, 0.3, []),
        outcome(0.0, 0.0, [], 0, "status 429"),
        outcome(0.0, 0.0, [], 0, "status 429"),
    ]
    summary = summarise(outcomes, 10.0, {"ttft": 250.0, "tpot": 190.0})
    expected = {
        "completed": 3,
        "failed": 2,
        "total_input_tokens": 30,
        "total_output_tokens": 8,
        "request_throughput": 0.3,
        "request_goodput": 0.1,  # the first is too slow per token, the third in its first
        "output_throughput": 0.8,
        "total_token_throughput": 3.8,
        "max_output_tokens_per_s": 7.0,
        "max_concurrent_requests": 2,
        "mean_ttft_ms": 200.0,
        "median_ttft_ms": 200.0,
        "p99_ttft_ms": 300.0,
        "mean_tpot_ms": 1000 * (0.2 + 0.5 / 3) / 2,
        "mean_itl_ms": 300.0,
        "p90_itl_ms": 500.0,
        "median_e2el_ms": 500.0,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert summary["error_counts"] == {"status 429": 2}
    assert summarise(outcomes, 10.0, {})["request_goodput"] is None
    assert details(outcomes)["itls"] == [[0.1, 0.3], [0.5], [], [], []]
    text = to_text(summary, {"max_concurrency": 4, "request_rate": 2.0})
    for line in (
        "============ Serving Benchmark Result ============",
        "Successful requests:                     3",
        "Failed requests:                         2",
        "Maximum request concurrency:             4",
        "Request rate configured (RPS):           2.00",
        "Benchmark duration (s):                  10.00",
        "Request goodput (req/s):                 0.10",
        "Total token throughput (tok/s):          3.80",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          200.00",
        "P99 ITL (ms):                            500.00",
        "2 failed: status 429",
    ):
        assert line in text.splitlines(), line


def test_the_peak_is_no_less_than_the_mean():
    """Also where every event brings many tokens, and a busy second is not one of those that the run begins with."""
    outcomes = [outcome(0.0, 0.5, [0.5, 0.5, 0.5], output_tokens=80), outcome(0.9, 0.5, [0.2], output_tokens=40)]
    summary = summarise(outcomes, 2.0, {})
    assert (summary["output_throughput"], summary["max_output_tokens_per_s"]) == (60.0, 80.0)


def test_nothing_but_failures_has_figures_too():
    summary = summarise([outcome(0.0, 0.0, [], 0, "no")], 1.0, {"ttft": 1.0})
    assert (summary["completed"], summary["mean_itl_ms"], summary["request_goodput"]) == (0, 0.0, 0.0)
    assert "Mean TPOT (ms):" in to_text(summary, {"max_concurrency": None, "request_rate": "inf"})


# The command


@pytest.fixture(scope="module")
def server():
    with make_engine(num_blocks=256) as engine:
        engine.chat_template = ChatTemplate(TEMPLATE, engine.tokenizer)
        with serving(engine) as running:
            yield running


def bench(url, *args):
    return run("bench", "serve", "--base-url", url, "--input-len", "3:5", "--output-len", 6, "--num-prompts", 8, *args)


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "infer"])
def test_a_real_server(backend, server, tmp_path):
    target = tmp_path / "result.json"
    flags = [] if backend == "infer" else ["--ignore-eos"]
    result = bench(server.url, "--backend", backend, "--json", "--save-result", target, "--max-concurrency", 3, *flags)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["completed"], report["failed"], report["error_counts"]) == (8, 0, {})
    assert report["total_output_tokens"] == 48
    assert report["max_concurrent_requests"] <= 3
    assert report["model_id"] == (None if backend == "infer" else "fake")
    for name in ("ttft", "tpot", "itl", "e2el"):  # this engine is so quick that several tokens come at once
        assert 0 <= report[f"median_{name}_ms"] <= report[f"p90_{name}_ms"] <= report[f"p99_{name}_ms"]
    saved = json.loads(target.read_text())
    assert saved["output_lens"] == [6] * 8
    assert [len(gaps) for gaps in saved["itls"]] == [5] * 8
    assert {name: saved[name] for name in report} == report


def test_the_table_of_a_real_server(server):
    result = bench(server.url, "--goodput", "ttft:60000 e2el:60000", "--goodput", "tpot:60000", "--request-rate", 1000)
    assert result.exit_code == 0
    lines = dict(line.split(":", 1) for line in result.stdout.splitlines() if ":" in line)
    assert int(lines["Successful requests"]) == 8
    assert float(lines["Request rate configured (RPS)"]) == 1000
    assert lines["Request goodput (req/s)"].strip() == lines["Request throughput (req/s)"].strip()
    assert float(lines["P99 E2EL (ms)"]) > 0
    assert result.stderr == ""


def test_a_key_is_sent(monkeypatch):
    with make_engine() as engine, serving(engine, api_key=["sesame"]) as running:
        refused = bench(running.url)
        assert refused.exit_code == 1
        assert "status 401" in refused.stderr
        assert bench(running.url, "--api-key", "sesame").exit_code == 0
        monkeypatch.setenv("OPENAI_API_KEY", "sesame")
        assert bench(running.url).exit_code == 0


def test_a_server_that_refuses_ends_it_at_once(server):
    result = bench(server.url, "--input-len", 300)
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: the server does not answer a first request: status 400")
    result = bench(server.url, "--endpoint", "/v2/nothing", "--served-model-name", "x")
    assert "status 404" in result.stderr


def test_a_server_that_fails_later():
    first = HEAD + chunked(*tokens("a"))
    busy = b"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy"
    started, ended = threading.Event(), threading.Event()
    scripted = Scripted([first], [busy])

    async def main():
        async with scripted:
            started.set()
            while not ended.is_set():
                await asyncio.sleep(0.005)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    started.wait(10)
    try:
        result = bench(scripted.url, "--served-model-name", "m")
    finally:
        ended.set()
        thread.join()
    assert result.exit_code == 1
    assert "8 failed: status 429: busy" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--request-rate", "0"], "--request-rate"),
        (["--request-rate", "nan"], "nan"),
        (["--request-rate", "fast"], "'fast'"),
        (["--timeout", "nan"], "--timeout"),
        (["--goodput", "itl:5"], "'itl:5'"),
        (["--goodput", "ttft"], "'ttft'"),
        (["--goodput", "ttft:-1"], "'ttft:-1'"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--output-len", "5:3"], "--output-len"),
        (["--backend", "infer", "--ignore-eos"], "--ignore-eos"),
    ],
)
def test_wrong_use(args, words):
    result = run("bench", "serve", *args)
    assert result.exit_code == 2
    assert words in result.stderr
