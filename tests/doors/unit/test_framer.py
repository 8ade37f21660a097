"""Bytes to messages."""

from __future__ import annotations

import json
import tracemalloc

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.doors.unit.framer import MAX_DEPTH, MAX_MESSAGE_BYTES, Fault, Framer

PING = {"request_id": "1", "work_id": "sys", "action": "ping"}


def packed(message) -> bytes:
    return orjson.dumps(message)


def fed(*parts: bytes, framer: Framer | None = None):
    framer = framer or Framer()
    return [received for part in parts for received in framer.feed(part)]


def byte_by_byte(data: bytes, framer: Framer | None = None):
    return fed(*(data[i : i + 1] for i in range(len(data))), framer=framer)


texts = st.text(alphabet=st.one_of(st.sampled_from('{}[]",:\\ \n'), st.characters(codec="utf-8")), max_size=20)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**31), 2**31), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
messages = st.dictionaries(texts, values, max_size=4).filter(lambda message: "RAW" not in message)
between = st.sampled_from([b"", b"\n", b"\r\n", b"   ", b"\x00noise\xff", b"]\\\"'"])


@st.composite
def streams(draw):
    """Messages as bytes, compact or pretty-printed, and the messages."""
    parts, expected = [], []
    for message in draw(st.lists(messages, max_size=6)):
        written = json.dumps(message, indent=draw(st.sampled_from([None, 2])), ensure_ascii=draw(st.booleans()))
        parts += [draw(between), written.encode()]
        expected.append(message)
    return b"".join([*parts, draw(between)]), expected


@settings(max_examples=150, deadline=None)
@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_any_split_of_any_stream_gives_the_same_messages(stream, cuts):
    data, expected = stream
    places = sorted({min(cut, len(data)) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    framer = Framer()
    assert fed(*parts, framer=framer) == expected
    assert framer.idle
    assert framer.num_pending == 0
    assert byte_by_byte(data) == expected


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet='{}[]",:\\a1 \n', max_size=60).map(str.encode)))
def test_after_closing_braces_the_next_message_is_read_whatever_was_before(noise):
    data = noise + b"}" * (noise.count(b"{") + 2) + packed(PING)
    for received in (fed(data), byte_by_byte(data)):
        assert received[-1] == PING
        assert Fault.BRACE in received or Fault.JSON in received


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]",:\\a1 \n', max_size=40), st.integers(1, 30))
def test_how_broken_bytes_are_cut_changes_nothing_but_the_number_of_brace_faults(noise, size):
    data = noise.encode() + packed(PING) + b"}}" + packed(PING)

    def essential(received):
        return [one for one in received if one is not Fault.BRACE]

    parts = [data[i : i + size] for i in range(0, len(data), size)]
    assert essential(fed(data)) == essential(fed(*parts))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"}", [Fault.BRACE]),
        (b"}}}}", [Fault.BRACE]),
        (b"}" + packed(PING), [Fault.BRACE, PING]),
        (b"{,}" + packed(PING), [Fault.JSON, PING]),
        (b'{"a":tru "x"}' + packed(PING), [Fault.JSON, PING]),
        (b'{"a":"\xff"}' + packed(PING), [Fault.JSON, PING]),
        (b'{"a":"\\ud83d"}', [Fault.JSON]),
        (b'{"a":"}{"}', [{"a": "}{"}]),
        (b'{"a":"\\"}"}', [{"a": '"}'}]),
        (b'{"a":"\\\\"}' + packed(PING), [{"a": "\\"}, PING]),
        # A device that was reset in the middle of a message begins anew.
        (b'{"request_id":"0","wo' + packed(PING), [Fault.JSON, PING]),
        (b'{"request_id":"0","wo\r\n' + packed(PING), [Fault.JSON, PING]),
        (b'{"request_id":' + packed(PING) + packed(PING), [Fault.JSON, PING]),
        (b'{"abc}}}}' + packed(PING), [Fault.JSON, Fault.BRACE, PING]),
    ],
)
def test_faults(data, expected):
    assert fed(data) == expected


