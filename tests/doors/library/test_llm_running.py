"""`LLM` over a fake engine: feeding long batches, progress bars, interrupts, endings and streams."""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from engine_parts import Door, make_engine, request
from fake_engine import FakeEngine, reply_to, texts

from trivium.doors.library import batch as batch_module
from trivium.doors.library import progress
from trivium.doors.library.answers import Answer
from trivium.doors.library.llm import LLM
from trivium.doors.library.sampling_params import SamplingParams
from trivium.errors import EngineDeadError, QueueFullError
from trivium.models.chat_template import ChatTemplate


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(max_num_seqs=4, max_waiting=16) as engine:
        engine.chat_template = ChatTemplate("{{ messages[0].content }}>", engine.tokenizer)
        yield engine


@pytest.fixture
def llm(engine: FakeEngine) -> LLM:
    return LLM.from_engine(engine)


# Feeding and progress


def test_batches_larger_than_the_queue_are_fed_gradually(llm: LLM, engine: FakeEngine) -> None:
    prompts = [f"prompt {i}" for i in range(100)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=3), use_tqdm=False)
    assert [o.prompt for o in outputs] == prompts
    assert sum(engine.chunks) == 100
    assert max(engine.chunks) == 16


def test_answers_are_put_together_as_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Semaphore(3)  # the first answer and its end
    whole, unfinished = Answer.whole, []

    def go_on(answer: Answer, deltas: Any) -> Any:
        unfinished.append(engine.stats().running)
        gate.release(100)
        return whole(answer, deltas)

    monkeypatch.setattr(Answer, "whole", go_on)
    with FakeEngine(lambda prompt, *_: prompt, max_num_seqs=2, gate=gate) as engine:
        rescue = threading.Timer(10, gate.release, [100])
        rescue.start()
        assert texts(LLM.from_engine(engine).generate(["ab", "abcdefgh"], use_tqdm=False)) == ["ab", "abcdefgh"]
        rescue.cancel()
    assert unfinished == [1, 0]


def test_samples_count_in_the_queue(llm: LLM, engine: FakeEngine) -> None:
    outputs = llm.generate(["a"] * 10, SamplingParams(n=5, max_tokens=2), use_tqdm=False)
    assert len(outputs) == 50
    assert max(engine.chunks) == 3


def test_callers_in_several_threads_share_the_queue() -> None:
    with FakeEngine(max_num_seqs=2, max_waiting=2) as engine:
        llm = LLM.from_engine(engine)
        results: dict[int, list[str]] = {}

        def call(caller: int) -> None:
            results[caller] = texts(
                llm.generate([f"{caller}-{i}" for i in range(20)], SamplingParams(max_tokens=2), use_tqdm=False)
            )

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for caller in range(4):
            assert results[caller] == [reply_to(f"{caller}-{i}")[:2] for i in range(20)]


def test_a_request_that_no_idle_engine_takes_is_refused(llm: LLM) -> None:
    with pytest.raises(QueueFullError):
        llm.generate("a", SamplingParams(n=17))


