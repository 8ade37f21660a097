"""The envelope, and the unit `sys`."""

from __future__ import annotations

import json
import logging

import pytest
from engine_parts import make_engine
from unit_parts import serving_unit


@pytest.fixture(scope="module")
def door():
    with make_engine() as engine, serving_unit(engine) as door:
        yield door


@pytest.fixture
def client(door):
    with door.client() as client:
        yield client


def reply(request_id, work_id, code=0, message="", *, object="None", data="None"):
    error = {"code": code, "message": message}
    return {"data": data, "error": error, "object": object, "request_id": request_id, "work_id": work_id}


def without_time(received):
    return {key: value for key, value in received.items() if key != "created"}


def test_ping_and_version(client):
    assert without_time(client.ask("sys_ping", "sys", "ping")) == reply("sys_ping", "sys")
    assert without_time(client.ask("v", "sys", "version", object="None", data="None")) == reply(
        "v", "sys", object="sys.utf-8", data="v1.6"
    )
    assert without_time(client.ask("e", "", "ping")) == reply("e", "sys")
    assert without_time(client.ask("e", "sys.1", "ping")) == reply("e", "sys.1")


@pytest.mark.parametrize(
    "message",
    [
        b"{}",
        b'{"request_id":1,"work_id":"sys","action":"ping"}',
        b'{"request_id":"1","work_id":null,"action":"ping"}',
        b'{"request_id":"1","work_id":"sys"}',
        b'{"request_id":"1","action":"ping"}',
        b'{"request_id":"1","work_id":"sys","action":{}}',
        b'{"request_id":"1","work_id":"sys","action":"ping"',
        b'{"request_id":"1" "work_id":"sys","action":"ping"}',
        b'{"request_id":"' + b"x" * 300 + b'","work_id":"sys","action":"ping"}',
    ],
)
def test_what_is_no_message(client, message):
    client.send_bytes(message)
    if not message.endswith(b"}"):
        client.send_bytes(b",}")
    assert without_time(client.receive()) == reply("0", "sys", -2, "json format error")
    assert client.ask()["error"]["code"] == 0


def test_a_closing_brace_too_many(client):
    client.send_bytes(b"}}}")
    assert without_time(client.receive()) == reply("0", "sys", -1, "reace reset")
    assert client.ask()["error"]["code"] == 0


def test_messages_need_no_delimiter_and_may_be_cut_anywhere(client):
    ping = b'{"request_id":"1","work_id":"sys","action":"ping"}'
    client.send_bytes(ping + ping[:20])
    assert client.receive()["error"]["code"] == 0
    client.send_bytes(ping[20:] + b"\r\n" + json.dumps(json.loads(ping), indent=4).encode() + b"\n")
    assert [client.receive()["error"]["code"] for _ in range(2)] == [0, 0]
    client.assert_silent()


@pytest.mark.parametrize("action", ["bashexec", "push", "pull", "upgrade", "update", "rmmode", "unit_call"])
def test_what_would_open_the_machine_is_refused_and_logged(client, caplog, action):
    with caplog.at_level(logging.WARNING, "trivium.unit"):
        received = client.ask("1", "sys", action, object="sys.utf-8", data="ls")
    assert without_time(received) == reply("1", "sys", -3, "action match false")
    assert f"sys.{action}" in caplog.text


@pytest.mark.parametrize("action", ["list", "status", "cpuload", "", "uartsetup", "setup"])
def test_unknown_actions(client, action):
    assert without_time(client.ask("1", "sys", action)) == reply("1", "sys", -3, "action match false")


def test_inference_of_nothing(client):
    for work_id in ("sys", "llm", "llm.77", "kws.1000", "nothing"):
        received = client.ask("e", work_id, "inference", object="llm.utf-8", data="hi")
        assert without_time(received) == reply("e", work_id, -4, "inference data push false")


@pytest.mark.parametrize("work_id", ["vad.1000", "vlm", "nothing.1"])
def test_units_that_are_not_here(client, work_id):
    assert without_time(client.ask("1", work_id, "setup", data={})) == reply("1", work_id, -9, "unit call false")


def test_the_log_says_what_to_do_about_an_absent_unit_once(client, caplog):
    with caplog.at_level(logging.WARNING, "trivium.unit"):
        client.ask("1", "cosy_voice", "setup", data={})
        client.ask("1", "cosy_voice", "setup", data={})
    assert caplog.text.count("trivium[voice]") == 1


def test_lists_and_facts(client):
    assert without_time(client.ask("1", "sys", "lstask")) == reply("1", "sys", -10, "Not available at the moment.")
    memory = client.ask("1", "sys", "cmminfo")
    assert memory["object"] == "sys.cmminfo"
    assert memory["data"].keys() == {"total", "used", "remain"}
    assert memory["data"]["total"] == memory["data"]["used"] + memory["data"]["remain"] > 0
    hardware = client.ask("1", "sys", "hwinfo")
    assert hardware["object"] == "sys.hwinfo"
    assert hardware["data"].keys() == {"temperature", "cpu_loadavg", "mem", "eth_info"}
    assert 0 <= hardware["data"]["cpu_loadavg"] <= 100
    assert 0 < hardware["data"]["mem"] < 100
    assert all(network.keys() == {"name", "ip", "speed"} for network in hardware["data"]["eth_info"])


def test_models_are_listed_as_descriptors(client):
    models = client.ask("1", "sys", "lsmode")
    assert models["object"] == "sys.lsmode"
    listed = [(model["mode"], model["type"]) for model in models["data"]]
    assert [model for model in listed if model[1] == "llm"] == [("fake", "llm"), ("smollm2", "llm")]
    assert models["data"][1]["mode_param"]["cmm_size"] == 98_362_432 // 1024
    assert models["data"][0]["input_type"] == ["llm.utf-8", "llm.utf-8.stream"]


@pytest.mark.parametrize(("action", "message"), [("reset", "llm server restarting ..."), ("reboot", "rebooting ...")])
def test_reset_ends_all_tasks_and_counts_from_the_first_number(door, client, action, message):
    client.ask("r", "sys", "reset")
    assert client.set_up() == "llm.1000"
    assert client.set_up() == "llm.1001"
    with door.client() as other:
        assert without_time(other.ask("r", "sys", action)) == reply("r", "sys", 0, message)
        other.assert_silent()  # "reset over" is for serial lines only
    assert client.ask("1", "llm", "taskinfo")["data"] == []
    assert client.ask("1", "llm.1000", "pause")["error"]["code"] == -6
    assert client.set_up() == "llm.1000"
    client.ask("1", "llm.1000", "exit")


def test_many_commands_in_one_packet_are_answered_in_order(client):
    client.send_bytes(b"".join(b'{"request_id":"%d","work_id":"sys","action":"ping"}' % i for i in range(2000)))
    assert [client.receive()["request_id"] for _ in range(2000)] == [str(i) for i in range(2000)]
