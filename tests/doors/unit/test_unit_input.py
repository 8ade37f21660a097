"""What inferences bring: chunks, base64, bytes."""

from __future__ import annotations

import base64
import contextlib
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_parts import FakeConnection

from trivium.doors.unit import input as unit_input
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.framer import MAX_MESSAGE_BYTES
from trivium.doors.unit.input import QUIET_SECONDS, InputReader


class Sender:
    """A client that sends chunks to one task."""

    def __init__(self, reader):
        self.reader = reader
        self.connection = FakeConnection()

    def chunk(self, delta, index, finish=False, request_id="1", kind="llm.utf-8.stream"):
        data = {"delta": delta, "index": index, "finish": finish}
        return self.reader.read_text(Command(self.connection, request_id, "llm.1000", "inference", kind, data))

    def fails(self, *args, **fields):
        with pytest.raises(UnitError) as caught:
            self.chunk(*args, **fields)
        return caught.value.code


@pytest.fixture
def reader():
    return InputReader()


@pytest.fixture
def sender(reader):
    return Sender(reader)


def is_empty(reader):
    return not reader._streams and reader.num_kept == 0


# Streams


def test_streams_of_one_connection_do_not_mix(reader, sender):
    assert sender.chunk("a", 0, request_id="a") is None
    assert sender.chunk("x", 1, request_id="a") is None
    assert sender.chunk("b", 0, True, request_id="b") == "b"  # not "bx"
    assert sender.chunk("!", 2, True, request_id="a") == "ax!"
    assert is_empty(reader)


def test_a_client_that_begins_anew_gets_none_of_what_it_had_begun(reader, sender):
    for index in range(4):
        sender.chunk("old", index)
    assert sender.chunk("new", 0) is None
    assert sender.chunk("!", 1, True) == "new!"
    assert is_empty(reader)


def test_the_chunk_that_ends_a_stream_is_its_last(reader, sender):
    sender.chunk("a", 0)
    sender.chunk("c", 2)
    assert sender.fails("b", 1, True) is Code.STREAM
    assert is_empty(reader)


def test_a_stream_that_does_not_go_on_is_refused_once_and_takes_no_memory(reader, sender):
    other = Sender(reader)
    sender.chunk("x" * 1000, 0, request_id="late")
    other.chunk("x", 0)
    now = time.monotonic()
    assert reader.expire(now + QUIET_SECONDS - 1) == []
    reader._streams[other.connection, "1"].heard += 30  # it went on
    (late,) = reader.expire(now + QUIET_SECONDS + 1)
    assert (late.connection, late.request_id, late.work_id, late.data) == (sender.connection, "late", "llm.1000", "None")
    assert reader.num_kept < 3000
    assert reader.expire(now + QUIET_SECONDS + 2) == []
    assert other.chunk("y", 1, True) == "xy"
    # What still comes of the one that was refused is no stream of its own.
    assert sender.chunk("y", 1, request_id="late") is None
    assert sender.chunk("z", 2, True, request_id="late") is None
    assert is_empty(reader)


def test_what_is_left_of_refused_streams_goes_in_time(reader, sender):
    sender.chunk("x", 0)
    now = time.monotonic()
    assert len(reader.expire(now + QUIET_SECONDS + 1)) == 1
    assert reader.expire(now + 3 * QUIET_SECONDS) == []
    assert is_empty(reader)


def test_a_refused_id_may_be_used_again(reader, sender):
    sender.chunk("x", 0)
    reader.expire(time.monotonic() + QUIET_SECONDS + 1)
    assert sender.chunk("y", 0) is None
    assert sender.chunk("z", 1, True) == "yz"
    assert is_empty(reader)


def test_what_clients_that_have_gone_had_begun_goes_with_them(reader, sender):
    sender.chunk("x" * 1000, 0)
    sender.connection.closed = True
    assert reader.expire(time.monotonic()) == []
    assert is_empty(reader)


def test_a_stream_that_is_too_long_has_one_error(reader, sender):
    piece = "x" * 2**18
    for index in range(16):
        assert sender.chunk(piece, index) is None
    assert sender.fails("x", 16) is Code.STREAM
    assert reader.num_kept < 2000
    assert sender.chunk(piece, 17) is None
    assert sender.chunk("", 18, True) is None
    assert is_empty(reader)
    for index in range(16):
        sender.chunk(piece, index)
    assert sender.fails("x", 16, True) is Code.STREAM  # the last chunk is
    assert is_empty(reader)


def test_a_stream_has_a_largest_number_of_chunks(reader, sender, monkeypatch):
    monkeypatch.setattr(unit_input, "_MAX_CHUNKS", 3)
    for index in range(3):
        sender.chunk("x", index)
    sender.chunk("y", 1)  # again
    assert sender.fails("x", 3, True) is Code.STREAM
    assert is_empty(reader)


