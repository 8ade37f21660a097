"""Threads with a stack of a size of their own: what a program has set for its threads may be too little for ours."""

from __future__ import annotations

import os
import threading

__all__ = ["start_with_stack"]

_lock = threading.Lock()


def start_with_stack(thread: threading.Thread, num_bytes: int) -> None:
    """Start a thread with a stack of so many bytes, as `threading.stack_size` takes them."""
    with _lock:
        usual = threading.stack_size(num_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
