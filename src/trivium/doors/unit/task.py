"""`Task`: what a setup makes, "llm.1000". Base of the tasks of all units."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from trivium.doors.unit.bus import ChainMessage
from trivium.doors.unit.command import Command
from trivium.doors.unit.errors import Code, UnitError
from trivium.doors.unit.input import InputReader

if TYPE_CHECKING:
    from trivium.doors.unit.connection import Connection
    from trivium.doors.unit.setup import Setup
    from trivium.doors.unit.unit import Unit

__all__ = ["OpenAnswer", "Task"]

log = logging.getLogger("trivium.unit")


class OpenAnswer(Protocol):
    """An answer that has not ended; its frames go to `connection`, which changes with the task's owner."""

    connection: Connection


class Task(ABC):
    """One configured worker of a unit. It outlives the connection that set it up, and ends with exit or a reset.

    A subclass has at least `infer`, `receive` and `stop`, and `close` if it holds anything. Everything runs on the event loop
    and must be quick: what takes time is left to an asyncio task or a thread.

    Attributes:
        unit, work_id, setup: as made.
        owner: the connection that commanded last; answers that nobody asked for by hand (links) go there.
        request_id: of the last inference, else of the setup: answers to links carry it.
        inputs: as taskinfo tells them; link and unlink change them.
        missing: inputs of the setup that name tasks that did not exist.
        outputs: the answers that have not ended.
        reader: of inferences.
    """

    def __init__(self, unit: Unit, work_id: str, setup: Setup, command: Command) -> None:
        self.unit = unit
        self.work_id = work_id
        self.setup = setup
        self.owner = command.connection
        self.request_id = command.request_id
        self.inputs = list(setup.inputs)
        self.missing: list[str] = []
        self.outputs: set[OpenAnswer] = set()
        self.reader = InputReader()
        self._links: dict[str, Callable[[], None]] = {}  # work_id of each linked task, and what ends the link

    # What a subclass does

    @abstractmethod
    def infer(self, command: Command) -> None:
        """An inference of a user. `UnitError` that it raises is answered with `refuse`."""

    @abstractmethod
    def receive(self, message: ChainMessage) -> None:
        """A linked task says something; `message.work_id` tells which."""

    @abstractmethod
    def stop(self) -> None:
        """End the answer that is running, if any, with its last frame; what waits behind it goes on."""

    def close(self) -> None:
        """The task ends: end all answers, running and waiting, and free what it holds."""
        self.stop()

    def refuse(self, command: Command, error: UnitError) -> None:
        """Answer an inference that cannot be taken."""
        command.fail(error)

    def expire(self, now: float) -> list[Command]:
        """Give up streamed input that does not go on; those to be refused for it. Called every second or so."""
        return self.reader.expire(now)

    def info(self) -> dict[str, Any]:
        """The data of taskinfo. The inputs have two names, because versions of the original differ."""
        setup = self.setup
        told: dict[str, Any] = {
            "enoutput": setup.enoutput,
            "inputs": list(self.inputs),
            "inputs_": list(self.inputs),
            "model": setup.model,
            "response_format": setup.response_format,
        }
        if self.missing:
            told["warnings"] = [f"{name} did not exist at setup and is not linked" for name in self.missing]
        return told

    # Input

    @property
    def takes_users(self) -> bool:
        """Whether the inputs allow inferences of users."""
        return any(self.unit.is_own_input(name) for name in self.inputs)

    def take_inference(self, command: Command) -> None:
        """For the unit: an inference has come. The task belongs to its connection from now on."""
        if not self.takes_users:
            command.fail(UnitError(Code.NO_INPUT))
            return
        self.owner, self.request_id = command.connection, command.request_id
        for output in self.outputs:
            if output.connection.closed:
                output.connection = command.connection
        try:
            self.infer(command)
        except UnitError as error:
            self.refuse(command, error)

    def act(self, command: Command) -> None:
        """For the unit: an action has come. All output goes to its connection from now on. Raises `UnitError`."""
        method = self.unit.actions.get(command.action)
        if method is None:
            raise UnitError(Code.ACTION)
        self.owner = command.connection
        for output in self.outputs:
            output.connection = command.connection
        getattr(self, method)(command)

    # Links

    def link_inputs(self) -> None:
        """For the unit: follow the inputs of the setup. Tasks that do not exist are left out, with a warning."""
        for name in self.inputs:
            if self.unit.is_upstream(name) and not self._follow(name):
                self.missing.append(name)
                log.warning("%s: there is no task %s to link to", self.work_id, name)

    def unlink_all(self) -> None:
        """End every link."""
        for end in self._links.values():
            end()
        self._links.clear()

    def _follow(self, name: str) -> bool:
        bus = self.unit.bus
        if not bus.is_open(name):
            return False
        self._links.setdefault(name, lambda: None)()
        self._links[name] = bus.subscribe(name, self.receive)
        return True

    # Actions: each answers the command itself, or raises `UnitError`

    def on_link(self, command: Command) -> None:
        """Follow the task that `data` names."""
        name = command.data
        if not isinstance(name, str) or not self.unit.is_upstream(name) or not self._follow(name):
            raise UnitError(Code.LINK)
        if name not in self.inputs:
            self.inputs.append(name)
        if name in self.missing:
            self.missing.remove(name)
        command.reply()

    def on_unlink(self, command: Command) -> None:
        """Follow the task no more, or take no more inferences of users ("llm.utf-8"). What was never linked is no error."""
        name = command.data
        if isinstance(name, str):
            own = self.unit.is_own_input(name)
            self.inputs = [i for i in self.inputs if i != name and not (own and self.unit.is_own_input(i))]
            self._links.pop(name, lambda: None)()
            if name in self.missing:
                self.missing.remove(name)
        command.reply()

    def on_pause(self, command: Command) -> None:
        """End the running answer; nothing is held up."""
        self.stop()
        command.reply()

    def on_work(self, command: Command) -> None:
        """Nothing was held up."""
        command.reply()

    def on_exit(self, command: Command) -> None:
        """End the task."""
        self.unit.remove(self)
        command.reply()

    def on_taskinfo(self, command: Command) -> None:
        """Tell how the task is configured."""
        command.reply(object=f"{self.unit.name}.taskinfo", data=self.info())