def test_all_streams_of_a_task_have_a_largest_size(reader):
    senders = [Sender(reader) for _ in range(10)]
    refused = []
    for i, sender in enumerate(senders):
        for index in range(2):
            try:
                sender.chunk("x" * 2**20, index, request_id=str(i))
            except UnitError as error:
                refused.append((i, index, error.code))
    assert refused == [(7, 1, Code.BUSY), (8, 1, Code.BUSY), (9, 1, Code.BUSY)]
    assert reader.num_kept <= unit_input.MAX_KEPT_BYTES
    assert senders[0].chunk("", 2, True, request_id="0") == "x" * 2**21
    assert senders[9].chunk("y", 0, True, request_id="9") == "y"
    for i in range(200):  # many that are small
        senders[9].chunk("", 0, request_id=f"n{i}")
    for sender in senders:
        sender.connection.closed = True
    reader.expire(time.monotonic())
    assert is_empty(reader)


def test_streams_without_text_count_too(reader, sender, monkeypatch):
    monkeypatch.setattr(unit_input, "MAX_KEPT_BYTES", 20_000)
    codes = []
    for i in range(100):
        try:
            sender.chunk("", 0, request_id=str(i))
        except UnitError as error:
            codes.append(error.code)
    assert set(codes) == {Code.BUSY}
    assert len(reader._streams) < 21
    assert reader.num_kept <= 20_000


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 3), st.booleans(), st.sampled_from(["", "x", "é" * 9, 5]))),
    st.booleans(),
)
def test_memory_is_counted_right_whatever_comes(chunks, late):
    reader = InputReader()
    sender = Sender(reader)
    for request_id, index, finish, delta in chunks:
        with contextlib.suppress(UnitError):
            sender.chunk(delta, index, finish, request_id)
    assert reader.num_kept == sum(stream.num_bytes for stream in reader._streams.values())
    if late:
        reader.expire(time.monotonic() + QUIET_SECONDS + 1)
        reader.expire(time.monotonic() + 3 * QUIET_SECONDS)
        assert is_empty(reader)


# Base64


def read_bytes(text):
    return InputReader().read_bytes(Command(FakeConnection(), "1", "asr.1000", "inference", "asr.base64", text))


@given(st.binary(max_size=100), st.integers(0, 3), st.integers(1, 20))
def test_base64_with_white_space_and_without_padding(data, num_padding, width):
    text = base64.b64encode(data).decode()
    bare = text.rstrip("=")
    assert read_bytes(text) == read_bytes(bare) == read_bytes(f"\n {text}\r\n") == data
    for padded in (text, bare, bare + "=" * min(num_padding, len(text) - len(bare))):
        for space in ("\n", "\r\n", " ", "\t"):
            assert read_bytes(space.join(padded[i : i + width] for i in range(0, len(padded), width))) == data


@settings(max_examples=300)
@given(st.text(alphabet="QUJDxyz+/= \n!é_-", max_size=14))
def test_base64_is_what_the_standard_library_takes(text):
    packed = "".join(text.split())
    try:
        expected = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except ValueError:
        expected = None
    bare = packed.rstrip("=")
    if expected is None and len(bare) % 4 != 1 and not set(bare) - set("QUJDxyz+/") and len(packed) - len(bare) <= 2:
        expected = base64.b64decode(bare + "==")  # here it is stricter: with padding that is not needed
    if expected is None:
        with pytest.raises(UnitError, match="Base64"):
            read_bytes(text)
    else:
        assert read_bytes(text) == expected


def test_large_base64():
    data = random.Random(1).randbytes(3 * 2**20)
    text = base64.b64encode(data).decode()
    assert read_bytes(text) == data
    assert read_bytes(base64.encodebytes(data).decode()) == data
    for place in (0, 1, len(text) // 2, len(text) - 1):
        for wrong in ("!", "=", "é", "\0"):
            if not (wrong == "=" and place == len(text) - 1):
                with pytest.raises(UnitError):
                    read_bytes(text[:place] + wrong + text[place + 1 :])
    assert len(text) <= MAX_MESSAGE_BYTES


# Bytes


@pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256))])
def test_bytes_stand_for_their_base64(reader, data):
    def command(kind):
        return Command(FakeConnection(), "1", "asr.1000", "inference", kind, data)

    assert reader.read_bytes(command("asr.base64")) == data
    assert reader.read_text(command("llm.utf-8")) == base64.b64encode(data).decode()
    if data.isascii():
        assert reader.read_text(command("llm.base64")) == data.decode()
    else:
        with pytest.raises(UnitError, match="not UTF-8"):
            reader.read_text(command("llm.base64"))
    with pytest.raises(UnitError, match="index"):
        reader.read_bytes(command("asr.base64.stream"))
