"""Each instruction set that this CPU has.

The other modules try the one in use; `make test-portable` tries the portable one, `make test-arm` those of ARM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trivium._native import available_instruction_sets, instruction_set

OTHERS = [name for name in available_instruction_sets() if name.startswith("avx") and name != instruction_set()]


def test_the_native_tests_hold_on_others():
    pytest_options = ["-q", "-m", "not oracle", "-p", "no:cacheprovider", f"--ignore={__file__}"]
    for name in OTHERS:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(Path(__file__).parent), *pytest_options],
            env={**os.environ, "TRIVIUM_ISA": name},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-4000:]}"


def test_the_best_is_in_use_unless_another_is_named():
    assert instruction_set() == os.environ.get("TRIVIUM_ISA", available_instruction_sets()[0])
    assert available_instruction_sets()[-1] == "portable"


PRODUCTS = """
import sys
import zlib
import numpy as np
sys.path.insert(0, sys.argv[1])
from quantized import QUANTISED, random_tensor
from trivium._native import Matrix

for kind in QUANTISED:
    matrix = Matrix(37, 768, [(int(kind), random_tensor(kind, 37, 768, 3))], "auto")
    for rows in (1, 5, 8, 13, 70):
        rng = np.random.default_rng(rows)
        x = (rng.standard_normal((rows, 768)) * np.exp(3 * rng.standard_normal((1, 768)))).astype(np.float32)
        x[0, 32:64] *= 1e-40  # scales below the least normal number
        for activation in ("auto", "int16"):
            bits = zlib.crc32(np.ascontiguousarray(matrix.matmul(x, activation)).tobytes())
            print(kind.name, rows, activation, bits)
"""


def test_products_have_the_same_bits_on_all_that_fuse_them():
    """Integer sums that start at a float (kFloatBase) instead of being converted are rounded once, too."""
    tests = str(Path(__file__).parent)
    products = {}
    for name in (instruction_set(), *OTHERS):
        environment = {**os.environ, "TRIVIUM_ISA": name}
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS, tests], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        products[name] = done.stdout.splitlines()
    first = products[instruction_set()]
    assert len(first) > 50
    assert all(lines == first for lines in products.values())
