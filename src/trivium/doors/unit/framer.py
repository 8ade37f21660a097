"""Bytes to messages. The protocol has no delimiters: a message ends where its braces are balanced."""

from __future__ import annotations

import base64
import re
from enum import Enum
from typing import Any

import orjson

__all__ = ["MAX_MESSAGE_BYTES", "Fault", "Framer", "Received"]

MAX_MESSAGE_BYTES = 4 * 2**20
MAX_DEPTH = 64
QUIET_SECONDS = 30.0  # after which an unfinished message is given up
RESET_SECONDS = 2.0  # after which a closing brace at the end of an unfinished string is a wish to start anew

_RAW_HEADER = re.compile(rb'\{"RAW":[0-9]')
_STRUCTURE = re.compile(rb'["{}]')
_IN_STRING = re.compile(rb'["\\\x00-\x1f]')
_NON_SPACE = re.compile(rb"[^ \t\r\n]")
_BRACE = re.compile(rb"[{}]")

_LOOK_BACK = 64  # white space that is passed over to see what stands before a quote or a brace

# Bytes that may be scanned again because what came before them was broken: per byte received, and at most at once.
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
    BROKEN = "in an object that can be no JSON any more: braces count wherever they are"
    RAW = "in the binary bytes that a header has announced"
    TOO_LONG = "in binary bytes that are not kept"


class Framer:
    """Takes bytes as they come and gives out whole messages, however they were cut.

    A brace in a string does not count. What cannot become a message is told once as `Fault.JSON` and ends where its braces are
    balanced, or where a new message seems to begin in it; so, after enough closing braces, whatever was before, the next
    message is read. A closing brace too many is `Fault.BRACE`, once for each call. The bytes behind a `{"RAW":n}` header
    become, in base64, the `data` of the header.
    """

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()  # begins with the unfinished object, or with binary bytes
        self._position = 0  # scanned up to here
        self._depth = 0
        self._state = _State.OUTSIDE
        self._header: dict[str, Any] = {}
        self._missing = 0  # binary bytes
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
        self._buffer += data
        self._credit = min(_RESCAN, self._credit + _RESCAN_PER_BYTE * len(data))
        self._scan()
        if len(self._buffer) > self._max_bytes:
            self._give_up()
        return self._take()

    def expire(self, quiet: float) -> list[Received]:
        """The faults that come of nothing having been received for `quiet` seconds."""
        if quiet >= QUIET_SECONDS and not self.idle:
            self._give_up()
        elif quiet >= RESET_SECONDS and self._state is _State.STRING and self._buffer.endswith(b"}"):
            self._break()
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
            buffer.clear()
            return False
        del buffer[:start]
        self._position = self._depth = 1
        self._state = _State.INSIDE
        return True

    def _inside(self) -> bool:
        found = _STRUCTURE.search(self._buffer, self._position)
        if found is None:
            self._position = len(self._buffer)
            return False
        self._position = found.end()
        token = found[0]
        if token == b'"':
            self._state = _State.STRING
            return self._follows(found.start(), b"{[:,") or self._break()
        if token == b"{":
            self._depth += 1
            return (self._depth <= MAX_DEPTH and self._follows(found.start(), b"[:,")) or self._break()
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
                self._position = position
                return self._break()
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
        return found[0] in b":,}]" or self._break()

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
        self._header["data"] = base64.b64encode(self._buffer[: self._missing]).decode("ascii")
        self._found.append(self._header)
        self._header = {}
        return self._restart(self._missing)

    def _too_long(self) -> bool:
        dropped = min(self._missing, len(self._buffer))
        self._missing -= dropped
        if self._missing:
            self._buffer.clear()
            return False
        return self._restart(dropped)

    # What the states come to

    def _follows(self, position: int, allowed: bytes) -> bool:
        """Whether the last byte before `position` that is no white space is an allowed one."""
        before = self._buffer[max(0, position - _LOOK_BACK) : position].rstrip(b" \t\r\n")
        return not before or before[-1] in allowed

    def _restart(self, position: int) -> bool:
        """Be between messages, at this position of the buffer."""
        del self._buffer[:position]
        self._state = _State.OUTSIDE
        return True

    def _complete(self) -> None:
        text = bytes(self._buffer[: self._position])
        self._restart(self._position)
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

    def _break(self) -> bool:
        """The object can be no JSON any more: see anew where it ends."""
        self._tell_fault()
        self._credit -= self._position
        if self._credit < 0:
            return self._restart(self._position)
        self._position = self._depth = 1
        self._state = _State.BROKEN
        return True

    def _give_up(self) -> None:
        if self._state not in (_State.BROKEN, _State.TOO_LONG):
            self._tell_fault()
        self._header = {}
        self._restart(len(self._buffer))
