"""The two files of `trivium run-batch`: requests, one JSON object a line, and results, in the order they are ready."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from uuid import uuid4

from trivium.doors.http.openai.request import CHAT, COMPLETIONS
from trivium.errors import ConfigError

__all__ = ["BatchLine", "Results", "count_lines", "read_lines"]

_RESULT_START = b'{"id": "batch_req_'  # how every line of the results begins


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of the requests: line `number` of the file, from 1. `fault` says why it is no request, if it is none."""

    number: int
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None


def count_lines(path: Path) -> int:
    """Lines that are not blank."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The requests, the faulty ones, too; the second of two lines with one custom_id is faulty."""
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            line = _read_line(number, text)
            if line.custom_id in seen:
                fault = line.fault or f"custom_id {line.custom_id!r} was there before"
                line = BatchLine(number, line.custom_id, fault=fault)
            elif line.custom_id is not None:
                seen.add(line.custom_id)
            yield line


def _read_line(number: int, text: bytes) -> BatchLine:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BatchLine(number, None, fault=f"not JSON: {error}")
    if not isinstance(values, dict):
        return BatchLine(number, None, fault=f"must be an object, got {values!r:.80}")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return BatchLine(number, None, fault=f"custom_id must be a non-empty string, got {custom_id!r:.80}")
    for name, fits, allowed in (
        ("method", lambda value: value == "POST", "POST"),
        ("url", lambda value: value in (CHAT, COMPLETIONS), f"{CHAT} or {COMPLETIONS}"),
        ("body", lambda value: isinstance(value, dict), "an object"),
    ):
        if not fits(values.get(name)):
            return BatchLine(number, custom_id, fault=f"{name} must be {allowed}, got {values.get(name)!r:.80}")
    return BatchLine(number, custom_id, values["url"], values["body"])


class Results:
    """The file of results. A context manager; each result is one whole line, written and flushed at once.

    A file that is there is continued unless it is to be overwritten: `has` tells what it holds, and a last line that was cut
    short by a crash is removed. Failures that another try may mend (429 and 5xx) do not count as held. A device or a pipe
    holds nothing. Raises `ConfigError` for a file that holds anything but results.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        self._done: set[str] = set()
        self._faulty: set[int] = set()
        if not overwrite and path.is_file():
            self._resume()
        try:
            self._file: BinaryIO = path.open("wb" if overwrite else "ab")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error

    def __enter__(self) -> Results:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def has(self, line: BatchLine) -> bool:
        """Whether the file holds this line's result."""
        return line.number in self._faulty if line.fault is not None else line.custom_id in self._done

    def answer(self, line: BatchLine, request_id: str, body: dict[str, Any]) -> None:
        """Write the response to a request."""
        self._write(line, {"status_code": 200, "request_id": request_id, "body": body}, None)

    def failure(self, line: BatchLine, request_id: str, status: int, body: dict[str, Any]) -> None:
        """Write that a request failed; `body` is an OpenAI error."""
        error = {"code": str(status), "message": body["error"]["message"]}
        self._write(line, {"status_code": status, "request_id": request_id, "body": body}, error)

    def fault(self, line: BatchLine) -> None:
        """Write that a line is no request; the line's number lets a later run know it again."""
        self._write(line, None, {"code": "invalid_line", "message": f"line {line.number}: {line.fault}", "line": line.number})

    def _write(self, line: BatchLine, response: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        record = {"id": f"batch_req_{uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": error}
        # A lone surrogate, which UTF-8 cannot express, becomes the escape that JSON has for it.
        self._file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()

    def _resume(self) -> None:
        whole = 0
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n") and (line.startswith(_RESULT_START) or _RESULT_START.startswith(line)):
                        break
                    self._note(number, line)
                    whole += len(line)
            os.truncate(self._path, whole)
        except OSError as error:
            raise ConfigError(f"cannot go on with {self._path}: {error.strerror}") from error

    def _note(self, number: int, line: bytes) -> None:
        """Remember what a line of the results answers."""
        try:
            record = json.loads(line)
            error, custom_id = record["error"], record["custom_id"]
            if error is not None and "line" in error:
                self._faulty.add(error["line"])
            elif not _is_passing(record["response"]["status_code"]):
                self._done.add(custom_id)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self._path}: line {number} is no result of run-batch; --overwrite replaces the file"
            ) from error


def _is_passing(status: int) -> bool:
    """Whether a request that failed with this HTTP status may succeed when it is sent again."""
    return status == 429 or status >= 500
