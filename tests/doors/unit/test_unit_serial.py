"""A client on a serial line; a pseudo-terminal stands for the cable."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import threading
import time
import tty

import pytest
from engine_parts import make_engine
from fake_native import continuation
from unit_parts import Client, serving_unit, wait_until

from trivium.doors.unit import serial_line
from trivium.doors.unit.line_settings import LineSettings
from trivium.errors import ConfigError


class SerialClient(Client):
    """The device's end of the line."""

    def __init__(self):
        self.master, self.slave = os.openpty()
        tty.setraw(self.master)
        self.device = os.ttyname(self.slave)
        self.buffer = b""

    def close(self):
        os.close(self.master)
        os.close(self.slave)

    def send_bytes(self, data):
        os.write(self.master, data)

    def line(self):
        while b"\n" not in self.buffer:
            assert select.select([self.master], [], [], 30)[0], f"nothing has come; {self.buffer!r} was left"
            self.buffer += os.read(self.master, 4096)
        line, _, self.buffer = self.buffer.partition(b"\n")
        assert line.isascii()
        return line

    def read_until(self, text, server_line):
        """Once the server's line takes nothing more."""
        wait_until(lambda: server_line.closed)
        while text not in self.buffer and select.select([self.master], [], [], 10)[0]:
            self.buffer += os.read(self.master, 4096)


def fill(door, line, last):
    """Have more answered than the system takes for a line that is not read, up to a frame with the text `last`."""
    server_line = door.server._sys.serial_lines[0]
    # A line that took nothing a moment ago may take 4 KB more: the system passes bytes on to the reader's end in its own time.
    while door.call(lambda: len(server_line._unsent)) < 8192:
        line.send("p")
    line.send("last")
    wait_until(lambda: door.call(lambda: last in server_line._unsent))


def letters(prompt, count):
    return "".join(map(chr, continuation(list(prompt.encode()), count)))


@pytest.fixture(scope="module")
def engine():
    with make_engine() as engine:
        yield engine


@pytest.fixture
def line():
    with SerialClient() as line:
        yield line


@pytest.fixture
def door(engine, line):
    with serving_unit(engine, unit_serial=[f"{line.device}:115200"]) as door:
        yield door


def test_a_conversation(door, line):
    assert door.server.addresses == [f"127.0.0.1:{door.port}", f"{line.device}:115200"]
    line.send_bytes(b"boot noise \xff\x00\r\n")
    assert line.ask("sys_ping")["request_id"] == "sys_ping"
    task = line.set_up(temperature=0, prompt="grüße")
    line.infer(task, "wie geht's? 😀", "ü😀")
    text, frames = line.answer()
    assert text == letters("grüße\nwie geht's? 😀", 127)
    assert frames[0]["request_id"] == "ü😀"
    assert line.ask("e", task, "exit")["error"]["code"] == 0


def test_frames_suit_the_speed(engine, line):
    with serving_unit(engine, unit_serial=[f"{line.device}:9600"]):
        task = line.set_up(temperature=0, max_token_len=240)
        line.infer(task, "hello")
        text, frames = line.answer()
    assert text == letters("hello", 240)
    assert len(frames) < 20  # of 3 tokens each they would be 81, more than the line carries


def test_a_device_that_was_reset_in_the_middle_of_a_message(door, line):
    line.send_bytes(b'{"request_id":"1","work_id":"llm","action":"setup","data":{"prompt":"You are')
    line.send_bytes(b'{"request_id":"2","work_id":"sys","action":"ping"}')
    assert line.receive()["error"]["code"] == -2
    assert line.receive()["request_id"] == "2"


def test_reset_says_when_it_is_over_on_the_line_only(door, line):
    task = line.set_up()
    with door.client() as client:
        assert client.ask("r", "sys", "reset")["request_id"] == "r"
        over = line.receive()
        assert (over["request_id"], over["work_id"], over["error"]) == ("0", "sys", {"code": 0, "message": "reset over"})
        client.assert_silent()
    assert line.ask("r", "sys", "reset")["error"]["message"] == "llm server restarting ..."
    assert line.receive()["request_id"] == "0"
    assert line.ask("x", task, "exit")["error"]["code"] == -6


