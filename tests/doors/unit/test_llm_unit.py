"""The unit `llm` on a model that writes letters."""

from __future__ import annotations

import base64
import json

import pytest
from engine_parts import make_engine
from fake_native import FakeModel, continuation
from unit_parts import blocks, serving_unit, wait_until

GREEDY = {"temperature": 0, "max_token_len": 30}


@pytest.fixture(scope="module")
def engine():
    with make_engine(max_num_seqs=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def door(engine):
    with serving_unit(engine, unit_queue=3, unit_max_tasks=4, unit_models=["device-name=fake", "other-ctx=fake"]) as door:
        yield door


@pytest.fixture
def client(door):
    with door.client() as client:
        client.ask("reset", "sys", "reset")
        yield client


def letters(prompt, count=30):
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


def error_of(reply):
    return reply["error"]["code"], reply["error"]["message"]


# Setup


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model must be a string, got 5"),
        ({"model": "nothing"}, "There is no model 'nothing'"),
        ({"model": "/etc/passwd"}, "There is no model"),
        ({"model": "hf:owner/name"}, "There is no model"),
        ({"model": "x" * 300}, "model must be at most"),
        ({"response_format": None}, "response_format"),
        ({"enoutput": None}, "enoutput is missing"),
        ({"enoutput": 1}, "enoutput must be true or false, got 1"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x" * 70000}, "prompt must have at most"),
        ({"input": 5}, "input"),
        ({"input": ["llm", 5]}, "input"),
        ({"max_token_len": 0}, "max_token_len must be an integer from 1"),
        ({"max_token_len": 1.5}, "max_token_len"),
        ({"max_token_len": "127"}, "max_token_len"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1.1, "penalty_window": 0}, "penalty_window"),
        ({"enable_top_k_sampling": "yes"}, "enable_top_k_sampling"),
        ({"context": 1}, "context"),
    ],
)
def test_a_setup_that_is_wrong(client, data, words):
    fields = {"model": "fake", "response_format": "llm.utf-8.stream", "input": "llm.utf-8", "enoutput": True, "prompt": ""}
    reply = client.ask("s", "llm", "setup", object="llm.setup", data=fields | data)
    assert (reply["work_id"], reply["request_id"], reply["error"]["code"]) == ("llm", "s", -5)
    assert reply["error"]["message"].startswith("Model loading failed.")
    assert words in reply["error"]["message"]


@pytest.mark.parametrize("data", ["None", 5, None, [1], "{}x"])
def test_a_setup_without_an_object(client, data):
    reply = client.ask("s", "llm", "setup", object="llm.setup", data=data)
    assert (reply["work_id"], *error_of(reply)) == ("llm", -2, "json format error.")


def test_numbers_are_used_up_by_setups_that_fail(client):
    assert client.set_up() == "llm.1000"
    client.ask("s", "llm", "setup", data={})
    assert client.set_up() == "llm.1002"


def test_no_more_tasks_than_the_option_says(client):
    tasks = [client.set_up() for _ in range(4)]
    reply = client.ask("s", "llm", "setup", data={"model": "fake"})
    assert (reply["work_id"], *error_of(reply)) == ("llm", -21, "task full")
    client.ask("e", tasks[0], "exit")
    client.set_up()


def test_unknown_fields_are_ignored(client):
    client.set_up(enkws=True, tokenizer_type=1, precompute_len=0, b_bos=None)


def test_commands_behind_a_setup_wait_for_it(client):
    data = {"model": "fake", "response_format": "f", "input": [], "enoutput": True, "prompt": ""}
    setup = {"request_id": "1", "work_id": "llm", "action": "setup", "data": data}
    client.send_bytes(json.dumps(setup).encode() * 2)
    client.send("2", "llm", "taskinfo")
    assert [client.receive()["work_id"] for _ in range(2)] == ["llm.1000", "llm.1001"]
    assert sorted(client.receive()["data"]) == ["llm.1000", "llm.1001"]


