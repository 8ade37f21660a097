from __future__ import annotations

import asyncio
import re
import time

import pytest
from engine_parts import make_engine, request
from prometheus_client.parser import text_string_to_metric_families

from trivium.doors.dispatcher import Dispatcher
from trivium.doors.http.errors import HttpError
from trivium.doors.http.metrics import Metrics
from trivium.engine.outputs import OutputDelta, RequestTimes
from trivium.errors import EngineError, PromptTooLongError, QueueFullError, RequestError

# What dashboards written for vLLM ask for.
NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "iteration_tokens_total_bucket",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_count",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_sum",
    "request_inference_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
    "request_max_num_generation_tokens_bucket",
    "requests_received_total",
    "requests_rejected_total",
]


class Page:
    """A rendered page, read as Prometheus reads it."""

    def __init__(self, metrics):
        body, self.content_type = metrics.render()
        self.families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name, **labels):
        """The sum of the samples with these labels."""
        name = name if name.startswith("process_") else f"trivium:{name}"
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"no {name} {labels}"
        return sum(found)

    def adds_up(self):
        ended = self.value("request_success_total")
        inside = self.value("num_requests_running") + self.value("num_requests_waiting")
        return self.value("requests_received_total") == ended + inside + self.value("requests_rejected_total")


async def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.005)


def on_loop(scenario, **options):
    """Run `scenario(dispatcher, metrics, engine)` on a loop, on an engine with a fake model."""
    with make_engine(**options) as engine:
        metrics = Metrics()
        metrics.attach(engine)

        async def run():
            await scenario(Dispatcher(engine, metrics), metrics, engine)

        asyncio.run(run())
        return Page(metrics)


def test_before_a_model_is_there():
    page = Page(Metrics())
    assert page.content_type.startswith("text/plain")
    for name in NAMES:
        assert page.value(name) == 0, name
    assert page.adds_up()
    assert {s.labels["model_name"] for s in page.samples if "model_name" in s.labels} == {""}
    assert page.value("process_start_time_seconds") > 0


def test_names_and_labels_of_vllm():
    async def scenario(dispatcher, metrics, engine):
        await (await dispatcher.submit(lambda: [request("a", max_tokens=3)])).all()

    page = on_loop(scenario)
    assert {s.labels["model_name"] for s in page.samples if s.name.startswith("trivium:")} == {"fake"}
    for name in NAMES:
        page.value(name)
    reasons = {s.labels["finished_reason"] for s in page.samples if s.name == "trivium:request_success_total"}
    assert reasons == {"stop", "length", "abort", "timeout", "error"}
    assert page.families["trivium:iteration_tokens_total"].type == "histogram"
    assert page.value("cache_config_info", block_size="16", num_gpu_blocks="64", enable_prefix_caching="True") == 1
    for le in ("0.001", "0.25", "2560.0", "+Inf"):
        page.value("time_to_first_token_seconds_bucket", le=le)
    lengths = [s.labels["le"] for s in page.samples if s.name == "trivium:request_prompt_tokens_bucket"]
    assert lengths == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "+Inf"]  # up to max_model_len, 256