def test_the_line_and_tcp_clients_share_tasks(door, line):
    task = line.set_up(temperature=0)
    with door.client() as client:
        client.infer(task, "hello", "c")
        assert client.answer()[0] == letters("hello", 127)
        line.infer(task, "hello", "l")
        assert line.answer()[0] == letters("hello", 127)


def test_uartsetup_changes_the_line_after_its_answer(door, line):
    data = {"baud": 9600, "data_bits": 8, "stop_bits": 1, "parity": 110}
    assert termios.tcgetattr(line.slave)[4] == termios.B115200
    assert line.ask("u", "sys", "uartsetup", data=data)["error"]["code"] == 0
    wait_until(lambda: termios.tcgetattr(line.slave)[4] == termios.B9600)
    assert line.ask()["error"]["code"] == 0
    with door.client() as client:
        assert client.ask("u", "sys", "uartsetup", data=data | {"baud": 115200})["error"]["code"] == 0
        wait_until(lambda: termios.tcgetattr(line.slave)[4] == termios.B115200)
        reply = client.ask("u", "sys", "uartsetup", data=data | {"baud": 1})
        assert reply["error"]["code"] == -2
        assert "baud must be" in reply["error"]["message"]


def test_uartsetup_waits_until_its_answer_has_left(door, line, monkeypatch):
    held = 7  # bytes that the system has not given to the device
    asked = []

    def out_waiting(port):
        asked.append(held)
        return held

    monkeypatch.setattr("serial.Serial.out_waiting", property(out_waiting))
    data = {"baud": 9600, "data_bits": 8, "stop_bits": 1, "parity": "n"}
    assert line.ask("u", "sys", "uartsetup", data=data)["error"]["code"] == 0
    line.send("later", "sys", "ping")
    wait_until(lambda: len(asked) > 3)
    assert termios.tcgetattr(line.slave)[4] == termios.B115200
    assert not select.select([line.master], [], [], 0)[0]  # what is sent now has to wait for the change
    held = 0
    assert line.receive()["request_id"] == "later"
    assert termios.tcgetattr(line.slave)[4] == termios.B9600


def test_uartsetup_gives_its_answer_the_time_that_the_line_needs(engine, line):
    data = {"baud": 115200, "data_bits": 8, "stop_bits": 1, "parity": "n"}
    with serving_unit(engine, unit_serial=[f"{line.device}:1200"]):
        sent = time.monotonic()
        line.send("u", "sys", "uartsetup", data=data)
        answer = line.line()
        wait_until(lambda: termios.tcgetattr(line.slave)[4] == termios.B115200)
        assert time.monotonic() - sent >= len(answer) * 10 / 1200


def test_the_last_of_two_uartsetups_counts(door, line):
    data = {"baud": 9600, "data_bits": 8, "stop_bits": 1, "parity": "n"}
    line.send("1", "sys", "uartsetup", data=data)
    line.send("2", "sys", "uartsetup", data=data | {"baud": 57600})
    assert [line.receive()["request_id"] for _ in range(2)] == ["1", "2"]
    assert termios.tcgetattr(line.slave)[4] == termios.B57600


def test_what_is_not_sent_yet_leaves_before_the_end(engine, line):
    with serving_unit(engine, unit_serial=[line.device]) as door:
        fill(door, line, b'"request_id":"last"')
        reader = threading.Thread(target=line.read_until, args=(b'"request_id":"last"', door.server._sys.serial_lines[0]))
        reader.start()
    reader.join(30)
    frames = [json.loads(frame) for frame in line.buffer.splitlines()]
    assert [frame["request_id"] for frame in frames] == [*("p" for _ in frames[1:]), "last"]


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_line_that_nobody_reads_does_not_hold_up_the_end(engine, line, monkeypatch, caplog, seconds):
    monkeypatch.setattr(serial_line, "_STALLED_SECONDS", 0.1 if seconds else 30.0)
    monkeypatch.setattr("trivium.doors.unit.server._FLUSH_SECONDS", 0.1)
    with serving_unit(engine, unit_serial=[line.device], stop_timeout=seconds) as door:
        fill(door, line, b'"request_id":"last"')
    assert f"{line.device} has not taken the last" in caplog.text


