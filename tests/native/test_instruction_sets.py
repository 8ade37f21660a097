"""Each instruction set that this CPU has. The other modules try the one in use, `make test-portable` the portable one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trivium._native import available_instruction_sets, instruction_set

OTHERS = [name for name in available_instruction_sets() if name not in (instruction_set(), "portable")]


@pytest.mark.parametrize("name", OTHERS)
def test_the_native_tests_hold_on(name):
    tests = Path(__file__).parent
    pytest_options = ["-q", "-m", "not oracle", "-p", "no:cacheprovider", f"--ignore={__file__}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(tests), *pytest_options],
        env={**os.environ, "TRIVIUM_ISA": name},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_best_is_in_use_unless_another_is_named():
    assert instruction_set() == os.environ.get("TRIVIUM_ISA", available_instruction_sets()[0])
    assert available_instruction_sets()[-1] == "portable"
