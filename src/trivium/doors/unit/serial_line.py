"""`SerialLine`: a client on a serial line."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import termios
import time
from typing import TYPE_CHECKING, Any

from trivium.doors.unit.connection import Connection
from trivium.doors.unit.frames import to_ascii
from trivium.doors.unit.line_settings import LineSettings
from trivium.doors.unit.receiver import Receiver
from trivium.errors import ConfigError

if TYPE_CHECKING:
    from trivium.doors.unit.router import Router

__all__ = ["SerialLine"]

log = logging.getLogger("trivium.unit")

_READ_BYTES = 65536
_MAX_UNSENT_BYTES = 2**20  # then frames are dropped: nobody reads, or the line is far too slow
_BUSY_SECONDS = 0.05  # what has been sent keeps the line busy for so long: gather text
_SETUP_SECONDS = 0.1  # from the answer to uartsetup to the change, at least
_MARGIN_SECONDS = 0.02  # the device may be a little behind the clock
_POLL_SECONDS = 0.02
_STALLED_SECONDS = 5.0  # at the end, a line that takes nothing for so long is given up
_REOPEN_SECONDS = 3.0


class SerialLine(Connection):
    """A serial device, opened anew when it comes back after it was unplugged. Frames are ASCII.

    A line is slower than the engine: `busy` counts what the line can have carried since it was sent, so that text is gathered
    into frames that suit the speed. The count also tells what has left: the system knows only what it holds itself.
    """

    def __init__(self, device: str, settings: LineSettings, router: Router) -> None:
        self.name = f"serial:{device}"
        self.settings = settings
        self.closed = True
        self._device = device
        self._router = router
        self._port: Any = None  # serial.Serial
        self._unsent = bytearray()
        self._free_at = 0.0  # when the line has carried what was sent, on the time.monotonic clock
        self._dropping = False
        self._next: LineSettings | None = None  # once what was sent before has left
        self._held = bytearray()  # what is sent after that
        self._changing: asyncio.TimerHandle | None = None
        self._reopening: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin. Raises `ConfigError` if pyserial is missing, or the device cannot be opened."""
        try:
            serial = importlib.import_module("serial")
        except ImportError:
            raise ConfigError("unit_serial needs pyserial; install trivium[serial]") from None
        form = self.settings
        try:
            self._port = serial.Serial(
                self._device,
                form.baud,
                bytesize=form.data_bits,
                parity=form.parity,
                stopbits=form.stop_bits,
                timeout=0,
                exclusive=True,
            )
        except (OSError, ValueError, termios.error) as error:
            raise ConfigError(f"unit_serial: {self._device} cannot be opened: {error}") from error
        self.receiver = Receiver(self, self._router)
        self.closed = False
        asyncio.get_running_loop().add_reader(self._port.fileno(), self._read)

    async def end(self, deadline: float) -> None:
        """Close, once what was sent has left, at the latest at `deadline` (on the time.monotonic clock). Takes nothing more."""
        self.closed = True
        if self._port is not None:
            asyncio.get_running_loop().remove_reader(self._port.fileno())
        left, since = 0, time.monotonic()
        while (now := time.monotonic()) < deadline:
            before, left = left, self._num_unsent()
            if not left and now > self._free_at + _MARGIN_SECONDS:
                break
            if left != before:
                since = now
            elif left and now - since > _STALLED_SECONDS:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if self._reopening is not None:
            self._reopening.cancel()
        if (left := self._num_unsent()) and self._port is not None:
            log.warning("%s has not taken the last %d bytes; they are dropped", self.name, left)
            with contextlib.suppress(OSError, termios.error):  # closing would wait for what the system holds
                termios.tcflush(self._port.fileno(), termios.TCOFLUSH)
        self._let_go()

    @property
    def busy(self) -> bool:
        return self._free_at > time.monotonic() + _BUSY_SECONDS

    def send(self, frame: bytes, *, apart: bool = False) -> None:
        if self.closed:
            return
        if len(self._unsent) + len(self._held) > _MAX_UNSENT_BYTES:
            if not self._dropping:
                log.warning("%s: frames are dropped, because the line does not take them", self.name)
            self._dropping = True
            return
        self._dropping = False
        frame = to_ascii(frame)
        speed = (self._next or self.settings).bytes_per_second
        self._free_at = max(self._free_at, time.monotonic()) + len(frame) / speed
        if self._next is not None:
            self._held += frame
            return
        waiting = bool(self._unsent)
        self._unsent += frame
        if not waiting:
            self._write()

    def expire(self, now: float) -> None:
        """Have an unfinished message given up in time."""
        if not self.closed:
            self.receiver.expire(now)

    def set_up(self, settings: LineSettings) -> None:
        """Change the line once all that was sent, and so the answer to the command, has left; later frames wait for that."""
        if self.closed:
            self.settings = settings
            return
        if self._next is None:
            self._change_in(max(_SETUP_SECONDS, self._free_at + _MARGIN_SECONDS - time.monotonic()))
        self._next = settings

    def _change_in(self, seconds: float) -> None:
        self._changing = asyncio.get_running_loop().call_later(seconds, self._change)

    def _change(self) -> None:
        settings, port = self._next, self._port
        if settings is None or port is None:
            return
        try:
            if self._unsent or port.out_waiting:
                self._change_in(_POLL_SECONDS)
                return
            port.bytesize = settings.data_bits
            port.parity = settings.parity
            port.stopbits = settings.stop_bits
            port.baudrate = settings.baud
        except (OSError, ValueError, termios.error) as error:
            log.warning("%s cannot be set to %s: %s", self.name, settings, error)
            self._lost()
            return
        self.settings, self._next = settings, None
        self._unsent, self._held = self._held, bytearray()
        if self._unsent:
            self._write()

    def _num_unsent(self) -> int:
        """Bytes that the device has not been given."""
        waiting = len(self._unsent) + len(self._held)
        with contextlib.suppress(OSError):  # it is gone
            waiting += 0 if self._port is None else self._port.out_waiting
        return waiting

    def _read(self) -> None:
        try:
            data = os.read(self._port.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.receiver.feed(data)
        else:
            self._lost()

    def _write(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._port.fileno()
        try:
            written = os.write(fd, self._unsent)
        except BlockingIOError:
            written = 0
        except OSError:
            self._lost()
            return
        del self._unsent[:written]
        if self._unsent:
            loop.add_writer(fd, self._write)
        else:
            loop.remove_writer(fd)

    def _lost(self) -> None:
        log.warning("%s is gone; it is tried again every %g seconds", self.name, _REOPEN_SECONDS)
        self._let_go()
        self._reopen_later()

    def _reopen_later(self) -> None:
        self._reopening = asyncio.get_running_loop().call_later(_REOPEN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        try:
            self.open()
        except ConfigError:
            self._reopen_later()
        else:
            log.info("%s is back", self.name)

    def _let_go(self) -> None:
        self.closed = True
        if self._changing is not None:
            self._changing.cancel()
        self._next = None
        self._unsent.clear()
        self._held.clear()
        self._free_at = 0.0
        port, self._port = self._port, None
        if port is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(port.fileno())
            loop.remove_writer(port.fileno())
            port.close()