# Inference


@pytest.mark.parametrize("form", ["llm.utf-8", "llm.utf-8.stream"])
def test_the_engine_knows_who_reads_along(client, engine, monkeypatch, form):
    submitted, submit = [], engine.submit
    monkeypatch.setattr(engine, "submit", lambda requests, sink: (submitted.extend(requests), submit(requests, sink)))
    client.infer(client.set_up(response_format=form, **GREEDY), "a")
    client.receive()
    assert [request.streamed for request in submitted] == [form.endswith(".stream")]


def test_a_stream_has_three_tokens_a_frame_and_nothing_is_lost_at_the_cut(client):
    task = client.set_up(**GREEDY, prompt="system")
    client.infer(task, "hello", "b")
    text, frames = client.answer()
    assert text == letters("system\nhello")
    assert [len(frame["data"]["delta"]) for frame in frames] == [3] * 10 + [0]
    assert (frames[0]["request_id"], frames[0]["object"], frames[0]["work_id"]) == ("b", "llm.utf-8.stream", task)
    client.infer(task, "again", "c")
    assert client.answer()[0] == letters("system\nagain")  # without memory of what was before


@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_the_last_tokens_come_even_if_they_do_not_fill_a_frame(client, limit):
    task = client.set_up(**GREEDY | {"max_token_len": limit})
    client.infer(task, "hello")
    assert client.answer()[0] == letters("hello", limit)


def test_the_limit_is_clipped_to_the_context(client):
    task = client.set_up(temperature=0, max_token_len=100_000)
    client.infer(task, "hello")
    assert len(client.answer()[0]) == 256 - 5


def test_plain_output_is_one_frame(client):
    task = client.set_up(**GREEDY, response_format="llm.utf-8")
    for request_id in ("a", "b"):
        client.infer(task, "hello", request_id)  # a stream of chunks makes no stream of frames
        reply = client.receive()
        assert (reply["object"], reply["request_id"], reply["work_id"]) == ("llm.utf-8", request_id, task)
        assert reply["data"] == letters("hello")
    client.assert_silent()


def test_all_forms_of_input(client):
    task = client.set_up(**GREEDY)
    text = 'He said "hé{}" 😀\\'
    packed = base64.b64encode(text.encode()).decode()

    def ask(kind, data):
        client.send("i", task, "inference", object=kind, data=data)

    ask("llm.utf-8", text)
    answers = [client.answer()[0]]
    ask("llm.utf-8.base64", packed)
    answers.append(client.answer()[0])
    for index in (2, 0, 1):
        ask("llm.utf-8.stream", {"delta": text[index * 3 : index * 3 + 3], "index": index, "finish": False})
    ask("llm.utf-8.stream", {"delta": text[9:], "index": 3, "finish": True})
    answers.append(client.answer()[0])
    ask("llm.base64.stream", {"delta": packed[:7], "index": 0, "finish": False})
    ask("llm.base64.stream", {"delta": packed[7:], "index": 1, "finish": True})
    answers.append(client.answer()[0])
    header = {"RAW": len(text.encode()), "request_id": "i", "work_id": task, "action": "inference", "object": "llm.base64"}
    client.send_bytes(json.dumps(header, separators=(",", ":")).encode() + text.encode())
    answers.append(client.answer()[0])
    assert answers == [letters(text)] * 5


