"""`AsyncLLM` over a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine, default_reply

from trivium.doors.library.async_llm import AsyncLLM
from trivium.doors.library.outputs import RequestOutput
from trivium.doors.library.sampling_params import SamplingParams
from trivium.engine.request import GenerationRequest
from trivium.errors import EngineDeadError, QueueFullError
from trivium.models.chat_template import ChatTemplate


def reply_to(prompt: str) -> str:
    return default_reply(prompt, GenerationRequest("r", [1]), 0)


async def collect(pieces: Any) -> RequestOutput:
    whole: RequestOutput | None = None
    async for piece in pieces:
        if whole is None:
            whole = piece
        else:
            whole.add(piece)
    assert whole is not None
    return whole


async def until_idle(engine: FakeEngine) -> None:
    for _ in range(200):
        if engine.idle:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the engine still runs something")


def test_pieces_join_to_the_answer() -> None:
    async def main() -> None:
        async with AsyncLLM(FakeEngine()) as llm:
            whole = await collect(llm.generate("hello"))
            assert whole.outputs.text == reply_to("hello")
            assert (whole.finished, whole.prompt) == (True, "hello")

    asyncio.run(main())


def test_many_at_once_are_batched() -> None:
    async def main() -> None:
        engine = FakeEngine(max_num_seqs=8, pace=0.001)
        async with AsyncLLM(engine) as llm:
            outputs = await asyncio.gather(*(collect(llm.generate(f"p{i}")) for i in range(8)))
            assert [o.outputs.text for o in outputs] == [reply_to(f"p{i}") for i in range(8)]

    asyncio.run(main())


def test_samples_are_told_apart_by_index() -> None:
    async def main() -> None:
        async with AsyncLLM(FakeEngine()) as llm:
            texts = ["", ""]
            async for piece in llm.generate("a", SamplingParams(n=2, seed=7)):
                texts[piece.outputs.index] += piece.outputs.text
            assert texts == ["'a' seed 7 sample 0", "'a' seed 7 sample 1"]

    asyncio.run(main())


def test_chat_renders_the_conversation() -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.chat_template = ChatTemplate("{{ messages[0].content }}>", engine.tokenizer)
        async with AsyncLLM(engine) as llm:
            whole = await collect(llm.chat([{"role": "user", "content": "hi"}]))
            assert (whole.prompt, whole.outputs.text) == ("hi>", reply_to("hi>"))

    asyncio.run(main())


def test_cancelling_the_reader_aborts_the_request() -> None:
    async def main() -> None:
        engine = FakeEngine(lambda *_: "x" * 400, pace=0.001)
        async with AsyncLLM(engine) as llm:
            task = asyncio.create_task(collect(llm.generate("a")))
            while not engine.running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_idle(engine)
            assert engine.aborted == [engine.requests[0].request_id]
            assert engine.requests[0].streamed

    asyncio.run(main())


def test_ending_the_generator_early_aborts_the_request() -> None:
    async def main() -> None:
        engine = FakeEngine(lambda *_: "x" * 400, pace=0.001)
        async with AsyncLLM(engine) as llm:
            pieces = llm.generate("a")
            await anext_of(pieces)
            await pieces.aclose()
            await until_idle(engine)
            assert engine.aborted

    asyncio.run(main())


async def anext_of(pieces: Any) -> Any:
    return await pieces.__anext__()


def test_errors_are_raised_to_the_reader() -> None:
    async def main() -> None:
        async with AsyncLLM(FakeEngine(max_waiting=2)) as llm:
            with pytest.raises(ValueError, match="no tokens"):
                await collect(llm.generate(""))
            with pytest.raises(ValueError, match="one prompt per call, got 2"):
                await collect(llm.generate(["a", "b"]))
            with pytest.raises(QueueFullError):
                await collect(llm.generate("a", SamplingParams(n=3)))
            bad = await collect(llm.generate("boom"))
            assert (bad.error_code, bad.error_msg) == (500, "the step failed")

    asyncio.run(main())


def test_after_shutdown_nothing_is_taken() -> None:
    async def main() -> None:
        llm = AsyncLLM(FakeEngine())
        await llm.shutdown()
        await llm.shutdown()
        with pytest.raises(EngineDeadError):
            await collect(llm.generate("a"))

    asyncio.run(main())


def test_another_loop_is_refused() -> None:
    async def make() -> AsyncLLM:
        return AsyncLLM(FakeEngine())

    async def use(llm: AsyncLLM) -> None:
        with pytest.raises(RuntimeError, match="event loop"):
            await collect(llm.generate("a"))
        await llm.shutdown()

    asyncio.run(use(asyncio.run(make())))
