"""Bytes to messages. The protocol has no delimiters: a message ends where its braces are balanced."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import orjson

__all__ = ["MAX_MESSAGE_BYTES", "Fault", "Framer", "Received"]

MAX_MESSAGE_BYTES = 4 * 2**20
MAX_DEPTH = 64
QUIET_SECONDS = 30.0  # after which an unfinished message is given up
RESET_SECONDS = 2.0  # after which a closing brace at the end of an unfinished string is a wish to start anew

_RAW_HEADER = re.compile(rb'\{\s*"RAW"\s*:\s*[0-9]')
_STRUCTURE = re.compile(rb'["{}]')
_IN_STRING = re.compile(rb'["\\\x00-\x1f]')
_NON_SPACE = re.compile(rb"[^ \t\r\n]")
_BRACE = re.compile(rb"[{}]")

_LOOK_BACK = 64  # white space that is passed over to see what stands before a quote or a brace

# Bytes that may be scanned again because what came before them was broken: per byte of broken objects, and at most at once.
_RESCAN_PER_BYTE, _RESCAN = 2, 2**18

_MAX_FAULTS = 16  # that are told for one call: noise must not be answered with more than it is


class Fault(Enum):
    """What was received instead of a message."""

    BRACE = "a closing brace too many"
    JSON = "an object that is not JSON, or too large, or has never ended"


Received = dict[str, Any] | Fault


class _State(Enum):
    OUTSIDE = "between messages; all but braces is skipped"
    INSIDE = "in an object, outside its strings"
    STRING = "in a string of an object"
    AFTER_STRING = "behind a string, where only :,}] may follow"
    BROKEN = "in an object that can be no JSON any more: braces count wherever they are, and no bytes are kept"
    RAW = "in the binary bytes that a header has announced"
    TOO_LONG = "in binary bytes that are not kept"


class Framer:
    """Takes bytes as they come and gives out whole messages, however they were cut.

    A brace in a string does not count. What cannot become a message is told once as `Fault.JSON` and ends where its braces are
    balanced, or where a new message seems to begin in it; so, after enough closing braces, whatever was before, the next
    message is read. An object that is too large is read to its end without being kept, so that nothing in it is taken for a
    message. A closing brace too many is `Fault.BRACE`, once for each call. The bytes behind a `{"RAW":n}` header become, as
    `bytes`, the `data` of the header.
    """

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """`max_bytes` of a message: more than are looked back."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()  # begins with the unfinished object, or with binary bytes
        self._position = 0  # scanned up to here
        self._depth = 0
        self._state = _State.OUTSIDE
        self._too_large = False  # the unfinished object: it has been told, and its beginning is not kept
        self._header: dict[str, Any] = {}
        self._missing = 0  # binary bytes
        self._num_dropped = 0  # bytes that were before those in the buffer
        self._broken_at = 0  # the place, of all bytes, up to which credit was given
        self._credit = _RESCAN
        self._found: list[Received] = []  # by the present call
        self._num_faults = 0
        self._told_brace = False
        self._steps = {
            _State.OUTSIDE: self._outside,
            _State.INSIDE: self._inside,
            _State.STRING: self._string,
            _State.AFTER_STRING: self._after_string,
            _State.BROKEN: self._broken,
            _State.RAW: self._raw,
            _State.TOO_LONG: self._too_long,
        }

    @property
    def num_pending(self) -> int:
        """Bytes kept of a message that has not ended."""
        return len(self._buffer)

    @property
    def idle(self) -> bool:
        """Whether no message has begun."""
        return self._state is _State.OUTSIDE

    def feed(self, data: bytes) -> list[Received]:
        """Messages and faults that end in these bytes."""
        rest = memoryview(data)
        while rest:
            room = self._max_bytes + 1 - len(self._buffer)  # so that cuts do not decide where an object is too large
            self._buffer += rest[:room]
            rest = rest[room:]
            self._scan()
            self._shorten()
        return self._take()

    def expire(self, quiet: float) -> list[Received]:
        """The faults that come of nothing having been received for `quiet` seconds."""
        if quiet >= QUIET_SECONDS and not self.idle:
            self._give_up()
        elif quiet >= RESET_SECONDS and self._state is _State.STRING and self._buffer.endswith(b"}"):
            self._start_anew()
            self._scan()
        return self._take()

    def _take(self) -> list[Received]:
        found, self._found = self._found, []
        self._num_faults, self._told_brace = 0, False
        return found

    def _scan(self) -> None:
        while self._steps[self._state]():
            pass

    # One method per state: it scans, and returns whether to go on, or False if more bytes are needed.

    def _outside(self) -> bool:
        buffer = self._buffer
        start = buffer.find(b"{")
        if not self._told_brace and buffer.find(b"}", 0, start if start >= 0 else len(buffer)) >= 0:
            self._told_brace = True
            self._found.append(Fault.BRACE)
        if start < 0:
            self._drop(len(buffer))
            return False
        self._drop(start)
        self._position = self._depth = 1
        self._state = _State.INSIDE
        return True

    def _inside(self) -> bool:
        found = _STRUCTURE.search(self._buffer, self._position)
        if found is None:
            self._position = len(self._buffer)
            return False
        start, token = found.start(), found[0]
        self._position = found.end()
        if token == b'"':
            if not self._follows(start, b"{[:,"):
                return self._break(start)
            self._state = _State.STRING
            return True
        if token == b"{":
            if self._depth == MAX_DEPTH or not self._follows(start, b"[:,"):
                return self._break(start)
            self._depth += 1
            return True
        self._depth -= 1
        if not self._depth:
            self._complete()
        return True

    def _string(self) -> bool:
        buffer, position = self._buffer, self._position
        while (found := _IN_STRING.search(buffer, position)) is not None:
            position = found.end()
            if found[0] == b'"':
                self._position, self._state = position, _State.AFTER_STRING
                return True
            if found[0] != b"\\":
                return self._break(found.start())
            if position == len(buffer):  # what is escaped has not come yet
                self._position = found.start()
                return False
            position += 1
        self._position = len(buffer)
        return False

    def _after_string(self) -> bool:
        found = _NON_SPACE.search(self._buffer, self._position)
        if found is None:
            self._position = len(self._buffer)
            return False
        self._position = found.start()
        self._state = _State.INSIDE
        return found[0] in b":,}]" or self._break(found.start())

    def _broken(self) -> bool:
        buffer = self._buffer
        while (found := _BRACE.search(buffer, self._position)) is not None:
            start = found.start()
            self._position = found.end()
            if buffer[start - 1] == ord("\\"):
                continue
            if found[0] == b"{":
                if not self._follows(start, b"[:,{"):
                    return self._restart(start)
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return self._restart(found.end())
        self._position = len(buffer)
        return False

    def _raw(self) -> bool:
        if len(self._buffer) < self._missing:
            return False
        with memoryview(self._buffer) as received:
            self._header["data"] = bytes(received[: self._missing])
        self._found.append(self._header)
        self._header = {}
        return self._restart(self._missing)

    def _too_long(self) -> bool:
        dropped = min(self._missing, len(self._buffer))
        self._missing -= dropped
        if self._missing:
            self._drop(dropped)
            return False
        return self._restart(dropped)

    # What the states come to

    def _follows(self, position: int, allowed: bytes) -> bool:
        """Whether the last byte before `position` that is no white space is an allowed one."""
        before = self._buffer[max(0, position - _LOOK_BACK) : position].rstrip(b" \t\r\n")
        return not before or before[-1] in allowed

    def _drop(self, count: int) -> None:
        """Keep the first bytes of the buffer no longer."""
        del self._buffer[:count]
        self._num_dropped += count

    def _shorten(self) -> None:
        """Keep no more of an object than is needed, if it is too large or broken."""
        if len(self._buffer) > self._max_bytes and self._state is not _State.BROKEN and not self._too_large:
            self._too_large = True
            self._tell_fault()
        if self._too_large or self._state is _State.BROKEN:
            count = max(0, self._position - _LOOK_BACK)
            self._drop(count)
            self._position -= count

    def _restart(self, position: int) -> bool:
        """Be between messages, at this position of the buffer."""
        self._drop(position)
        self._state = _State.OUTSIDE
        self._too_large = False
        return True

    def _complete(self) -> None:
        text, told = bytes(self._buffer[: self._position]), self._too_large
        self._restart(self._position)
        if told:
            return
        if len(text) > self._max_bytes:
            self._tell_fault()
            return
        try:
            message = orjson.loads(text)
        except ValueError:
            self._tell_fault()
            return
        if _RAW_HEADER.match(text):
            self._begin_raw(message)
        else:
            self._found.append(message)

    def _tell_fault(self) -> None:
        self._num_faults += 1
        if self._num_faults <= _MAX_FAULTS:
            self._found.append(Fault.JSON)

    def _begin_raw(self, header: dict[str, Any]) -> None:
        length = header["RAW"]
        if type(length) is not int:
            self._tell_fault()
            return
        self._header, self._missing = header, length
        self._state = _State.RAW
        if length > self._max_bytes:
            self._tell_fault()
            self._header, self._state = {}, _State.TOO_LONG

    def _break(self, position: int) -> bool:
        """What is at `position` makes the object no JSON: see where it ends, from its beginning on if that is possible."""
        if not self._too_large:
            self._tell_fault()
        if self._may_rescan(position):
            position = self._depth = 1
        self._position = position
        self._state = _State.BROKEN
        return True

    def _may_rescan(self, count: int) -> bool:
        """Whether the first `count` bytes of the object may be scanned again, so that all of it takes linear time."""
        if self._too_large:
            return False
        place = self._num_dropped + count
        self._credit = min(_RESCAN, self._credit + _RESCAN_PER_BYTE * max(0, place - self._broken_at))
        self._broken_at = max(place, self._broken_at)
        if count > self._credit:
            return False
        self._credit -= count
        return True

    def _start_anew(self) -> None:
        """Closing braces at the end of a string that does not go on."""
        last = len(self._buffer) - 1
        self._break(last)
        if self._position == last:
            self._restart(last)

    def _give_up(self) -> None:
        if not self._too_large and self._state not in (_State.BROKEN, _State.TOO_LONG):
            self._tell_fault()
        self._header = {}
        self._restart(len(self._buffer))