def test_tokens_and_times_of_answers():
    async def scenario(dispatcher, metrics, engine):
        for name in "abc":
            await (await dispatcher.submit(lambda name=name: [request(name, max_tokens=5)])).all()
        await (await dispatcher.submit(lambda: [request("n", "hello you", n=3, max_tokens=7)])).all()

    page = on_loop(scenario, enable_prefix_caching=False)
    assert page.value("requests_received_total") == 6
    assert page.value("request_success_total", finished_reason="length") == 6
    assert page.value("generation_tokens_total") == 3 * 5 + 3 * 7
    assert page.value("request_generation_tokens_sum") == 3 * 5 + 3 * 7
    assert page.value("request_generation_tokens_bucket", le="5.0") == 3
    assert page.value("request_max_num_generation_tokens_sum") == 3 * 5 + 7
    assert page.value("request_max_num_generation_tokens_count") == 4
    assert page.value("prompt_tokens_total") == 3 * 5 + 9 + 2  # two samples compute the prompt's last token again
    assert page.value("request_prompt_tokens_sum") == 3 * 5 + 3 * 9
    assert page.value("request_params_n_sum") == 6
    assert page.value("request_params_n_bucket", le="2.0") == 3
    assert page.value("request_params_max_tokens_sum") == 3 * 5 + 7
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert page.value(f"{name}_count") == 3 * 4 + 3 * 6
    assert page.value("request_time_per_output_token_seconds_count") == 6
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_inference_time"):
        assert page.value(f"{name}_seconds_count") == 6
    parts = [page.value(f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(page.value("e2e_request_latency_seconds_sum"))
    assert page.value("inter_token_latency_seconds_sum") == pytest.approx(page.value("request_decode_time_seconds_sum"))
    assert page.value("iteration_tokens_total_sum") == 3 * 5 + 9 + 2 + 3 * 5 + 3 * 7
    assert page.value("iteration_tokens_total_bucket", le="1.0") == 3 * 4


def test_prefix_hits_are_prompt_tokens_too():
    async def scenario(dispatcher, metrics, engine):
        for name in "ab":
            await (await dispatcher.submit(lambda name=name: [request(name, "x" * 40, max_tokens=2)])).all()

    page = on_loop(scenario)
    assert page.value("prefix_cache_queries_total") == 80
    assert page.value("prefix_cache_hits_total") == 32
    assert page.value("prompt_tokens_total") == 80


def test_ends_of_every_kind_add_up():
    async def scenario(dispatcher, metrics, engine):
        native = engine.native
        native.gate.clear()
        native.poison = ord("!")
        late = await dispatcher.submit(lambda: [request("late", timeout=0.05)])
        gone = await dispatcher.submit(lambda: [request("gone", n=2, max_tokens=100)])
        poor = await dispatcher.submit(lambda: [request("poor", "hey!", n=3)])
        await until(lambda: Page(metrics).adds_up())
        page = Page(metrics)
        assert page.value("requests_received_total") == 6
        assert page.value("num_requests_running") + page.value("num_requests_waiting") == 6
        gone.close()
        await asyncio.sleep(0.06)
        native.gate.set()
        assert (await late.all())[-1].finish_reason == "timeout"
        assert {delta.finish_reason for delta in await poor.all()} == {"error"}
        native.fault = RuntimeError("broken")
        broken = await dispatcher.submit(lambda: [request("broken")])
        assert {delta.finish_reason for delta in await broken.all()} == {"error"}
        well = await dispatcher.submit(lambda: [request("well"), request("well too", n=2)])
        await well.all()
        assert await dispatcher.wait_idle(10)
        await until(lambda: Page(metrics).adds_up())

    page = on_loop(scenario)
    assert page.value("requests_received_total") == page.value("request_success_total") == 10
    for reason, count in {"timeout": 1, "abort": 2, "error": 4, "length": 3, "stop": 0}.items():
        assert page.value("request_success_total", finished_reason=reason) == count
    assert page.value("e2e_request_latency_seconds_count") == page.value("request_queue_time_seconds_count") == 10
    assert page.value("request_max_num_generation_tokens_count") == 6
    assert page.value("num_requests_running") == page.value("num_requests_waiting") == page.value("kv_cache_usage_perc") == 0


def test_books_are_closed_when_all_has_ended():
    books = []

    async def scenario(dispatcher, metrics, engine):
        generations = [await dispatcher.submit(lambda i=i: [request(f"r{i}", n=1 + i % 3)]) for i in range(20)]
        for i, generation in enumerate(generations):
            await generation.take()
            if i % 2:
                generation.close()
        assert await dispatcher.wait_idle(30)
        books.append((metrics._samples, metrics._requests))

    page = on_loop(scenario)
    assert books == [({}, {})]
    assert page.adds_up()


def test_refusals_by_reason():
    async def scenario(dispatcher, metrics, engine):
        def fail(error):
            raise error

        async def refused(kind, make):
            with pytest.raises(kind):
                await dispatcher.submit(make)

        await refused(PromptTooLongError, lambda: [request("long", "x" * 300)])
        await refused(RequestError, lambda: [request("bias", logit_bias={9999: 1.0})])
        await refused(HttpError, lambda: fail(HttpError(422, "no")))
        await refused(ZeroDivisionError, lambda: 1 // 0)
        engine.native.gate.clear()
        running = await dispatcher.submit(lambda: [request("first")])
        await until(engine.native.entered.is_set)
        waiting = await dispatcher.submit(lambda: [request("second", n=2)])
        await refused(QueueFullError, lambda: [request("third")])
        engine.native.gate.set()
        await running.all()
        await waiting.all()
        engine.shutdown()
        await refused(EngineError, lambda: [request("dead")])
        await until(lambda: Page(metrics).adds_up())

    page = on_loop(scenario, max_waiting=2)
    expected = {"invalid": 2, "prompt_too_long": 1, "queue_full": 1, "unavailable": 1, "error": 1}
    for reason in ("invalid", "prompt_too_long", "queue_full", "unavailable", "error", "timeout", "unauthorized"):
        assert page.value("requests_rejected_total", reason=reason) == expected.get(reason, 0), reason
    assert page.value("requests_received_total") == 6 + 3


def test_a_submission_whose_caller_has_gone_is_counted():
    async def scenario(dispatcher, metrics, engine):
        entered = asyncio.Event()

        def make():
            dispatcher.loop.call_soon_threadsafe(entered.set)
            return [request("a", n=2, max_tokens=50)]

        # The caller goes while the worker thread is on its way into the engine, or just before: both must add up.
        for _ in range(5):
            task = asyncio.create_task(dispatcher.submit(make))
            await entered.wait()
            task.cancel()
            await asyncio.wait([task])
            assert await dispatcher.wait_idle(10)
            entered.clear()
        await until(lambda: Page(metrics).adds_up())
        assert metrics._requests == {}

    assert on_loop(scenario).adds_up()


def test_deltas_may_come_before_their_submission_is_told():
    metrics = Metrics()
    times = RequestTimes(arrival=1.0, scheduled=1.5, first_token=2.0, last_token=2.0)
    for index in range(2):
        metrics.delivered([OutputDelta("a", index, [1], finish_reason="stop", times=times, time=2.0)])
    metrics.submitted([request("a", n=2)])
    page = Page(metrics)
    assert page.value("request_max_num_generation_tokens_count") == 1
    assert page.value("requests_received_total") == 2
    assert metrics._requests == metrics._samples == {}


def test_exchanges_by_route_and_status():
    metrics = Metrics()
    for status in (200, 200, 404):
        metrics.http_finished("/v1/models/{id}", "GET", status, 0.02)
    metrics.http_finished("other", "BREW\n", 405, 0.02)
    for status in (401, 403, 408, 413, 422, 429, 499, 500, 503):
        metrics.http_rejected(status)
    page = Page(metrics)
    assert page.value("http_requests_total", route="/v1/models/{id}", method="GET", status="200") == 2
    assert page.value("http_requests_total") == 4
    assert page.value("http_requests_total", method="other") == 1
    assert page.value("http_request_duration_seconds_bucket", route="/v1/models/{id}", le="0.05") == 3
    assert page.value("http_request_duration_seconds_bucket", route="/v1/models/{id}", le="0.01") == 0
    for reason, count in {"unauthorized": 2, "invalid": 2, "disconnected": 1, "error": 1, "unavailable": 1}.items():
        assert page.value("requests_rejected_total", reason=reason) == count
    assert page.adds_up()


def test_several_in_one_process():
    first, second = Metrics(), Metrics()
    first.http_finished("/a", "GET", 200, 0.1)
    assert Page(first).value("http_requests_total") == 1
    assert not re.search(rb"http_requests_total\{", second.render()[0])


def test_labels_cannot_break_the_text():
    metrics = Metrics()
    metrics.http_finished('/a"\n\\b', "GET", 200, 0.1)
    assert Page(metrics).value("http_requests_total", route='/a"\n\\b') == 1
