"""The command `trivium`, which tells on SIGUSR1 what it holds: a line of JSON on stderr; on SIGUSR2 where its threads are.

How many asyncio tasks, and how many objects, by type, once the garbage is collected. Without huge pages, which the system
makes of small ones as time goes by: what is resident then grows though nothing more is held.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import json
import os
import signal
from collections import Counter

from trivium.cli.main import main

# A loop keeps up to a hundred timers that were cancelled, with their contexts.
OF_TIMERS = {"TimerHandle", "Context", "hamt", "hamt_bitmap_node", "hamt_array_node", "hamt_collision_node"}


def tell(signum, frame):
    gc.collect()
    types = Counter(type(thing).__qualname__ for thing in gc.get_objects())
    for name in OF_TIMERS:
        del types[name]
    held = {"tasks": len(asyncio.all_tasks()), "objects": sum(types.values()), "types": dict(types.most_common(60))}
    os.write(2, f"\nheld: {json.dumps(held)}\n".encode())  # in one piece, whatever is being logged


_PR_SET_THP_DISABLE = 41  # linux/prctl.h

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    signal.signal(signal.SIGUSR1, tell)
    faulthandler.register(signal.SIGUSR2)
    main()