@pytest.mark.parametrize(
    ("kind", "data", "code", "message"),
    [
        ("llm.utf-8.stream", "hi", -25, "Stream data index error."),
        ("llm.utf-8.stream", {"delta": "hi", "finish": True}, -25, "Stream data index error."),
        ("llm.utf-8.stream", {"delta": "hi", "index": 1, "finish": True}, -25, "Stream data index error."),
        ("llm.utf-8.stream", {"delta": 5, "index": 0, "finish": True}, -25, "Stream data index error."),
        ("llm.utf-8.stream", {"delta": "hi", "index": True, "finish": True}, -25, "Stream data index error."),
        ("llm.utf-8.stream", {"delta": "hi", "index": 0, "finish": 1}, -25, "Stream data index error."),
        ("llm.base64", "%%%%", -23, "Base64 decoding error."),
        ("llm.base64", base64.b64encode(b"\xff").decode(), -23, "Base64 decoding error."),
        ("llm.utf-8", 5, -2, "json format error."),
        ("llm.utf-8", None, -2, "json format error."),
        ("llm.utf-8", {"delta": "hi", "index": 0, "finish": True}, -2, "json format error."),
        ("llm.utf-8", "x" * 300, -11, "Model run failed."),
    ],
)
@pytest.mark.parametrize("form", ["llm.utf-8.stream", "llm.utf-8"])
def test_an_inference_that_is_wrong_ends_with_one_frame(client, form, kind, data, code, message):
    task = client.set_up(**GREEDY, response_format=form)
    reply = client.ask("bad", task, "inference", object=kind, data=data)
    assert (reply["request_id"], reply["work_id"], reply["object"]) == ("bad", task, form)
    assert reply["error"]["code"] == code
    assert reply["error"]["message"].startswith(message)
    assert reply["data"] == ({"delta": "", "finish": True, "index": 0} if "stream" in form else "")
    client.send("good", task, "inference", object="llm.utf-8", data="hello")
    answer = client.answer()[0] if "stream" in form else client.receive()["data"]
    assert answer == letters("hello")
    client.assert_silent()


def test_a_gap_forgets_the_chunks(client):
    task = client.set_up(**GREEDY)
    for index, finish in ((0, False), (2, True)):
        client.send("i", task, "inference", object="llm.stream", data={"delta": "x", "index": index, "finish": finish})
    assert client.receive()["error"]["code"] == -25
    client.infer(task, "hello")
    assert client.answer()[0] == letters("hello")


def test_chunks_of_two_tasks_and_two_connections_do_not_mix(door, client):
    first, second = client.set_up(**GREEDY), client.set_up(**GREEDY)
    with door.client() as other:
        for text, index in (("ab", 0), ("cd", 1)):
            for one, task in ((client, first), (client, second), (other, first)):
                sign = f"{task[-1]}{'o' if one is other else 'c'}"
                one.send(
                    sign, task, "inference", object="s.stream", data={"delta": text + sign, "index": index, "finish": False}
                )
        for one, task, sign in ((client, second, "1c"), (other, first, "0o"), (client, first, "0c")):
            one.send(sign, task, "inference", object="s.stream", data={"delta": "", "index": 2, "finish": True})
            text, frames = one.answer()
            assert text == letters(f"ab{sign}cd{sign}")
            assert frames[0]["request_id"] == sign


def test_an_empty_text_is_no_question(client):
    task = client.set_up(**GREEDY)
    client.infer(task, "")
    client.assert_silent()


def test_without_its_input_a_task_takes_nothing_from_users(client):
    task = client.set_up(input=["asr.1000"])
    assert error_of(client.ask("i", task, "inference", object="llm.utf-8", data="x")) == (-4, "inference data push false")
    task = client.set_up(input=["llm.utf-8.stream"])
    assert client.ask("u", task, "unlink", data="llm.utf-8")["error"]["code"] == 0
    assert client.ask("i", task, "inference", object="llm.utf-8", data="x")["error"]["code"] == -4


def test_enoutput_false_tells_errors_only(client):
    task = client.set_up(**GREEDY, enoutput=False)
    client.infer(task, "hello")
    client.assert_silent(0.3)
    client.send("bad", task, "inference", object="s.stream", data="x")
    assert client.receive()["error"]["code"] == -25


