"""`Engines`: models by the names that devices use, each loaded once and shared by the tasks that name it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.config import EngineConfig
from trivium.doors.dispatcher import Dispatcher
from trivium.doors.unit.errors import Code, UnitError
from trivium.models.catalogue import catalogue

if TYPE_CHECKING:
    from trivium.engine.engine import Engine

__all__ = ["Engines"]

log = logging.getLogger("trivium.unit")

LoadEngine = Callable[[EngineConfig], "Engine"]


class _Shared:
    """A model that is loaded, or being loaded, and how many tasks use it."""

    def __init__(self, model: str, loading: asyncio.Task[Dispatcher]) -> None:
        self.model = model
        self.loading = loading
        self.users = 0

    @property
    def is_dead(self) -> bool:
        """Whether its engine runs no more, for a fault of its thread."""
        loading = self.loading
        if not loading.done() or loading.cancelled() or loading.exception() is not None:
            return False
        return not loading.result().engine.is_alive


class Engines:
    """The server's own engine under its names; others, of the catalogue or the configuration, while tasks use them.

    A device cannot name a file: only what the catalogue, the table of names or the default leads to is loaded.
    """

    def __init__(self, own: Dispatcher, models: Mapping[str, str], default: str | None, load: LoadEngine | None = None) -> None:
        """`models`: device names and what they stand for; `default` for all unknown names. `load` may take its time."""
        self._own = own
        self._own_names = {own.engine.model_info.name, own.engine.config.model}
        self._models = dict(models)
        self._default = default
        self._load = load or _load_native
        self._shared: dict[str, _Shared] = {}  # by model: what the next setup gets
        self._used: dict[Dispatcher, _Shared] = {}  # with those whose engines have died
        self._closing: dict[_Shared, asyncio.Task[None]] = {}
        # Of its own: loading takes long, and the loop's usual threads submit the requests of all doors.
        self._loader = ThreadPoolExecutor(1, "trivium-load")

    def names(self) -> dict[str, str]:
        """What devices may ask for, and the model that each name stands for."""
        own = self._own.engine.model_info.name
        return {own: own, **{entry.name: entry.name for entry in catalogue() if entry.kind == "llm"}, **self._models}

    def num_kib(self, model: str) -> int:
        """Size of a model's file, 0 if that is not known."""
        if model in self._own_names:
            model = self._own.engine.config.model
        entry = next((entry for entry in catalogue() if entry.name == model), None)
        if entry is not None:
            return entry.size // 1024
        path = Path(model).expanduser()
        return path.stat().st_size // 1024 if path.is_file() else 0

    async def acquire(self, name: str) -> Dispatcher:
        """The model that a name stands for, loaded; give it back with `release`. Raises `UnitError` MODEL."""
        model = self._resolve(name)
        if model in self._own_names:
            if not self._own.engine.is_alive:
                raise UnitError(Code.MODEL, "The engine has been shut down.")
            return self._own
        shared = self._shared.get(model)
        if shared is None or shared.is_dead:
            shared = self._shared[model] = _Shared(model, asyncio.create_task(self._start(model)))
        shared.users += 1
        try:
            dispatcher = await asyncio.shield(shared.loading)
        except Exception as error:
            self._leave(shared)
            log.warning("the model %s cannot be loaded: %s", model, error)
            raise UnitError(Code.MODEL, str(error)) from error
        self._used[dispatcher] = shared
        return dispatcher

    def release(self, dispatcher: Dispatcher) -> None:
        """One task uses the model no more; the last one frees it."""
        shared = self._used.get(dispatcher)
        if shared is not None:
            self._leave(shared)

    def _leave(self, shared: _Shared) -> None:
        shared.users -= 1
        if not shared.users:
            if self._shared.get(shared.model) is shared:
                del self._shared[shared.model]
            self._closing[shared] = asyncio.create_task(self._stop(shared))

    async def close(self) -> None:
        """The server ends: wait until all models that are no longer used are freed."""
        while self._closing:
            await asyncio.wait(self._closing.values())
        self._loader.shutdown(wait=False)

    def _resolve(self, name: str) -> str:
        if name in self._own_names:
            return name
        model = self.names().get(name, self._default)
        if model is None:
            known = ", ".join(sorted(self.names()))
            raise UnitError(Code.MODEL, f"There is no model {name!r:.80}; there are {known}.")
        return model

    async def _start(self, model: str) -> Dispatcher:
        closing = [task for shared, task in self._closing.items() if shared.model == model]
        if closing:  # it must not be in memory twice
            await asyncio.wait(closing)
        config = dataclasses.replace(
            self._own.engine.config, model=model, served_model_name=None, tokenizer=None, chat_template=None
        )
        return Dispatcher(await asyncio.get_running_loop().run_in_executor(self._loader, self._load, config))

    async def _stop(self, shared: _Shared) -> None:
        try:
            await asyncio.wait([shared.loading])
            if shared.loading.exception() is None:
                dispatcher = shared.loading.result()
                self._used.pop(dispatcher, None)
                await asyncio.to_thread(dispatcher.engine.shutdown)
                log.info("the model %s is freed", shared.model)
        finally:
            del self._closing[shared]


def _load_native(config: EngineConfig) -> Engine:
    from trivium.engine.native_engine import NativeEngine

    return NativeEngine.load(config)
