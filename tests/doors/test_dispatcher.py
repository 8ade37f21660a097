"""`Dispatcher`: one loop's way to the engine, over the real engine on a fake model."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engine_parts import make_engine, request
from fake_native import continuation

from trivium.doors.dispatcher import Dispatcher, DispatchObserver
from trivium.errors import EngineDeadError, QueueFullError, RequestError


class Recorder(DispatchObserver):
    def __init__(self):
        self.events = []

    def submitted(self, requests):
        self.events.append(("submitted", [r.request_id for r in requests]))

    def refused(self, error):
        self.events.append(("refused", type(error).__name__))

    def delivered(self, outputs):
        self.events += [("ended", delta.request_id, delta.finish_reason) for delta in outputs if delta.finished]


def letters(prompt, count=8):
    return bytes(continuation(list(prompt.encode()), count)).decode()


def test_every_delta_reaches_its_generation():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine, recorder)
            prompts = [f"prompt {i}" for i in range(6)]

            async def answer(i, prompt):
                with await dispatcher.submit(lambda: [request(f"r{i}", prompt)]) as generation:
                    return "".join(delta.text for delta in await generation.all())

            texts = await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(prompts)))
            assert texts == [letters(prompt) for prompt in prompts]
            assert dispatcher.num_open == 0
            assert await dispatcher.wait_idle(1)

    recorder = Recorder()
    asyncio.run(main())
    assert sorted(event[1][0] for event in recorder.events if event[0] == "submitted") == [f"r{i}" for i in range(6)]
    assert sorted(event[1:] for event in recorder.events if event[0] == "ended") == [(f"r{i}", "length") for i in range(6)]


def test_several_requests_and_samples_are_one_generation():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            with await dispatcher.submit(lambda: [request("a", "one", n=2), request("b", "two")]) as generation:
                assert [r.request_id for r in generation.requests] == ["a", "b"]
                deltas = await generation.all()
            ends = [(delta.request_id, delta.index) for delta in deltas if delta.finished]
            assert sorted(ends) == [("a", 0), ("a", 1), ("b", 0)]
            assert await generation.take() == []

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [lambda: [request("a", max_tokens=0)], lambda: [request("a", "x" * 400)], lambda: 1 / 0])
def test_what_cannot_be_made_raises_and_leaves_nothing(wrong):
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            with pytest.raises((RequestError, ZeroDivisionError)):
                await dispatcher.submit(wrong)
            assert await dispatcher.wait_idle(0.1)

    asyncio.run(main())


def test_a_full_queue_and_a_dead_engine_are_told_to_the_observer():
    async def main():
        with make_engine(max_waiting=1, max_num_seqs=1) as engine:
            dispatcher = Dispatcher(engine, recorder)
            with pytest.raises(QueueFullError):
                await dispatcher.submit(lambda: [request("a"), request("b")])
            engine.shutdown()
            with pytest.raises(EngineDeadError):
                await dispatcher.submit(lambda: [request("c")])
            assert dispatcher.num_open == 0

    recorder = Recorder()
    asyncio.run(main())
    assert recorder.events == [("refused", "QueueFullError"), ("refused", "EngineDeadError")]


def test_leaving_a_generation_aborts_it():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine, recorder)
            engine.native.gate.clear()
            with await dispatcher.submit(lambda: [request("a", max_tokens=200)]) as generation:
                assert generation.unfinished == 1
            engine.native.gate.set()
            assert await dispatcher.wait_idle(10)
            generation.close()
            assert engine.stats().used_blocks == 0

    recorder = Recorder()
    asyncio.run(main())
    assert recorder.events[-1] == ("ended", "a", "abort")


def test_a_caller_cancelled_while_it_submits_leaves_nothing():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            making, go_on = threading.Event(), threading.Event()

            def make():
                making.set()
                assert go_on.wait(10)
                return [request("a", max_tokens=200)]

            task = asyncio.ensure_future(dispatcher.submit(make))
            await asyncio.to_thread(making.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert dispatcher.num_open == 1
            go_on.set()
            assert await dispatcher.wait_idle(10)
            assert engine.stats().generated_tokens == 0

    asyncio.run(main())


def test_a_caller_cancelled_when_the_engine_has_its_requests_aborts_them():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            submit = engine.submit
            submitted, go_on = threading.Event(), threading.Event()

            def slow(requests, sink):
                submit(requests, sink)
                submitted.set()
                assert go_on.wait(10)

            engine.submit = slow
            task = asyncio.ensure_future(dispatcher.submit(lambda: [request("a", max_tokens=200)]))
            await asyncio.to_thread(submitted.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            assert await dispatcher.wait_idle(10)
            assert engine.stats().finished in ({"abort": 1}, {"length": 1})

    asyncio.run(main())


def test_fail_wakes_whoever_waits():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            engine.native.gate.clear()
            with await dispatcher.submit(lambda: [request("a")]) as generation:
                waiting = asyncio.ensure_future(generation.take())
                await asyncio.sleep(0)
                generation.fail(TimeoutError("gone"))
                with pytest.raises(TimeoutError, match="gone"):
                    await waiting
            engine.native.gate.set()
            assert await dispatcher.wait_idle(10)

    asyncio.run(main())


def test_abort_all_ends_every_request():
    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            engine.native.gate.clear()
            generations = [await dispatcher.submit(lambda i=i: [request(f"r{i}", max_tokens=100)]) for i in range(3)]
            assert not await dispatcher.wait_idle(0.01)
            dispatcher.abort_all()
            engine.native.gate.set()
            reasons = [(await generation.all())[-1].finish_reason for generation in generations]
            assert reasons == ["abort"] * 3
            assert await dispatcher.wait_idle(10)

    asyncio.run(main())


def test_a_closed_loop_stops_no_engine():
    with make_engine() as engine:

        async def main():
            engine.native.gate.clear()
            await Dispatcher(engine).submit(lambda: [request("a", max_tokens=50)])

        asyncio.run(main())
        engine.native.gate.set()
        for _ in range(1000):
            if engine.stats().finished:
                break
            threading.Event().wait(0.01)
        assert engine.stats().finished == {"length": 1}
        assert engine.stats().used_blocks == 0


def test_a_listener_that_raises_harms_no_other():
    def broken(delta):
        raise RuntimeError("broken")

    async def main():
        with make_engine() as engine:
            dispatcher = Dispatcher(engine)
            engine.native.gate.clear()
            bad = await dispatcher.submit(lambda: [request("bad", max_tokens=100)])
            good = await dispatcher.submit(lambda: [request("good", "hello")])
            bad.listen(broken)
            engine.native.gate.set()
            assert "".join(delta.text for delta in await good.all()) == letters("hello")
            assert await dispatcher.wait_idle(10)
            assert bad.closed

    asyncio.run(main())