def test_flags_and_values_of_sampling(client, engine):
    def used(**data):
        task = client.set_up(**data, max_token_len=1)
        before = len(samplers)
        client.infer(task, "hello")
        client.answer()
        client.ask("e", task, "exit")
        return samplers[before]

    samplers = []
    factory = engine._loop._samplers
    make = factory.make

    def watched(arguments, prompt, seed):
        if prompt:
            samplers.append(arguments)
        return make(arguments, prompt, seed)

    factory.make = watched
    try:
        plain = used()
        assert (plain["temperature"], plain["top_k"], plain["top_p"], plain["repetition_penalty"]) == (0.7, 10, 1.0, 1.0)
        on = used(
            enable_temperature=True, enable_top_p_sampling=True, enable_top_k_sampling=True, enable_repetition_penalty=True
        )
        assert (on["temperature"], on["top_k"], on["top_p"]) == (0.7, 10, 0.7)
        assert (on["repetition_penalty"], on["penalty_window"]) == (1.2, 50)
        given = used(temperature=0.3, top_k=4, top_p=0.5, repetition_penalty=1.5, penalty_window=9)
        assert (given["temperature"], given["top_k"], given["top_p"]) == (0.3, 4, 0.5)
        assert (given["repetition_penalty"], given["penalty_window"]) == (1.5, 9)
        off = used(enable_temperature=False, temperature=0.3, enable_top_k_sampling=False, top_k=4, repetition_penalty=1)
        assert (off["temperature"], off["top_k"], off["top_p"]) == (1.0, 0, 1.0)
        assert used(enable_top_p_sampling=False, enable_top_k_sampling=False)["temperature"] == 0.0
        assert used(enable_repetition_penalty=False, repetition_penalty=2)["repetition_penalty"] == 1.0
    finally:
        factory.make = make


# Several at once


def test_answers_to_one_task_come_one_after_the_other_each_under_its_own_id(client, engine):
    task = client.set_up(**GREEDY)
    engine.native.gate.clear()
    for request_id in "abcd":
        client.infer(task, request_id, request_id)
    client.infer(task, "e", "e")  # one runs and three wait: this one is too many
    refused = client.receive()
    engine.native.gate.set()
    assert refused["request_id"] == "e"
    assert error_of(refused) == (-13, "Already working. 3 inferences wait already.")
    assert refused["data"] == {"delta": "", "finish": True, "index": 0}
    for request_id in "abcd":
        text, frames = client.answer()
        assert text == letters(request_id)
        assert frames[0]["request_id"] == request_id
    client.assert_silent()


def test_tasks_answer_at_the_same_time(client, engine):
    tasks = [client.set_up(**GREEDY, prompt=f"p{i}") for i in range(4)]
    engine.native.gate.clear()
    for i, task in enumerate(tasks):
        client.infer(task, "hello", f"r{i}")
    wait_until(lambda: engine.stats().running + engine.stats().waiting == 4)
    engine.native.gate.set()
    got = {f"r{i}": [] for i in range(4)}
    while not all(frames and frames[-1]["finish"] for frames in got.values()):
        reply = client.receive()
        got[reply["request_id"]].append(reply["data"])
    for i in range(4):
        frames = got[f"r{i}"]
        assert [frame["index"] for frame in frames] == list(range(len(frames)))
        assert "".join(frame["delta"] for frame in frames) == letters(f"p{i}\nhello")


# Other actions


def test_taskinfo(client):
    assert client.ask("t", "llm", "taskinfo")["data"] == []
    first = client.set_up(model="device-name", input="llm.utf-8")
    second = client.set_up(input=["llm.utf-8.stream", "asr.1500"])
    reply = client.ask("t", "llm", "taskinfo")
    assert (reply["object"], sorted(reply["data"])) == ("llm.tasklist", [first, second])
    reply = client.ask("t", first, "taskinfo")
    assert (reply["object"], reply["work_id"]) == ("llm.taskinfo", first)
    assert reply["data"] == {
        "enoutput": True,
        "inputs": ["llm.utf-8"],
        "inputs_": ["llm.utf-8"],
        "model": "device-name",
        "response_format": "llm.utf-8.stream",
    }
    data = client.ask("t", second, "taskinfo")["data"]
    assert data["inputs"] == data["inputs_"] == ["llm.utf-8.stream", "asr.1500"]
    assert data["warnings"] == ["asr.1500 did not exist at setup and is not linked"]