def test_binary_bytes_become_the_data_of_their_header():
    payload = bytes(range(256)) + b'}{"'
    header = b'{"RAW":%d,"request_id":"1","work_id":"llm.1000","action":"inference","object":"cv.jpeg.base64"}' % len(payload)
    data = header + payload + packed(PING) + header + payload  # nothing is lost between them
    for received in (fed(data), byte_by_byte(data)):
        assert [one["request_id"] for one in received] == ["1", "1", "1"]
        assert received[0]["data"] == received[2]["data"] == payload


def test_raw_lengths():
    assert fed(b'{"RAW":0,"a":1}' + packed(PING)) == [{"RAW": 0, "a": 1, "data": b""}, PING]
    assert fed(b'{"RAW":1.5}' + packed(PING)) == [Fault.JSON, PING]
    assert fed(b'{ "RAW": 2, "a": 1}{}' + packed(PING)) == [{"RAW": 2, "a": 1, "data": b"{}"}, PING]
    assert fed(b'{"a":1,"RAW":5}') == [{"a": 1, "RAW": 5}]  # not at the beginning: a field like any other
    framer = Framer(max_bytes=100)
    assert fed(b'{"RAW":101}' + b"{" * 101 + packed(PING), framer=framer) == [Fault.JSON, PING]


def test_messages_have_a_largest_size():
    framer = Framer(max_bytes=1000)
    assert fed(packed({"a": "x" * 900}), framer=framer) == [{"a": "x" * 900}]
    assert fed(b'{"a":"' + b"x" * 1000, framer=framer) == [Fault.JSON]
    assert framer.num_pending < 100
    assert fed(b"x" * 5000 + b'"}' + packed(PING), framer=framer) == [PING]


EVIL = {"request_id": "2", "work_id": "sys", "action": "reset"}


