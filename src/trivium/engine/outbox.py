"""Deltas of one step on their way to the doors."""

from __future__ import annotations

import logging

from trivium.engine.outputs import OutputDelta, OutputSink

__all__ = ["Outbox"]

log = logging.getLogger("trivium")


class Outbox:
    """Groups deltas by sink, so that each door is woken once per step."""

    def __init__(self) -> None:
        self._outputs: dict[OutputSink, list[OutputDelta]] = {}

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, sink: OutputSink, delta: OutputDelta) -> None:
        outputs = self._outputs.get(sink)
        if outputs is None:
            self._outputs[sink] = [delta]
        else:
            outputs.append(delta)

    def deliver(self) -> list[str]:
        """Call each sink with its deltas; return the ids of the requests whose sink raised."""
        outputs, self._outputs = self._outputs, {}
        failed: list[str] = []
        for sink, deltas in outputs.items():
            try:
                sink(deltas)
            except Exception:
                request_ids = list(dict.fromkeys(delta.request_id for delta in deltas))
                log.exception("an output sink raised; its requests are aborted: %s", ", ".join(request_ids))
                failed += request_ids
        return failed