@pytest.mark.parametrize("action", ["link", "unlink", "pause", "work", "exit", "taskinfo"])
def test_tasks_that_do_not_exist(client, action):
    reply = client.ask("6", "llm.1234", action, data="kws.1000")
    assert (reply["request_id"], reply["work_id"], reply["object"], reply["data"]) == ("6", "llm.1234", "None", "None")
    assert error_of(reply) == (-6, "Unit Does Not Exist")


def test_unknown_actions(client):
    task = client.set_up()
    for work_id in (task, "llm", "llm.1"):
        assert error_of(client.ask("1", work_id, "dance")) == (-3, "action match false")


@pytest.mark.parametrize("data", ["asr.1", "kws.9999", "llm.1000", "llm.utf-8", "hello", "", None, 5, {}])
def test_links_to_nothing(client, data):
    task = client.set_up()
    assert error_of(client.ask("3", task, "link", object="work_id", data=data)) == (-20, "link false")
    assert client.ask("4", task, "unlink", object="work_id", data=data)["error"]["code"] == 0


def test_work_is_always_fine(client):
    assert client.ask("6", client.set_up(), "work")["error"] == {"code": 0, "message": ""}


@pytest.mark.parametrize("action", ["pause", "exit"])
def test_pause_and_exit_end_the_running_answer_with_its_last_frame(client, engine, action):
    task = client.set_up(temperature=0, max_token_len=200)
    assert client.ask("p", task, "pause")["error"]["code"] == 0  # nothing runs: nothing happens
    engine.native.gate.clear()
    client.infer(task, "hello", "a")
    client.infer(task, "next", "b")
    wait_until(lambda: engine.stats().running + engine.stats().waiting)
    client.send("p", task, action)
    if action == "exit":
        ended = [client.receive() for _ in range(2)]
        assert [(one["request_id"], one["data"]["finish"]) for one in ended] == [("a", True), ("b", True)]
        assert error_of(client.receive()) == (0, "")
        engine.native.gate.set()
        reply = client.ask("e", task, "inference", object="llm.utf-8", data="hi")
        assert (reply["work_id"], *error_of(reply)) == (task, -4, "inference data push false")
        assert client.ask("e", task, "exit")["error"]["code"] == -6
    else:
        assert client.receive()["data"]["finish"]
        reply = client.receive()
        assert (reply["request_id"], *error_of(reply)) == ("p", 0, "")
        engine.native.gate.set()
        text, frames = client.answer()  # what waited goes on
        assert (text, frames[0]["request_id"]) == (letters("next", 200), "b")
    client.assert_silent()
    wait_until(lambda: blocks(engine) == (0, 0, 0))


def test_pause_in_the_middle_keeps_what_was_said(client, engine):
    task = client.set_up(temperature=0, max_token_len=240)
    client.infer(task, "hello", "a")
    first = client.receive()
    client.send("p", task, "pause")
    text, finished, paused = first["data"]["delta"], False, False
    while not (finished and paused):
        reply = client.receive()
        if reply["request_id"] == "p":
            paused = True
        else:
            assert not finished
            finished = reply["data"]["finish"]
            text += reply["data"]["delta"]
    assert letters("hello", 240).startswith(text)
    client.assert_silent()


# Dialogue


