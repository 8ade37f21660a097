"""`Registry`: the tasks that units have registered, and what they let each other know."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import orjson

from trivium.doors.unit.bus import Bus
from trivium.doors.unit.remote.address import BusAddress, SocketNames, is_unit_name
from trivium.doors.unit.remote.endpoint import Sockets
from trivium.doors.unit.remote.messages import pack
from trivium.doors.unit.remote.output_channel import OutputChannel
from trivium.doors.unit.remote.remote_task import RemoteTask
from trivium.doors.unit.remote.rpc_server import REFUSED, SUCCESS

__all__ = ["Registry"]

log = logging.getLogger("trivium.unit")

_MAX_TASKS = 256
_MAX_GONE = 256  # tasks that are remembered
_MAX_VALUES, _MAX_KEY, _MAX_VALUE = 1024, 256, 4096
_OUT_PORT = re.compile(r"(.+\.[0-9]+)\.out_port")
_RPC = re.compile(r"rpc\.(.+)")


class Registry:
    """Does what units ask of the door. Names of this process's own units are not theirs to take."""

    def __init__(self, sockets: Sockets, bus: Bus, address: BusAddress, own_units: Collection[str]) -> None:
        self.tasks: dict[str, RemoteTask] = {}
        self.values: dict[str, str] = {}
        self._fixed: dict[str, str] = {}  # values that are not for units to change
        self._gone: OrderedDict[str, RemoteTask] = OrderedDict()  # by work_id
        self._channels: dict[str, OutputChannel] = {}
        self._sockets = sockets
        self._bus = bus
        self._address = address
        self._own_units = own_units
        self._names = SocketNames(address)
        bus.closed.append(self._close_channel)

    @property
    def actions(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """By the names that units call them. They raise ValueError for what is not understood, and OSError."""
        return {
            "register_unit": lambda text: self._register(text.decode()),
            "release_unit": lambda text: self._release(text.decode()),
            "sql_select": lambda text: self._select(text.decode()),
            "sql_set": self._set,
            "sql_unset": lambda text: self._unset(text.decode()),
        }

    def is_free(self, unit: str) -> bool:
        """Whether the name may be that of a unit in another process."""
        return is_unit_name(unit) and unit != "sys" and unit not in self._own_units

    def unit_url(self, unit: str) -> str | None:
        """Where a unit is to be asked, None if that is not known."""
        return self.values.get(f"rpc.{unit}") or self._address.unit_url(unit)

    def fix(self, key: str, value: str) -> None:
        """Tell units a value that they cannot change."""
        self._fixed[key] = value

    def gone(self, work_id: str) -> RemoteTask | None:
        """A task that was there and is no more."""
        return self._gone.get(work_id)

    def reply_url(self) -> str:
        """For a new reply line."""
        return self._names.reply()

    def drop(self, task: RemoteTask) -> None:
        """A task has gone."""
        if self.tasks.pop(task.work_id, None) is None:
            return
        log.info("%s has gone", task.work_id)
        self._gone[task.work_id] = task
        if len(self._gone) > _MAX_GONE:
            _end_answers(self._gone.popitem(last=False)[1])
        task.close()
        if self._address.folder is not None and task.output_url.startswith(f"ipc://{self._address.folder}/llm/"):
            Path(task.output_url.removeprefix("ipc://")).unlink(missing_ok=True)  # where the unit was killed

    def close(self) -> None:
        """End everything."""
        self._bus.closed.remove(self._close_channel)
        for task in tuple(self.tasks.values()):
            self.drop(task)
        for task in self._gone.values():
            _end_answers(task)
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # What units ask for

    def _register(self, unit: str) -> bytes:
        """A task that a unit is setting up: its number, where its output is to be, and where inferences for it will be."""
        if not self.is_free(unit):
            log.warning("a unit wants to be %r, which it may not", unit)
            return REFUSED
        if len(self.tasks) >= _MAX_TASKS:
            log.warning("the unit %s is refused a task: there are %d", unit, _MAX_TASKS)
            return REFUSED
        number = self._bus.next_number()
        task = RemoteTask(self._sockets, self._bus, f"{unit}.{number}", self._names.inference(unit), self.drop)
        self.tasks[task.work_id] = task
        if task.work_id in self._gone:  # before a reset
            _end_answers(self._gone.pop(task.work_id))
        output_url = self._names.output(unit)
        if self._address.folder is not None:
            task.follow(output_url)
        log.info("%s has joined", task.work_id)
        return pack(str(number), pack(output_url, task.inference_url.encode()))

    def _release(self, work_id: str) -> bytes:
        task = self.tasks.get(work_id)
        if task is not None:
            self.drop(task)
        return SUCCESS

    def _select(self, key: str) -> bytes:
        found = _OUT_PORT.fullmatch(key)
        value = self._output_url(found[1]) if found else self._fixed.get(key, self.values.get(key, ""))
        return value.encode()

    def _set(self, text: bytes) -> bytes:
        pair = orjson.loads(text)
        key, value = (pair.get("key"), pair.get("val")) if isinstance(pair, dict) else (None, None)
        if not (isinstance(key, str) and isinstance(value, str) and key) or key in self._fixed:
            return REFUSED
        if found := _OUT_PORT.fullmatch(key):
            return self._set_output(found[1], value)
        if (found := _RPC.fullmatch(key)) and not (self.is_free(found[1]) and self._address.may_be(value)):
            return REFUSED
        full = key not in self.values and len(self.values) >= _MAX_VALUES
        if full or len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            return REFUSED
        self.values[key] = value
        return SUCCESS

    def _unset(self, key: str) -> bytes:
        if key in self._fixed:
            return REFUSED
        self.values.pop(key, None)
        return SUCCESS

    def _output_url(self, work_id: str) -> str:
        """Where a task's output can be subscribed to, "" if there is no such task."""
        if work_id in self.tasks:
            return self.tasks[work_id].output_url
        if not self._bus.is_open(work_id):
            return ""
        if work_id not in self._channels:
            url = self._names.own_output(work_id.partition(".")[0])
            self._channels[work_id] = OutputChannel(self._sockets, self._bus, work_id, url)
        return self._channels[work_id].url

    def _set_output(self, work_id: str, url: str) -> bytes:
        task = self.tasks.get(work_id)
        if task is None or not self._address.may_be(url):
            return REFUSED
        task.follow(url)
        return SUCCESS

    def _close_channel(self, work_id: str) -> None:
        """A task of this process has gone."""
        channel = self._channels.pop(work_id, None)
        if channel is not None:
            channel.close()


def _end_answers(task: RemoteTask) -> None:
    task.answers.fail(task.has_gone)