class Bar:
    """Stands in for tqdm."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs, self.ticks, self.postfix, self.closed = kwargs, 0, "", False
        bars.append(self)

    def update(self, count: int) -> None:
        self.ticks += count

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.postfix = text

    def close(self) -> None:
        self.closed = True


bars: list[Bar] = []


def test_the_bar_ticks_once_per_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bars.clear()
    monkeypatch.setattr(progress, "_Bar", Bar)
    llm.generate(["a", "b", "c"], SamplingParams(n=2, seed=0))
    llm.generate(["a"], use_tqdm=False)
    assert (len(bars), bars[0].kwargs["desc"], bars[0].kwargs["total"]) == (1, "Processed prompts", 3)
    assert (bars[0].ticks, bars[0].closed) == (3, True)
    assert bars[0].postfix.startswith("input ")
    assert "output " in bars[0].postfix


def test_a_bar_starts_no_thread(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("tqdm.tqdm.monitor", None)
    monkeypatch.setattr("tqdm.std.TMonitor", lambda *given: started.append(given))
    llm.generate("a")
    llm.generate("a", use_tqdm=False)
    progress.LoadProgress("m")(1, 2)
    assert started == []


def test_the_loading_bar_is_for_big_models_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(total: int) -> bool:
        bars.clear()
        report = progress.LoadProgress("m")
        monkeypatch.setattr(Bar, "n", 0, raising=False)
        report(total // 2, total)
        report(total, total)
        assert all(bar.closed for bar in bars)
        return bool(bars)

    monkeypatch.setattr(progress, "_Bar", Bar)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("TRIVIUM_PROGRESS", raising=False)
    assert load(400_000_000)
    assert not load(200_000_000)
    monkeypatch.setenv("TRIVIUM_PROGRESS", "0")
    assert not load(400_000_000)


# Interrupts and endings


def test_an_interrupt_leaves_the_engine_clean(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Bar):
        def update(self, count: int) -> None:
            raise KeyboardInterrupt

    llm = LLM.from_engine(engine)
    with monkeypatch.context() as patch:
        patch.setattr(progress, "_Bar", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([f"{i}" for i in range(60)])
    assert engine.idle
    assert texts(llm.generate("next", use_tqdm=False)) == [reply_to("next")]


def test_an_interrupt_inside_submit_does_not_hang(llm: LLM, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(requests: Any, sink: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch_module, "_LOST_WAIT", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], use_tqdm=False)
    assert texts(llm.generate("next", use_tqdm=False)) == [reply_to("next")]


def test_shutdown_elsewhere_ends_answers_with_503() -> None:
    engine = FakeEngine(lambda *_: "x" * 400, pace=0.01)
    llm = LLM.from_engine(engine)
    threading.Timer(0.1, llm.shutdown).start()
    output = llm.generate("a", use_tqdm=False)[0]
    assert (output.error_code, output.outputs.finish_reason) == (503, "abort")
    assert output.outputs.text
    with pytest.raises(EngineDeadError):
        llm.generate("b", use_tqdm=False)


def test_context_manager_shuts_the_engine_down() -> None:
    engine = FakeEngine()
    with LLM.from_engine(engine) as llm:
        assert llm.get_tokenizer() is engine.tokenizer
    with pytest.raises(EngineDeadError):
        llm.generate("a", use_tqdm=False)
    llm.shutdown()


# Streaming


def test_streams_are_generators_of_lists_as_long_as_the_batch(llm: LLM) -> None:
    stream = llm.generate(["a", "b"], SamplingParams(n=2, seed=3), stream=True)
    assert isinstance(stream, types.GeneratorType)
    joined: list[Any] = [None] * 4
    for step in stream:
        assert len(step) == 4
        for i, piece in enumerate(step):
            if piece is None:
                continue
            if joined[i] is None:
                joined[i] = piece
            else:
                assert piece.outputs.send_idx == joined[i].outputs.send_idx + 1
                joined[i].add(piece)
    whole = llm.generate(["a", "b"], SamplingParams(n=2, seed=3), use_tqdm=False)
    assert [(o.prompt, o.outputs.index, o.outputs.text, o.outputs.token_ids, o.finished) for o in joined] == [
        (o.prompt, o.outputs.index, o.outputs.text, o.outputs.token_ids, True) for o in whole
    ]


def test_streamed_pieces_hold_what_is_new(llm: LLM) -> None:
    pieces = [step[0] for step in llm.generate("a", SamplingParams(logprobs=0), stream=True)]
    assert "".join(piece.outputs.text for piece in pieces) == reply_to("a")
    assert all(len(piece.outputs.logprobs) == len(piece.outputs.token_ids) for piece in pieces)
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].outputs.completion_tokens == sum(len(piece.outputs.token_ids) for piece in pieces)


def test_nothing_new_is_none() -> None:
    gate = threading.Semaphore(0)
    with FakeEngine(max_num_seqs=1, gate=gate) as engine:
        stream = LLM.from_engine(engine).generate(["a", "b"], stream=True)
        first = None
        while first is None or not first.finished:
            gate.release()
            first, second = next(stream)
            assert second is None
        gate.release()
        first, second = next(stream)
        assert (first, second.outputs.text) == (None, "'")
        gate.release(200)
        stream.close()


def test_requests_are_queued_before_the_first_next(llm: LLM, engine: FakeEngine) -> None:
    stream = llm.generate(["a", "b"], stream=True)
    assert len(engine.requests) == 2
    stream.close()


@pytest.mark.parametrize("steps", [0, 1])
def test_closing_a_stream_aborts_the_rest(steps: int) -> None:
    with FakeEngine(lambda *_: "x" * 400, pace=0.001, max_num_seqs=2, max_waiting=4) as engine:
        stream = LLM.from_engine(engine).generate([f"{i}" for i in range(20)], stream=True)
        for _ in range(steps):
            next(stream)
        stream.close()
        assert engine.idle
        assert len(engine.requests) < 20


def test_a_forgotten_stream_aborts_too() -> None:
    with FakeEngine(lambda *_: "x" * 400, pace=0.001) as engine:
        llm = LLM.from_engine(engine)
        stream = llm.generate("a", stream=True)
        del stream
        gc.collect()
        assert engine.idle
        assert engine.aborted


def test_a_stream_that_is_collected_on_the_engines_thread_does_not_stop_it() -> None:
    def collect(_: object) -> None:
        gc.collect()
        done.set()

    done = threading.Event()
    gc.disable()  # the cycle must wait for the engine's thread
    try:
        with make_engine() as engine:
            engine.native.gate.clear()
            cycle: list[Any] = [LLM.from_engine(engine).generate("a", SamplingParams(max_tokens=200), stream=True)]
            cycle.append(cycle)
            del cycle
            engine.submit([request("other", max_tokens=1)], collect)
            engine.native.gate.set()
            assert done.wait(10)
            door = Door()
            engine.submit([request("next", max_tokens=1)], door)
            door.wait("next", timeout=10)
            assert engine.stats().finished["abort"] == 1
    finally:
        gc.enable()


def test_two_streams_at_once(llm: LLM) -> None:
    first, second = llm.generate("a", stream=True), llm.generate("b", stream=True)
    pieces: tuple[list[str], list[str]] = ([], [])
    for one, two in zip(first, second, strict=False):
        pieces[0].append(one[0].outputs.text)
        pieces[1].append(two[0].outputs.text)
    rest = [step[0].outputs.text for step in first], [step[0].outputs.text for step in second]
    assert {"".join(pieces[1] + rest[1])} <= {reply_to("b")}


def test_chat_streams(llm: LLM) -> None:
    steps = list(llm.chat([{"role": "user", "content": "hi"}], stream=True))
    assert "".join(step[0].outputs.text for step in steps) == reply_to("hi>")
    assert steps[0][0].prompt == "hi>"