def test_context_keeps_the_dialogue_until_reset(client):
    task = client.set_up(**GREEDY | {"max_token_len": 5}, context=True)
    client.infer(task, "one")
    assert client.answer()[0] == letters("one", 5)
    client.infer(task, "two")
    assert client.answer()[0] == letters(f"one\n{letters('one', 5)}\ntwo", 5)
    client.infer(task, "reset", "r")
    text, frames = client.answer()
    assert (text, len(frames), frames[0]["request_id"]) == ("", 1, "r")
    client.infer(task, "two")
    assert client.answer()[0] == letters("two", 5)


def test_plain_dialogues_say_that_they_are_reset_and_names_may_ask_for_them(client):
    task = client.set_up(**GREEDY | {"max_token_len": 5}, model="other-ctx", response_format="llm.utf-8")
    for text, answer in (
        ("one", letters("one", 5)),
        ("two", letters(f"one\n{letters('one', 5)}\ntwo", 5)),
        ("reset", "Context has been reset."),
        ("two", letters("two", 5)),
    ):
        assert client.ask("i", task, "inference", object="llm.utf-8", data=text)["data"] == answer


def test_without_context_reset_is_a_text_like_any_other(client):
    task = client.set_up(**GREEDY)
    client.infer(task, "reset")
    assert client.answer()[0] == letters("reset")


def test_a_dialogue_that_outgrows_the_context_forgets_its_beginning(client):
    task = client.set_up(temperature=0, max_token_len=20, context=True)
    for i in range(20):
        client.infer(task, f"number {i} {'x' * 20}")
        assert len(client.answer()[0]) == 20
    client.infer(task, "y" * 300)
    assert client.answer()[1][-1]["error"]["code"] == -11
    client.infer(task, "still there")
    assert client.answer()[1][-1]["error"]["code"] == 0


def test_a_text_that_can_never_fit_does_not_wait(client, engine):
    task = client.set_up(**GREEDY)
    engine.native.gate.clear()
    client.infer(task, "hello", "a")
    assert engine.native.entered.wait(20)
    client.infer(task, "y" * 100_000, "b")  # is refused while "a" has not ended
    reply = client.receive()
    assert (reply["request_id"], reply["error"]["code"], reply["data"]["finish"]) == ("b", -11, True)
    assert "100000 characters" in reply["error"]["message"]
    engine.native.gate.set()
    assert client.answer()[0] == letters("hello")


# Faults


def test_a_fault_of_the_model_ends_the_answer_once(client, engine):
    task = client.set_up(**GREEDY)
    engine.native.gate.clear()
    client.infer(task, "hello", "f")
    wait_until(lambda: engine.stats().running + engine.stats().waiting)
    engine.native.fault = RuntimeError("out of order")
    engine.native.gate.set()
    text, frames = client.answer()
    assert frames[-1]["error"]["code"] == -11
    assert frames[-1]["error"]["message"].startswith("Model run failed.")
    assert "out of order" in frames[-1]["error"]["message"]
    client.infer(task, "hello", "g")
    text, frames = client.answer()
    assert (text, frames[-1]["error"]["code"]) == (letters("hello"), 0)
    client.assert_silent()


def test_a_full_engine_refuses_and_an_ended_one_says_so():
    with make_engine(FakeModel(64, 16), max_waiting=1) as engine, serving_unit(engine) as door, door.client() as client:
        tasks = [client.set_up(**GREEDY) for _ in range(3)]
        engine.native.gate.clear()
        client.infer(tasks[0], "hello", "a")
        assert engine.native.entered.wait(20)
        client.infer(tasks[1], "hello", "b")
        wait_until(lambda: engine.stats().waiting == 1)
        client.infer(tasks[2], "hello", "c")
        reply = client.receive()
        assert (reply["request_id"], reply["error"]["code"], reply["data"]["finish"]) == ("c", -13, True)
        engine.native.gate.set()
        finished = 0
        while finished < 2:
            finished += client.receive()["data"]["finish"]
        engine.shutdown()
        client.infer(tasks[0], "hello", "d")
        reply = client.receive()
        assert (reply["request_id"], reply["error"]["code"], reply["data"]["finish"]) == ("d", -11, True)
