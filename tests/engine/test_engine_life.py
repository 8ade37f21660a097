"""Life and death of requests and engines: aborts, deadlines, faults, shutdown, fork, garbage collection, threads."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from engine_parts import Door, ask, make_engine, request, start_engine
from fake_native import FakeModel, continuation

from trivium.engine import GuidedOptions
from trivium.engine.scheduler import Scheduler
from trivium.engine.stop_strings import StopPatterns
from trivium.errors import EngineDeadError, EngineError, QueueFullError, RequestError

LONG = {"max_tokens": 200}


def expected(prompt="hello", count=8):
    return continuation(list(prompt.encode()), count)


def wait_until(condition, timeout=20):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.002)


def test_abort_of_running_waiting_and_unknown_requests():
    with make_engine(max_num_seqs=2) as engine:
        door = Door()

        def hold_after_the_first(outputs):
            door(outputs)
            if len(door.deltas["running", 1]) == 1:
                engine.native.gate.clear()

        engine.submit([request("running", n=2, **LONG)], hold_after_the_first)
        wait_until(lambda: not engine.native.gate.is_set())
        engine.submit([request("waiting", **LONG)], door)
        engine.abort(["waiting", "unknown", "running", "running"])
        engine.native.gate.set()
        first, second, waiting = [*door.wait("running", n=2), *door.wait("waiting")]
        assert (first.reason, second.reason, waiting.reason) == ("abort",) * 3
        assert first.text == bytes(first.token_ids).decode()
        assert not waiting.token_ids
        wait_until(lambda: engine.stats().used_blocks == 0)
        assert engine.stats().finished == {"abort": 3}


def test_abort_before_the_engine_has_seen_the_request():
    with make_engine() as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("a")], door)
        assert engine.native.entered.wait(10)
        engine.submit([request("b")], door)
        engine.abort(["b"])
        engine.native.gate.set()
        answers = door.wait("a", "b")
        assert [answer.reason for answer in answers] == ["length", "abort"]


def test_abort_does_not_reach_a_request_submitted_after_it():
    with make_engine() as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("a")], door)
        assert engine.native.entered.wait(10)
        engine.abort(["b"])
        engine.submit([request("b")], door)
        engine.native.gate.set()
        assert [answer.reason for answer in door.wait("a", "b")] == ["length", "length"]


def test_abort_gives_text_that_was_held_back():
    with make_engine() as engine:
        tokens = expected(count=4)
        door = Door()
        held = bytes(tokens[:3]).decode()

        def abort_after_three(outputs):
            door(outputs)
            if sum(len(delta.token_ids) for delta in door.deltas["a", 0]) == 3:
                engine.abort(["a"])

        engine.submit([request("a", stop=(held + "\n",), **LONG)], abort_after_three)
        (answer,) = door.wait("a")
        assert [delta.text for delta in answer.deltas[:3]] == [""] * 3
        assert answer.last.text.startswith(held)


def test_deadlines_of_waiting_and_running_requests():
    with make_engine(max_num_seqs=1) as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("a", timeout=0.05, **LONG), request("b", timeout=0.05), request("c", timeout=60)], door)
        assert engine.native.entered.wait(10)
        time.sleep(0.06)
        engine.native.gate.set()
        a, b, c = door.wait("a", "b", "c")
        assert (a.reason, b.reason, c.reason) == ("timeout", "timeout", "length")
        assert len(a.token_ids) == 1
        assert not b.token_ids
        assert c.token_ids == expected()


def test_faulty_step_ends_the_batch_and_nothing_else(caplog):
    with make_engine(max_num_seqs=2) as engine:
        engine.native.fault = ValueError("broken weights")
        answers = ask(engine, request("a"), request("b"), request("c"))
        assert [answer.reason for answer in answers] == ["error", "error", "length"]
        error = answers[0].last.error
        assert isinstance(error, EngineError)
        assert error.error_code == 500
        assert "broken weights" in str(error)
        assert answers[2].token_ids == expected()
        assert "broken weights" in caplog.text
        assert engine.stats().used_blocks == 0


def test_logits_that_are_not_finite_end_one_request():
    with make_engine() as engine:
        engine.native.poison = 7
        poisoned = [97] * 31 + [7]
        answers = ask(engine, request("a", poisoned), request("b"))
        assert [answer.reason for answer in answers] == ["error", "length"]
        assert answers[1].token_ids == expected()
        (answer,) = ask(engine, request("c", [*poisoned, 97]))
        assert answer.last.num_cached_tokens == 0  # the faulty step offered nothing to the prefix cache
        assert answer.token_ids == continuation([*poisoned, 97], 8)


def test_sampler_that_cannot_be_made_ends_one_request():
    with make_engine() as engine:
        answers = ask(engine, request("a", seed=666), request("b"))
        assert [answer.reason for answer in answers] == ["error", "length"]
        assert "no such seed" in str(answers[0].last.error)
        assert answers[1].token_ids == expected()


class LyingMatcher:
    """Its mask allows what `accept` refuses."""

    def fill_mask(self, row):
        row[:] = 0xFFFFFFFF

    def accept(self, token):
        return False

    def is_finished(self):
        return False

    def forced_end(self):
        return None


class BrokenMatcher(LyingMatcher):
    def fill_mask(self, row):
        raise RuntimeError("no mask")


@pytest.mark.parametrize(("matcher", "message"), [(LyingMatcher, "grammar does not allow"), (BrokenMatcher, "no mask")])
def test_faulty_grammar_ends_one_request(matcher, message):
    with make_engine(compile_guided=lambda options: matcher()) as engine:
        answers = ask(engine, request("a", guided=GuidedOptions(regex="x")), request("b"))
        assert [answer.reason for answer in answers] == ["error", "length"]
        assert message in str(answers[0].last.error)
        assert answers[1].token_ids == expected()


def test_faulty_sink_loses_its_requests_only(caplog):
    with make_engine() as engine:
        calls = []

        def broken(outputs):
            calls.append([(delta.request_id, delta.finish_reason) for delta in outputs])
            raise OSError("door is gone")

        good = Door()
        engine.native.gate.clear()
        engine.submit([request("a", n=2, **LONG), request("b", **LONG)], broken)
        engine.submit([request("c")], good)
        engine.native.gate.set()
        assert good.wait("c")[0].token_ids == expected()
        wait_until(lambda: engine.stats().running == 0)
        ends = [request_id for call in calls for request_id, reason in call if reason == "abort"]
        assert sorted(ends) == ["a", "a", "b"]
        assert "door is gone" in caplog.text


def test_faulty_scheduler_ends_everything_and_starts_again(monkeypatch):
    with make_engine() as engine:
        ask(engine, request("before"))

        def broken(self, now):
            raise RuntimeError("lost count")

        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "schedule", broken)
            answers = ask(engine, request("a"), request("b"))
            assert [answer.reason for answer in answers] == ["error", "error"]
        wait_until(lambda: engine.stats().used_blocks == 0)
        assert ask(engine, request("c"))[0].token_ids == expected()


def test_faulty_scheduler_ends_requests_that_have_not_reached_it(monkeypatch):
    with make_engine() as engine:
        door = Door()

        def broken(self, now):
            engine.submit([request("late", **LONG)], door)
            raise RuntimeError("lost count")

        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "schedule", broken)
            engine.submit([request("a")], door)
            answers = door.wait("a", "late")
        assert [answer.reason for answer in answers] == ["error", "error"]
        assert ask(engine, request("c"))[0].token_ids == expected()
        assert len(door.deltas["late", 0]) == 1


@pytest.mark.parametrize(("fault", "traceback"), [(RequestError("too complex"), False), (RuntimeError("a bug"), True)])
def test_only_faults_of_the_engine_are_logged_with_a_traceback(caplog, fault, traceback):
    class Faulty(LyingMatcher):
        def fill_mask(self, row):
            raise fault

    with make_engine(compile_guided=lambda options: Faulty()) as engine:
        ask(engine, request("a", guided=GuidedOptions(regex="x")))
    (record,) = caplog.records
    assert record.levelno == (logging.ERROR if traceback else logging.WARNING)
    assert bool(record.exc_info) is traceback
    assert "request a could not be prepared" in caplog.text
    assert str(fault) in caplog.text


def test_what_a_sample_fails_for_is_logged_without_a_traceback(caplog):
    with make_engine() as engine:
        engine.native.poison = 7
        ask(engine, request("a", [97] * 5 + [7]))
    assert "request a failed: the model's output is not finite" in caplog.text
    assert "Traceback" not in caplog.text


def test_clean_books_are_not_audited_when_idle(monkeypatch):
    audits = []
    check = Scheduler.check_integrity
    monkeypatch.setattr(Scheduler, "check_integrity", lambda self: audits.append(self) or check(self))
    with make_engine() as engine:
        for name in "abc":
            ask(engine, request(name))
        scheduler = engine._loop._scheduler
        assert not audits
        assert scheduler.is_clean()
        check(scheduler)
        scheduler.blocks._free.pop()
        assert not scheduler.is_clean()
        ask(engine, request("d"))
        wait_until(lambda: audits == [scheduler])


def test_what_was_learned_for_guesses_goes_with_the_answer():
    learned = []

    def propose(sequence, limit, num_decoding):
        sequence.drafting = "learned"
        learned.append(sequence)
        return ()

    with make_engine(propose=propose) as engine:
        ask(engine, request("a", timeout=600.0))  # whose deadline is kept for longer
        assert learned
        wait_until(lambda: engine.stats().running == 0)
        assert {sequence.drafting for sequence in learned} == {None}


def test_stop_strings_are_worked_out_once_and_by_the_caller(monkeypatch):
    threads = []

    def patterns(stops):
        threads.append(threading.current_thread())
        return StopPatterns(stops)

    monkeypatch.setattr("trivium.engine.sampler_factory.StopPatterns", patterns)
    with make_engine() as engine:
        answers = ask(engine, request("a", n=5, temperature=1.0, seed=1, stop=("a", "e"), max_tokens=40))
    assert {answer.reason for answer in answers} <= {"stop", "length"}
    assert "stop" in {answer.reason for answer in answers}
    assert threads == [threading.current_thread()]


def test_lost_blocks_are_found_when_idle(caplog):
    with make_engine() as engine:
        ask(engine, request("a"))
        queries = engine.stats().prefix_queries
        engine._loop._scheduler.num_drafted, engine._loop._scheduler.num_accepted = 5, 3  # that count on
        engine._loop._scheduler.blocks._free.pop()
        ask(engine, request("b"))
        wait_until(lambda: "books are wrong" in caplog.text)
        assert ask(engine, request("c"))[0].token_ids == expected()
        stats = engine.stats()
        assert (stats.prefix_queries, stats.drafted, stats.accepted) == (queries + 10, 5, 3)


def test_the_thread_has_a_stack_of_its_own_size(monkeypatch):
    """Kernels need more than a program may give its threads."""
    sizes = {}
    start = threading.Thread.start

    def noted(thread):
        sizes[thread.name] = threading.stack_size()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    usual = threading.stack_size(256 * 1024)
    try:
        with make_engine() as engine:
            assert ask(engine, request("a"))[0].token_ids == expected()
        assert threading.stack_size() == 256 * 1024
    finally:
        threading.stack_size(usual)
    assert sizes["trivium-engine"] == 8 * 1024 * 1024


def test_shutdown_aborts_what_is_left():
    with make_engine(max_num_seqs=1) as engine:
        door = Door()
        engine.native.gate.clear()
        engine.submit([request("running", **LONG)], door)
        assert engine.native.entered.wait(10)
        engine.submit([request("waiting", n=2)], door)
        stopping = threading.Thread(target=engine.shutdown)
        stopping.start()
        time.sleep(0.02)
        with pytest.raises(EngineDeadError):
            engine.submit([request("late")], door)
        engine.native.gate.set()
        stopping.join(10)
        assert not stopping.is_alive()
        assert door.wait("running")[0].reason == "abort"
        assert [answer.reason for answer in door.wait("waiting", n=2)] == ["abort", "abort"]
        assert engine.stats().used_blocks == engine.stats().running == engine.stats().waiting == 0


def test_shutdown_from_a_sink():
    with make_engine() as engine:
        door = Door()

        def stop_at_once(outputs):
            door(outputs)
            engine.shutdown()

        engine.submit([request("a", **LONG)], stop_at_once)
        assert door.wait("a")[0].reason == "abort"


def test_shutdown_frees_the_model():
    with make_engine() as engine:
        native = weakref.ref(engine.native)
        ask(engine, request("a"))
        engine.shutdown()
        engine.native = FakeModel()
        gc.collect()
        assert native() is None


def test_idle_engine_sleeps():
    with make_engine() as engine:
        ask(engine, request("a"))
        wait_until(lambda: engine._loop.inbox.idle)
        time.sleep(0.05)
        turns = engine._loop.inbox.wakeups
        cpu = time.process_time()
        time.sleep(0.2)
        assert engine._loop.inbox.wakeups == turns
        assert time.process_time() - cpu < 0.1


def engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == "trivium-engine"]


def test_dropped_engine_ends_its_thread_and_frees_its_model():
    engine = start_engine()
    (thread,) = engine_threads()
    door = Door()
    engine.submit([request("a")], door)
    door.wait("a")
    native = weakref.ref(engine.native)
    del engine
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    gc.collect()
    assert native() is None


def test_finished_requests_do_not_keep_their_sink():
    with make_engine() as engine:
        door = Door()
        engine.submit([request("a", n=2), request("b", logprobs=1)], door)
        door.wait("a", n=2)
        door.wait("b")
        dropped = weakref.ref(door)
        wait_until(lambda: engine._loop.inbox.idle)
        del door
        time.sleep(0.02)  # the thread goes back to sleep
        assert dropped() is None


def test_engine_in_flight_does_not_keep_the_process():
    code = """
