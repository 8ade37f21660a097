"""`delta_tokens`: fewer deltas, the same answer."""

from __future__ import annotations

import pytest
from engine_parts import Door, ask, make_engine, request
from fake_native import continuation

from trivium.errors import RequestError


@pytest.mark.parametrize("count", [2, 3, 5, 8, 100])
@pytest.mark.parametrize("options", [{}, {"logprobs": 2, "prompt_logprobs": 1}, {"n": 2, "temperature": 1.0, "seed": 5}])
def test_the_answer_is_that_of_single_tokens(count, options):
    with make_engine() as engine:
        single = ask(engine, request("a", max_tokens=20, **options))
        joined = ask(engine, request("a", max_tokens=20, delta_tokens=count, **options))
        for one, other in zip(single, joined, strict=True):
            assert (one.token_ids, one.text, one.logprobs, one.reason) == (
                other.token_ids,
                other.text,
                other.logprobs,
                other.reason,
            )
            assert one.deltas[0].prompt_logprobs == other.deltas[0].prompt_logprobs
            *before, last = other.deltas
            first, second, *others = [len(delta.token_ids) for delta in before] + [count] * 2
            assert first == count
            assert count <= second < 2 * count
            assert set(others) <= {count}
            assert all(delta.text for delta in before)
            assert last.time == last.times.last_token
        assert engine.stats().generated_tokens == 2 * 20 * len(single)


def test_deltas_of_several_requests_come_together():
    with make_engine() as engine:
        door = Door()
        others = iter(["b", "c"])

        def add_one_at_a_time(outputs):
            door(outputs)
            if (name := next(others, None)) is not None:
                engine.submit([request(name, max_tokens=40, delta_tokens=3)], add_one_at_a_time)

        engine.submit([request("a", max_tokens=40), request("d", max_tokens=40, delta_tokens=3)], add_one_at_a_time)
        door.wait("a", "b", "c", "d")
        gathered = [call for call in door.calls if any(delta.request_id != "a" and not delta.finished for delta in call)]
        for call in gathered[5:-1]:
            assert sorted(delta.request_id for delta in call) == ["a", "b", "c", "d"]
        assert len(gathered) > 9


def test_a_delta_waits_for_text():
    tokens = continuation(list(b"hello"), 4)
    with make_engine() as engine:
        # As long as the answer may go on to the stop string, nothing of it is text.
        (answer,) = ask(engine, request("a", stop=(bytes(tokens[:3]).decode() + "\n",), delta_tokens=2))
        first = answer.deltas[0]
        assert first.token_ids == tokens
        assert first.text == bytes(tokens).decode()


def test_what_is_held_comes_with_an_end_from_outside():
    with make_engine() as engine:
        door = Door()
        engine.submit(
            [request("a", max_tokens=200, delta_tokens=3)], lambda outputs: (door(outputs), engine.native.gate.clear())
        )
        door.wait_for_tokens("a", 3)
        engine.abort(["a"])
        engine.native.gate.set()
        (answer,) = door.wait("a")
        assert answer.reason == "abort"
        assert answer.text == bytes(answer.token_ids).decode()
        assert answer.token_ids == continuation(list(b"hello"), 4)


def test_a_fault_gives_what_is_held():
    with make_engine() as engine:
        door = Door()

        def break_after_the_first(outputs):
            door(outputs)
            if len(door.calls) == 1:  # "b" has told its first token, "a" holds it
                engine.native.fault = ValueError("broken weights")

        engine.submit([request("a", delta_tokens=2), request("b")], break_after_the_first)
        a, b = door.wait("a", "b")
        assert (a.reason, b.reason) == ("error", "error")
        assert a.token_ids == b.token_ids == continuation(list(b"hello"), 1)
        assert len(a.deltas) == 1


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_counts_below_one_are_refused(count):
    with pytest.raises(RequestError, match="delta_tokens"):
        request("a", delta_tokens=count)