def test_a_line_that_goes_away_at_the_end_is_not_opened_again(engine, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(serial_line, "_REOPEN_SECONDS", 0.5)
    device = tmp_path / "line"
    first = SerialClient()
    device.symlink_to(first.device)
    with SerialClient() as second, caplog.at_level("INFO", "trivium.unit"):
        with serving_unit(engine, unit_serial=[f"{device}:9600"]) as door:
            fill(door, first, b'"request_id":"last"')

            def unplug():
                wait_until(lambda: door.server._sys.serial_lines[0].closed)
                device.unlink()
                device.symlink_to(second.device)
                first.close()

            unplugging = threading.Thread(target=unplug)
            unplugging.start()
        unplugging.join()
        assert "is gone" in caplog.text
        assert "is back" not in caplog.text


def test_a_line_that_nobody_reads_holds_nobody_up(door, line, monkeypatch):
    monkeypatch.setattr(serial_line, "_MAX_UNSENT_BYTES", 20_000)
    ask = {"request_id": "1", "work_id": "sys", "action": "lsmode"}
    for _ in range(100):
        line.send_bytes(json.dumps(ask).encode())
        with door.client() as client:
            assert client.ask()["error"]["code"] == 0
    frames = 0
    while select.select([line.master], [], [], 0.3)[0]:
        frames += os.read(line.master, 65536).count(b"\n")
    assert 0 < frames < 100
    line.buffer = b""
    assert line.ask()["error"]["code"] == 0


def test_a_line_that_is_unplugged_is_opened_again(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(serial_line, "_REOPEN_SECONDS", 0.05)
    device = tmp_path / "line"
    first = SerialClient()
    device.symlink_to(first.device)
    with serving_unit(engine, unit_serial=[str(device)]) as door:
        task = first.set_up(temperature=0)
        first.close()
        device.unlink()
        wait_until(lambda: door.call(lambda: door.server._sys.serial_lines[0].closed))
        time.sleep(0.1)
        with SerialClient() as second:
            device.symlink_to(second.device)
            wait_until(lambda: not door.call(lambda: door.server._sys.serial_lines[0].closed))
            second.infer(task, "hello")
            assert second.answer()[0] == letters("hello", 127)


def test_a_line_that_cannot_be_opened_is_a_clear_error(engine, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be opened"), serving_unit(engine, unit_serial=[str(tmp_path / "none")]):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"), serving_unit(engine, unit_serial=[str(tmp_path / "file")]):
        pass
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(ConfigError, match="pyserial"), serving_unit(engine, unit_serial=["/dev/ttyS0"]):
        pass


def test_a_system_that_refuses_the_settings_is_a_clear_error(engine, line, monkeypatch):
    def refuse(*args):
        raise termios.error(22, "Invalid argument")  # no OSError

    monkeypatch.setattr("serial.serialposix.termios.tcsetattr", refuse)
    opening = serving_unit(engine, unit_serial=[f"{line.device}:9600"])
    with pytest.raises(ConfigError, match=r"cannot be opened: .*Invalid argument"), opening:
        pass


@pytest.mark.parametrize("speed", ["299", "10000001", "00000030099999999", "9" * 5000])
def test_a_speed_that_no_line_has_is_a_clear_error(speed):
    with pytest.raises(ConfigError, match="a speed from 300 to 10000000"):
        LineSettings.of_option(f"/dev/ttyUSB0:{speed}")
