"""A forked child computes, whatever the parent's threads were doing at the fork."""

from __future__ import annotations

import subprocess
import sys

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
