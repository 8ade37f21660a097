"""`Unit`: all tasks of one kind. Base of llm, kws, asr and tts."""

from __future__ import annotations

import asyncio
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.command import Command
from trivium.doors.unit.connection import Connection
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.input import QUIET_SECONDS
from trivium.doors.unit.setup import Setup
from trivium.doors.unit.task import Task
from trivium.doors.unit.waiting import WaitingCommands

__all__ = ["Unit"]

log = logging.getLogger("trivium.unit")

_SETUP_SECONDS = 10.0  # that a setup under way gets at the server's end
_MAX_WAITING_BYTES = 64 * 2**20  # of commands of all connections that wait for setups to end


class Unit(ABC):
    """Sets tasks up and passes commands on to them. Everything runs on the event loop.

    A subclass has `name`, `upstreams` (the units whose tasks its own can be linked to) and `create`. Commands of a connection
    to a unit are answered in their order: those behind a setup wait for it, those of other connections do not. The router
    calls `handle` and `infer`.
    """

    name: ClassVar[str]
    upstreams: ClassVar[frozenset[str]] = frozenset()

    # Actions beside setup and inference, and the method of the task that answers each. A unit with more extends this.
    actions: ClassVar[Mapping[str, str]] = {
        "link": "on_link",
        "unlink": "on_unlink",
        "pause": "on_pause",
        "work": "on_work",
        "exit": "on_exit",
        "taskinfo": "on_taskinfo",
    }

    def __init__(self, bus: Bus, max_tasks: int) -> None:
        self.bus = bus
        self.max_tasks = max_tasks
        self.tasks: dict[str, Task] = {}
        self._starting = 0  # setups under way
        self._resets = 0
        self._waiting: weakref.WeakKeyDictionary[Connection, WaitingCommands] = weakref.WeakKeyDictionary()
        self._setups: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def create(self, work_id: str, setup: Setup, command: Command) -> Task:
        """A new task, with whatever it needs loaded. Raises `UnitError`, MODEL for what is wrong with the setup.

        The unit registers and links it; if it cannot (a reset came meanwhile), it closes it.
        """

    def descriptors(self) -> list[dict[str, Any]]:
        """What lsmode lists of this unit: one object for each model that a setup may name."""
        return []

    async def shutdown(self) -> None:
        """The server ends: end all tasks, and free what the unit holds beside them. Setups under way are refused first."""
        self.reset()
        if self._setups:
            await asyncio.wait(tuple(self._setups), timeout=_SETUP_SECONDS)

    def is_upstream(self, name: str) -> bool:
        """Whether an input or a link's data names a task of another unit: "asr.1001"."""
        kind, dot, number = name.partition(".")
        return kind in self.upstreams and dot == "." and number.isascii() and number.isdecimal()

    def is_own_input(self, name: str) -> bool:
        """Whether an input allows inferences of users: "llm.utf-8", and so on."""
        return self.name in name and not self.is_upstream(name)

    # For the router

    def handle(self, command: Command) -> None:
        """Do anything but an inference, and answer it, now or later."""
        waiting = self._waiting.get(command.connection)
        if waiting is not None:
            self._put_off(command, waiting)
        elif command.action == "setup":
            self._waiting[command.connection] = WaitingCommands(command.connection)
            self._begin(command)
        else:
            self._act(command)

    def infer(self, command: Command) -> None:
        """Give an inference to its task."""
        task = self.tasks.get(command.work_id)
        if task is None:
            command.fail(UnitError(Code.NO_INPUT))
        else:
            task.take_inference(command)

    def expire(self, now: float) -> None:
        """Give up streamed input that does not go on. To be called every second or so; never raises."""
        for task in tuple(self.tasks.values()):
            for command in task.expire(now):
                try:
                    task.refuse(command, UnitError(Code.STREAM, f"Nothing more has come for {QUIET_SECONDS:g} s."))
                except Exception:
                    log.exception("%s failed to refuse an inference", task.work_id)

    def reset(self) -> None:
        """End all tasks, those that are being set up as soon as they are there, and setups that wait."""
        self._resets += 1
        for task in tuple(self.tasks.values()):
            self.remove(task)

    def remove(self, task: Task) -> None:
        """End a task: its answers get their last frames, others are no longer linked to it. Never raises."""
        if self.tasks.pop(task.work_id, None) is not task:
            return
        task.unlink_all()
        _close(task)
        self.bus.close(task.work_id)

    def _act(self, command: Command) -> None:
        task = self.tasks.get(command.work_id)
        try:
            if task is not None:
                task.act(command)
            elif command.action == "taskinfo" and command.work_id == self.name:
                command.reply(object=f"{self.name}.tasklist", data=list(self.tasks))
            else:
                raise UnitError(Code.NO_TASK if command.action in self.actions else Code.ACTION)
        except UnitError as error:
            command.fail(error)

    def _begin(self, command: Command) -> None:
        """Set a task up; commands of the connection wait meanwhile."""
        work_id = f"{self.name}.{self.bus.next_number()}"
        job = asyncio.get_running_loop().create_task(self._set_up(work_id, command, self._resets))
        self._setups.add(job)
        job.add_done_callback(self._setups.discard)

    async def _set_up(self, work_id: str, command: Command, resets: int) -> None:
        self._starting += 1
        try:
            await self._start_task(work_id, command, resets)
            command.reply(work_id=work_id)
        except UnitError as error:
            log.warning("%s: setup failed: %s", self.name, error)
            command.fail(error, work_id=self.name)
        except Exception:
            log.exception("%s: setup failed", self.name)
            command.fail(UnitError(Code.MODEL), work_id=self.name)
        finally:
            self._starting -= 1
            self._go_on(command.connection)

    def _put_off(self, command: Command, waiting: WaitingCommands) -> None:
        """Keep a command until the setup before it has ended."""
        work_id = self.name if command.action == "setup" else None
        room = _MAX_WAITING_BYTES - sum(others.num_bytes for others in self._waiting.values())
        try:
            kept = waiting.add(command, self._resets, room)
        except ValueError as error:
            command.fail(UnitError(Code.JSON, str(error)), work_id=work_id)
            return
        if not kept:
            command.fail(UnitError(Code.BUSY, "Too many commands wait for a setup to end."), work_id=work_id)

    def _go_on(self, connection: Connection) -> None:
        """A setup has ended: do what waits for it, up to the next setup."""
        waiting = self._waiting[connection]
        while (taken := waiting.take()) is not None:
            resets, command = taken
            if command.action != "setup":
                self._act_safely(command)
            elif resets == self._resets:
                self._begin(command)
                return
            else:
                command.fail(_reset_came(), work_id=self.name)
        del self._waiting[connection]

    def _act_safely(self, command: Command) -> None:
        try:
            self._act(command)
        except Exception:  # those behind it are others'
            log.exception("%s: %s of %s failed", self.name, command.action, command.work_id)
            command.fail(UnitError(Code.UNAVAILABLE))

    async def _start_task(self, work_id: str, command: Command, resets: int) -> None:
        """`resets`: that had come before the command."""
        if resets != self._resets:
            raise _reset_came()
        if len(self.tasks) + self._starting > self.max_tasks:
            raise UnitError(Code.FULL)
        setup = Setup.read(command.data)
        task = await self.create(work_id, setup, command)
        setup.values = {}  # up to a whole message, parsed, that nobody needs any more
        if resets != self._resets:
            _close(task)
            raise _reset_came()
        self.tasks[work_id] = task
        self.bus.open(work_id)
        task.link_inputs()


def _reset_came() -> UnitError:
    return UnitError(Code.MODEL, "A reset came first.")


def _close(task: Task) -> None:
    try:
        task.close()
    except Exception:
        log.exception("%s did not end well", task.work_id)
