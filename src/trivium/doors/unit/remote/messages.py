"""The bytes of the bus: packed pairs, commands for units, and what units say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from trivium.doors.unit.command import Command
from trivium.doors.unit.frames import NONE, reply, to_json

__all__ = ["Frame", "pack", "read_frame", "unpack", "write_command"]

MAX_FIRST = 127  # bytes of a pair's first half: some readers take the byte that counts them for signed


def pack(first: str, second: bytes) -> bytes:
    """Two texts as one: the length of the first in one byte, then both. Raises ValueError if the first is too long."""
    head = first.encode()
    if len(head) > MAX_FIRST:
        raise ValueError(f"{first!r} is longer than {MAX_FIRST} bytes")
    return bytes([len(head)]) + head + second


def unpack(pair: bytes) -> tuple[str, bytes]:
    """The halves of a pair. Raises ValueError for what is none."""
    end = 1 + pair[0] if pair else 1
    if len(pair) < end:
        raise ValueError("a pair is shorter than it says")
    return pair[1:end].decode(), pair[end:]


def write_command(command: Command, reply_url: str | None = None) -> bytes:
    """A command as a unit gets it; `reply_url` is where an inference is to be answered.

    The data stands last, because the original takes the first field of a name that it finds, at whatever depth.
    """
    fields: list[tuple[str, Any]] = [] if reply_url is None else [("zmq_com", reply_url)]
    fields += [("request_id", command.request_id), ("work_id", command.work_id), ("action", command.action)]
    fields += [(name, value) for name, value in (("object", command.object), ("data", command.data)) if value != NONE]
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), to_json(value)) for name, value in fields)


@dataclass(slots=True)
class Frame:
    """What a unit says, to a client or on the output of a task. Raises nothing on missing fields: they are filled in."""

    request_id: str
    work_id: str
    object: str
    data: Any
    code: int
    message: str

    def write(self) -> bytes:
        """As clients get it. Raises ValueError for what is nested too deeply."""
        try:
            return reply(
                self.request_id, self.work_id, object=self.object, data=self.data, code=self.code, message=self.message
            )
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    @property
    def index(self) -> int | None:
        """Of a part of a stream."""
        index = self.data.get("index") if isinstance(self.data, dict) else None
        return index if type(index) is int else None

    @property
    def finishes(self) -> bool:
        """Whether it says of itself that it is the last of a stream."""
        return isinstance(self.data, dict) and self.data.get("finish") is True

    @property
    def ends(self) -> bool:
        """Whether nothing more of the same answer comes."""
        return self.index is None or self.finishes or self.code != 0

    @property
    def is_reply(self) -> bool:
        """Whether it has the form of what actions are answered with; inferences are answered otherwise, but for errors."""
        return self.object == self.data == NONE or self.object.endswith((".taskinfo", ".tasklist"))


def read_frame(text: bytes) -> Frame:
    """Raises ValueError for what is no frame."""
    told = orjson.loads(text)
    if not isinstance(told, dict):
        raise ValueError("not an object")
    error = told.get("error", {})
    if not isinstance(error, dict):
        raise ValueError("error is not an object")
    frame = Frame(
        told.get("request_id", ""),
        told.get("work_id", ""),
        told.get("object", NONE),
        told.get("data", NONE),
        error.get("code", 0),
        error.get("message", ""),
    )
    texts = (frame.request_id, frame.work_id, frame.object, frame.message)
    if not all(isinstance(text, str) for text in texts) or type(frame.code) is not int:
        raise ValueError("a field is of the wrong kind")
    return frame
