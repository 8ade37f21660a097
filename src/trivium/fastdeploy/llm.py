"""`LLM` as FastDeploy's scripts know it: the library's, with the line that its page tells users to look for in the log."""

from __future__ import annotations

import logging
from typing import Any

from trivium.doors.library import llm

__all__ = ["LLM"]

log = logging.getLogger(__name__)


class LLM(llm.LLM):
    """The library's `LLM`; tells the log how many blocks the KV cache has: times `block_size` are its tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        log.info("Doing profile, the total_block_num:%d", self.engine.stats().total_blocks)
