"""Modules of benchmarks/, which no package holds."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str, folder: str = "") -> ModuleType:
    """`benchmarks/NAME.py`, or `benchmarks/FOLDER/NAME.py`, imported as the scripts import each other."""
    places = [str(_FOLDER), str(_FOLDER / folder)]
    sys.path[:0] = places
    try:
        return importlib.import_module(name)
    finally:
        for place in places:
            sys.path.remove(place)
