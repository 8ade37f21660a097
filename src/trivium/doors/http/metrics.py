"""`Metrics`: what `/metrics` tells Prometheus, under vLLM's names with `trivium:` for `vllm:`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trivium.doors.dispatcher import DispatchObserver
from trivium.doors.http.errors import ClientGoneError, HttpError
from trivium.engine.engine import Engine, EngineStats
from trivium.engine.outputs import OutputDelta
from trivium.engine.request import GenerationRequest
from trivium.errors import EngineError, PromptTooLongError

__all__ = ["CLIENT_GONE", "GENERATION_ROUTES", "Metrics"]

CLIENT_GONE = 499  # stands for the status of an exchange whose client has gone before its end

# Routes whose requests, when they end before they reach the dispatcher, count as rejected.
GENERATION_ROUTES = frozenset(
    {"/infer", "/infer_token", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
)

_PREFIX = "trivium:"
_FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")
_REJECTIONS = ("invalid", "prompt_too_long", "queue_full", "unauthorized", "timeout", "unavailable", "disconnected", "error")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


# Bounds of vLLM's histograms; gaps between tokens have finer ones below them, where a small model on a CPU is.
_FIRST_TOKEN = _bounds("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
_GAPS = _bounds("0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
_SECONDS = _bounds("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
_HTTP_SECONDS = _bounds("0.001 0.005 0.01 0.05 0.1 0.5 1 5 10 60 600")
_SAMPLES = _bounds("1 2 5 10 20")
_LOG2_STEP_TOKENS = (0, *range(3, 15))  # 1, 8, 16, … 16384
_NO_MODEL_LEN = 100_000


class Metrics(DispatchObserver):
    """Counts what passes the dispatcher and the http door, and reads the engine's own counters when it is asked.

    Each has a registry of its own, so that one process can run several servers. Samples are counted, not requests: one with
    `n=4` counts four. Received are all that the engine took and, one for each request, all that were rejected: the former are
    waiting, running or finished. Everything but `render` runs on the event loop.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._num_taken = 0
        self._rejected = dict.fromkeys(_REJECTIONS, 0)
        self._samples: dict[tuple[str, int], list[float]] = {}  # time of the latest token, number of tokens
        self._requests: dict[str, list[int]] = {}  # samples that have not ended, most tokens of those that have
        self._http: dict[tuple[str, str, int], int] = {}
        self._http_seconds: dict[tuple[str, str], _Histogram] = {}
        self._first_token = _Histogram(_FIRST_TOKEN)
        self._gaps, self._per_token = _Histogram(_GAPS), _Histogram(_GAPS)
        self._e2e, self._queued = _Histogram(_SECONDS), _Histogram(_SECONDS)
        self._inference, self._prefill, self._decode = (_Histogram(_SECONDS) for _ in range(3))
        self._n = _Histogram(_SAMPLES)
        self._set_lengths(_NO_MODEL_LEN)
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(self))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def attach(self, engine: Engine) -> None:
        """The model is loaded: from now on the engine's counters are told under its name. Before its first request."""
        self._engine = engine
        self._set_lengths(engine.model_info.max_model_len)

    def render(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type. May be called on any thread."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    # What the dispatcher tells. Deltas may come before their submission is told.

    def submitted(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            self._num_taken += request.n
            self._n.observe(request.n)
            if request.sampling.max_tokens is not None:
                self._max_tokens.observe(request.sampling.max_tokens)
            self._count_samples(request.request_id, request.n, 0)

    def refused(self, error: Exception) -> None:
        self._rejected[_reason(error)] += 1

    def delivered(self, outputs: Sequence[OutputDelta]) -> None:
        samples, gaps = self._samples, self._gaps
        for delta in outputs:
            num_tokens = len(delta.token_ids)
            if num_tokens:
                now = delta.time
                key = (delta.request_id, delta.index)
                sample = samples.get(key)
                if sample is None:
                    samples[key] = [now, num_tokens]
                    self._first_token.observe(now - delta.times.arrival)
                else:
                    gap = now - sample[0]
                    gaps.counts[bisect_left(_GAPS, gap)] += 1
                    gaps.total += gap
                    sample[0] = now
                    sample[1] += num_tokens
            if delta.finish_reason is not None:
                self._ended(delta)

    # What the http door tells

    def http_finished(self, route: str, method: str, status: int, seconds: float) -> None:
        """An exchange is over. `route` is the pattern of its path, so that there are few of them."""
        method = method if method in _METHODS else "other"
        self._http[route, method, status] = self._http.get((route, method, status), 0) + 1
        histogram = self._http_seconds.get((route, method))
        if histogram is None:
            histogram = self._http_seconds[route, method] = _Histogram(_HTTP_SECONDS)
        histogram.observe(seconds)

    def http_rejected(self, status: int) -> None:
        """A request for an answer ended with this status before it came to the dispatcher."""
        self._rejected[_reason_of_status(status)] += 1

    # Books

    def _set_lengths(self, longest: int) -> None:
        bounds = tuple(_one_two_five(longest))
        self._prompt_tokens, self._output_tokens = _Histogram(bounds), _Histogram(bounds)
        self._most_output_tokens, self._max_tokens = _Histogram(bounds), _Histogram(bounds)

    def _ended(self, delta: OutputDelta) -> None:
        sample = self._samples.pop((delta.request_id, delta.index), None)
        num_tokens = 0 if sample is None else int(sample[1])
        times = delta.times
        self._e2e.observe(delta.time - times.arrival)
        self._queued.observe((times.scheduled or delta.time) - times.arrival)
        self._prompt_tokens.observe(delta.num_prompt_tokens)
        self._output_tokens.observe(num_tokens)
        if num_tokens:
            self._inference.observe(times.last_token - times.scheduled)
            self._prefill.observe(times.first_token - times.scheduled)
            self._decode.observe(times.last_token - times.first_token)
        if num_tokens > 1:
            self._per_token.observe((times.last_token - times.first_token) / (num_tokens - 1))
        self._count_samples(delta.request_id, -1, num_tokens)

    def _count_samples(self, request_id: str, more: int, num_tokens: int) -> None:
        """Add samples to a request, or take one away; when all have come and gone, note the longest."""
        left, most = self._requests.get(request_id, (0, 0))
        left, most = left + more, max(most, num_tokens)
        if left:
            self._requests[request_id] = [left, most]
        else:
            self._requests.pop(request_id, None)
            self._most_output_tokens.observe(most)

    # Families, for the collector

    def families(self) -> Iterator[Metric]:
        """Everything as it is now."""
        engine = self._engine
        model = "" if engine is None else engine.model_info.name
        stats = EngineStats() if engine is None else engine.stats()
        yield from self._of_engine(model, stats)
        yield from self._of_requests(model, stats)
        yield from self._of_http()
        if engine is not None:
            config = engine.config
            cache = {
                "block_size": config.block_size,
                "cache_dtype": config.kv_cache_dtype,
                "enable_prefix_caching": config.enable_prefix_caching,
                "max_model_len": engine.model_info.max_model_len,
                "max_num_seqs": config.max_num_seqs,
                "num_gpu_blocks": stats.total_blocks,
            }
            labels = {"model_name": model, **{name: str(value) for name, value in cache.items()}}
            info = GaugeMetricFamily(_PREFIX + "cache_config_info", "The KV cache's configuration.", labels=list(labels))
            info.add_metric(list(labels.values()), 1)
            yield info

    def _of_engine(self, model: str, stats: EngineStats) -> Iterator[Metric]:
        usage = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
        yield _gauge("num_requests_running", "Samples in the engine's batch.", model, stats.running)
        yield _gauge("num_requests_waiting", "Samples that wait for a place in it.", model, stats.waiting)
        yield _gauge("kv_cache_usage_perc", "KV blocks held by requests; 1 is all.", model, usage)
        yield _gauge("gpu_cache_usage_perc", "The same under its older name.", model, usage)
        yield _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", model, stats.prefix_queries)
        yield _counter("prefix_cache_hits", "Of these, tokens found.", model, stats.prefix_hits)
        yield _counter("num_preemptions", "Samples that gave up their place for a more urgent one.", model, stats.preemptions)
        yield _counter("spec_decode_num_draft_tokens", "Tokens that prompt lookup guessed.", model, stats.drafted)
        yield _counter("spec_decode_num_accepted_tokens", "Of these, right ones.", model, stats.accepted)
        prompt_tokens = stats.prompt_tokens + stats.prefix_hits
        yield _counter("prompt_tokens", "Prompt tokens, computed or found in the prefix cache.", model, prompt_tokens)
        yield _counter("generation_tokens", "Tokens generated.", model, stats.generated_tokens)
        steps = [0]
        for log2 in range(_LOG2_STEP_TOKENS[-1] + 1):
            steps[-1] += stats.step_sizes.get(log2, 0)
            if log2 in _LOG2_STEP_TOKENS:
                steps.append(0)
        steps[-1] = sum(stats.step_sizes.values()) - sum(steps)
        family = _histograms("iteration_tokens_total", "Tokens of one step, of prompts and generated.")
        bounds = [2**log2 for log2 in _LOG2_STEP_TOKENS]
        family.add_metric([model], _cumulated(bounds, steps), stats.prompt_tokens + stats.generated_tokens)
        yield family

    def _of_requests(self, model: str, stats: EngineStats) -> Iterator[Metric]:
        received = self._num_taken + sum(self._rejected.values())
        yield _counter("requests_received", "Samples that the engine took, and requests that were rejected.", model, received)
        yield _counters("requests_rejected", "Requests that the engine did not take.", model, "reason", self._rejected)
        finished = {**dict.fromkeys(_FINISH_REASONS, 0), **stats.finished}
        yield _counters("request_success", "Samples that have ended.", model, "finished_reason", finished)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self._first_token),
            ("inter_token_latency_seconds", "Between the tokens of one sample.", self._gaps),
            ("time_per_output_token_seconds", "The same under its older name.", self._gaps),
            ("request_time_per_output_token_seconds", "Mean time of a token after the first, per sample.", self._per_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", self._e2e),
            ("request_queue_time_seconds", "From arrival to the first step.", self._queued),
            ("request_inference_time_seconds", "From the first step to the last token.", self._inference),
            ("request_prefill_time_seconds", "From the first step to the first token.", self._prefill),
            ("request_decode_time_seconds", "From the first token to the last.", self._decode),
            ("request_prompt_tokens", "Tokens of a prompt.", self._prompt_tokens),
            ("request_generation_tokens", "Tokens of an answer.", self._output_tokens),
            ("request_max_num_generation_tokens", "Tokens of the longest sample of a request.", self._most_output_tokens),
            ("request_params_n", "Samples that a request asked for.", self._n),
            ("request_params_max_tokens", "Tokens that a request asked for at most.", self._max_tokens),
        ):
            family = _histograms(name, text)
            histogram.add_to(family, [model])
            yield family

    def _of_http(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(_PREFIX + "http_requests", "Exchanges over http.", labels=["route", "method", "status"])
        for (route, method, status), count in list(self._http.items()):
            answers.add_metric([route, method, str(status)], count)
        yield answers
        seconds = HistogramMetricFamily(
            _PREFIX + "http_request_duration_seconds", "From an exchange's headers to its end.", labels=["route", "method"]
        )
        for labels, histogram in list(self._http_seconds.items()):
            histogram.add_to(seconds, labels)
        yield seconds


class _Histogram:
    """Counts per bucket, in plain lists: an observation takes a fraction of a microsecond."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        family.add_metric(labels, _cumulated(self.bounds, self.counts), self.total)


class _EngineCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is read when it is registered


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    buckets, count = [], 0
    for bound, more in zip((*map(float, bounds), "+Inf"), counts, strict=True):
        count += more
        buckets.append((str(bound), float(count)))
    return buckets


def _gauge(name: str, help: str, model: str, value: float) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, help, labels=["model_name"])
    family.add_metric([model], value)
    return family


def _counter(name: str, help: str, model: str, value: float) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, help, labels=["model_name"])
    family.add_metric([model], value)
    return family


def _counters(name: str, help: str, model: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, help, labels=["model_name", label])
    for value, count in values.items():
        family.add_metric([model, value], count)
    return family


def _histograms(name: str, help: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(_PREFIX + name, help, labels=["model_name"])


def _one_two_five(longest: int) -> Iterator[float]:
    """1, 2, 5, 10, 20, … up to `longest`."""
    scale = 1
    while scale <= longest:
        yield from (float(scale * digit) for digit in (1, 2, 5) if scale * digit <= longest)
        scale *= 10


def _reason(error: Exception) -> str:
    """Why the dispatcher refused."""
    if isinstance(error, PromptTooLongError):
        return "prompt_too_long"
    if isinstance(error, ClientGoneError):
        return "disconnected"
    if isinstance(error, (HttpError, EngineError)):
        return _reason_of_status(error.status if isinstance(error, HttpError) else error.error_code)
    return "error"


def _reason_of_status(status: int) -> str:
    known = {
        401: "unauthorized",
        403: "unauthorized",
        408: "timeout",
        429: "queue_full",
        CLIENT_GONE: "disconnected",
        503: "unavailable",
    }
    return known.get(status, "invalid" if status < 500 else "error")