@pytest.mark.parametrize(
    "inside",
    [
        b'"%s"' % (b"x" * 2000 + orjson.dumps(orjson.dumps(EVIL).decode())[1:-1]),
        orjson.dumps("x" * 2000 + '"}}' + orjson.dumps(EVIL).decode() + "x" * 2000),
        orjson.dumps("x" * 2000 + "\\" * 7 + '"{[}]' * 50 + "\\"),
        orjson.dumps(["x" * 2000, EVIL, "}", EVIL]),
        orjson.dumps([EVIL] * 40),
        b'"' + b"x" * 2000 + b'",\n"b": ' + orjson.dumps(EVIL),
        b'"' + b"x" * 2000 + b'\n,"b":' + orjson.dumps([EVIL, EVIL]),  # and no JSON
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_nothing_in_an_object_that_is_too_large_is_a_message(inside, size):
    data = b'{"a":' + inside + b"}" + packed(PING)
    assert len(inside) > 1000
    framer = Framer(max_bytes=1000)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert fed(*pieces, framer=framer) == [Fault.JSON, PING]
    assert framer.idle
    assert framer.num_pending == 0


def test_nothing_in_a_broken_object_is_a_message_however_far_in_it_breaks():
    data = b'{"a":"' + b"x" * 400_000 + b'\n","b":{"c":' + packed(EVIL) + b"}}" + packed(PING)
    assert fed(data) == [Fault.JSON, PING]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(messages, max_size=4).map(lambda inner: {"a": inner}), max_size=4),
    st.integers(70, 120),
    st.lists(st.integers(0, 2000), max_size=12),
)
def test_any_split_finds_the_same_messages_too_large(sent, limit, cuts):
    written = [json.dumps(message, ensure_ascii=False).encode() for message in sent]
    expected = [message if len(text) <= limit else Fault.JSON for message, text in zip(sent, written, strict=True)]
    data = b"".join(written)
    places = sorted({min(cut, len(data)) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    framer = Framer(max_bytes=limit)
    assert fed(*parts, framer=framer) == expected
    assert framer.idle
    assert byte_by_byte(data, Framer(max_bytes=limit)) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]",:\\a1 \n', max_size=200), st.integers(1, 30), st.integers(0, 40))
def test_whatever_was_too_large_the_next_messages_are_read(noise, size, limit):
    data = noise.encode() + b"}" * (noise.count("{") + 2) + b"\n" + packed({"a": 1}) * 2

    def essential(received):
        return [one for one in received if one is not Fault.BRACE]

    parts = [data[i : i + size] for i in range(0, len(data), size)]
    received = essential(fed(*parts, framer=Framer(max_bytes=limit + 70)))
    assert received == essential(fed(data, framer=Framer(max_bytes=limit + 70)))
    framer = Framer(max_bytes=limit + 70)
    fed(data, framer=framer)
    framer.expire(30.0)
    assert fed(packed({"a": 1}), framer=framer) == [{"a": 1}]


@pytest.mark.parametrize("start", [b'{"a":"', b'{"a":', b'{"a":[' + b'{"a":"b"},' * 50, b"{" * 30, b"{,", b'{"a":"\\'])
def test_an_object_that_is_too_large_and_never_ends_is_given_up_in_time(start):
    framer = Framer(max_bytes=1000)
    assert fed(start + b"x" * 2000, framer=framer) == [Fault.JSON]
    assert fed(*[b"x" * 500] * 100, framer=framer) == []
    assert framer.num_pending < 100
    assert framer.expire(29.0) == []
    assert not framer.idle
    assert framer.expire(30.0) == []  # it has been told
    assert framer.idle
    assert framer.feed(packed(PING)) == [PING]


def test_closing_braces_end_a_string_that_is_too_large():
    framer = Framer(max_bytes=1000)
    assert fed(b'{"a":{"b":"' + b"x" * 2000 + b"}" * 20, framer=framer) == [Fault.JSON]
    assert framer.expire(1.0) == []
    assert framer.expire(2.0) == [Fault.BRACE]
    assert framer.feed(packed(PING)) == [PING]


def test_a_message_after_one_that_was_too_large_and_unfinished_is_read():
    for cut in (b'{"a":{"b":"' + b"x" * 2000, b'{"a":{"b":' + b"1" * 2000 + b"}", b'{"a":{"b":"' + b"x" * 2000 + b'",'):
        framer = Framer(max_bytes=1000)
        received = fed(cut, b"\n", packed(PING), packed(PING), framer=framer)
        assert received[0] is Fault.JSON
        assert received[-1] == PING


def test_an_object_of_ten_megabytes_takes_no_memory():
    framer = Framer()
    piece = b'{"a":{"b":"' + b"x" * 200_000 + b'"},"c":"'
    fed(piece, framer=framer)
    tracemalloc.start()
    for _ in range(50):
        framer.feed(b"x" * 200_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * MAX_MESSAGE_BYTES
    assert framer.num_pending < 100
    assert framer.feed(b'"}' + packed(PING)) == [PING]


def test_nesting_has_an_end():
    deep = b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1)
    assert fed(deep) == [orjson.loads(deep)]
    too_deep = b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH
    assert fed(too_deep + packed(PING)) == [Fault.JSON, PING]


def test_unfinished_messages_are_given_up_in_time():
    framer = Framer()
    assert framer.feed(b'{"a":') == []
    assert framer.expire(29.0) == []
    assert framer.expire(30.0) == [Fault.JSON]
    assert framer.idle
    assert framer.feed(packed(PING)) == [PING]
    assert framer.expire(1000.0) == []


def test_closing_braces_in_an_unfinished_string_ask_for_a_new_beginning():
    framer = Framer()
    assert framer.feed(b'{"abc}}}') == []
    assert framer.expire(1.0) == []
    assert framer.expire(2.0) == [Fault.JSON, Fault.BRACE]
    assert framer.feed(packed(PING)) == [PING]


@pytest.mark.parametrize(
    "piece", [b"{", b'{"', b'{":}",', b'{"}', b'{"],', b"}", b'{"a":', b'{"a}{', b'"', b"\\", b'{":}","' + b"x" * 500]
)
def test_hostile_bytes_cost_linear_time(piece):
    data = piece * (2**19 // len(piece))  # in quadratic time this would never end
    framer = Framer()
    for i in range(0, len(data), 65536):
        framer.feed(data[i : i + 65536])
    assert framer.feed(b"}" * (MAX_DEPTH + 2) + b"\n" + packed(PING))
