"""What shows in a process of its own: threads after a fork, fewer threads than asked for, the memory of long contexts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, threading, time
import numpy as np
from trivium._native import Matrix, set_num_threads

set_num_threads(3)
weights = np.ones((4096, 64), np.float32).view(np.uint8).reshape(-1)
x = np.ones((64, 64), np.float32)
matrix = Matrix(4096, 64, [(0, weights)], "auto")
expected = matrix.matmul(x, "float32")

def work():
    while True:
        matrix.matmul(x, "float32")

if sys.argv[1] == "busy":
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)  # an idle parent's workers are asleep by now
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        for pause in (0, 0.02, 0.02):  # so that the child's own workers sleep and wake, too
            time.sleep(pause)
            again = Matrix(4096, 64, [(0, weights)], "auto")
            if not np.array_equal(again.matmul(x, "float32"), expected):
                os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        os._exit(1)
os._exit(0)
"""


@pytest.mark.parametrize("parent", ["idle", "busy"])
def test_a_forked_child_has_its_own_pool(parent):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, parent], timeout=60, check=False)
    assert done.returncode == 0


NO_THREADS = """
import resource
import numpy as np
from trivium._native import Matrix, set_num_threads

x = np.ones((64, 64), np.float32)
set_num_threads(1)
matrix = Matrix(256, 64, [(0, np.ones((256, 64), np.float32).view(np.uint8).reshape(-1))], "auto")
expected = matrix.matmul(x, "float32")
set_num_threads(64)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 46_000_000,) * 2)  # room for the stacks of a few threads
for _ in range(3):
    assert np.array_equal(matrix.matmul(x, "float32"), expected)
"""


def test_a_process_that_gets_fewer_threads_computes_with_those_it_has():
    done = subprocess.run([sys.executable, "-c", NO_THREADS], timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LONG_CONTEXT = """
import resource, sys
sys.path.insert(0, {folder!r})
from tiny import Row, run, tiny_model
from trivium import _native

_native.set_num_threads(8)
model = tiny_model(num_heads=32, num_kv_heads=4, head_dim=256, num_layers=1, windows=[0], moe_layers=[False])
tokens, blocks = [1] * 131072, [0] * 8192  # all of it in one block
def peak(end):
    run(model, [Row(tokens, end - 4, end, blocks)])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak(4)
print(peak(131072) - before)
"""


def test_long_contexts_take_no_more_memory():
    program = LONG_CONTEXT.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < 40  # MB; all tiles' sums at once would take 134
