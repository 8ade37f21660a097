"""The public face: what `trivium` exports, that it is there, and that importing it is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trivium

ROOT = Path(__file__).parents[1]


def test_all_names_exist() -> None:
    assert len(trivium.__all__) == len(set(trivium.__all__))
    for name in trivium.__all__:
        assert getattr(trivium, name) is not None
    assert set(dir(trivium)) == set(trivium.__all__)


def test_promised_names_are_exported() -> None:
    assert set(trivium.__all__) >= {
        "LLM",
        "AsyncLLM",
        "SamplingParams",
        "GuidedDecodingParams",
        "RequestOutput",
        "CompletionOutput",
        "RequestMetrics",
        "EngineConfig",
        "__version__",
    }


def test_every_error_class_is_exported() -> None:
    import trivium.errors

    assert set(trivium.errors.__all__) <= set(trivium.__all__)


def test_editors_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "src/trivium/__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in ast.walk(guarded) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(trivium.__all__) - {"__version__"}


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="'trivium' has no attribute 'Nothing'"):
        trivium.Nothing  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    declared = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None
    assert trivium.__version__ == declared[1]


def test_importing_is_cheap() -> None:
    code = (
        "import sys, time; before = set(sys.modules); start = time.process_time(); import trivium; "
        "print(time.process_time() - start, *sorted(m.partition('.')[0] for m in set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *modules = result.stdout.split()
    assert float(seconds) < 0.1
    assert not {"numpy", "tokenizers", "jinja2", "tqdm", "llguidance"} & set(modules)