from engine_parts import Door, request, start_engine
engine = start_engine()
door = Door()
engine.submit([request("a", max_tokens=200)], door)
door.wait_for_tokens("a", 1)
print("started", flush=True)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_told_to_load_its_own():
    with make_engine() as engine:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                engine.submit([request("a")], Door())
            except EngineDeadError as error:
                code = 0 if "load the model after the fork" in str(error) else 2
                engine.stats()
                engine.shutdown()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert ask(engine, request("a"))[0].token_ids == expected()


def test_random_use_from_many_threads():
    """Whatever threads submit and abort, each sample ends exactly once, with a beginning of what it gets alone."""
    doors = [Door() for _ in range(4)]
    sent = [[] for _ in doors]
    with make_engine(num_blocks=12, max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32, max_waiting=20) as engine:

        def use(worker):
            chance = random.Random(worker)
            for i in range(40):
                prompt = "ab"[chance.randrange(2)] * chance.randrange(1, 50)
                one = request(
                    f"{worker}-{i}",
                    prompt,
                    n=chance.choice([1, 1, 3]),
                    max_tokens=chance.randrange(1, 40),
                    priority=chance.randrange(3),
                    timeout=chance.choice([None, None, 0.001]),
                )
                try:
                    engine.submit([one], doors[worker])
                    sent[worker].append(one)
                except QueueFullError:
                    time.sleep(0.005)
                if sent[worker] and chance.random() < 0.4:
                    engine.abort([chance.choice(sent[worker]).request_id])
                if chance.random() < 0.1:
                    engine.reset_prefix_cache()

        threads = [threading.Thread(target=use, args=(worker,)) for worker in range(len(doors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        count = 0
        for door, requests in zip(doors, sent, strict=True):
            for one in requests:
                for answer in door.wait(one.request_id, n=one.n):
                    count += 1
                    assert answer.reason in ("length", "abort", "timeout")
                    wanted = continuation(one.prompt_token_ids, one.sampling.max_tokens)
                    assert answer.token_ids == wanted[: len(answer.token_ids)]
                    assert answer.reason != "length" or answer.token_ids == wanted
        stats = engine.stats()
        assert sum(stats.finished.values()) == count
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)


def test_nothing_is_logged_as_a_fault_in_normal_use(caplog):
    caplog.set_level(logging.DEBUG, "trivium")
    with make_engine(num_blocks=8, max_model_len=64) as engine:
        ask(engine, *(request(str(i), "x" * 20, n=2, max_tokens=30) for i in range(5)))
    assert not caplog.records
