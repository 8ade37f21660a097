from __future__ import annotations

import errno
import os
import subprocess
import sys

import click
import pytest
from cli_parts import run

import trivium
from trivium.cli.main import LazyGroup, cli
from trivium.errors import ModelLoadError

COMMANDS = ["serve", "generate", "chat", "run-batch", "pull", "info", "unit", "bench"]


def test_version():
    assert run("--version").output == f"trivium {trivium.__version__}\n"


def test_help_lists_the_commands():
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
    assert run("-h").output == result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: trivium {name} ")


@pytest.mark.parametrize(
    "args", [["nonsense"], ["generate"], ["generate", "x", "--no-such-flag"], ["generate", "x", "--top-k", "a"]]
)
def test_wrong_use(args):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: trivium")


def test_help_imports_nothing_heavy():
    code = (
        "import sys, trivium.cli.main as m\n"
        "try: m.cli(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'tokenizers', 'jinja2', 'asyncio', 'tqdm', 'llguidance', 'trivium.config'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.endswith("\n[]\n")


def test_command_help_imports_no_model_code():
    code = (
        "import sys, trivium.cli.main as m\n"
        "try: m.cli(['generate', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'tokenizers', 'jinja2', 'asyncio', 'tqdm'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.endswith("\n[]\n")


class TestErrors:
    """How a command's exceptions end the process."""

    @pytest.fixture
    def raising(self, monkeypatch):
        def use(error):
            @click.command("pull")
            def command():
                raise error

            monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)

        return use

    def test_error_of_trivium(self, raising):
        raising(ModelLoadError("the file is damaged"))
        result = run("pull")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "trivium: error: the file is damaged\n")

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
            (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied"),
            (OSError("odd"), "odd"),
        ],
    )
    def test_error_of_the_system(self, raising, error, words):
        raising(error)
        result = run("pull")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"trivium: error: {words}\n")

    def test_interrupt(self, raising):
        raising(KeyboardInterrupt())
        assert run("pull").exit_code == 130

    def test_bugs_are_not_hidden(self, raising):
        raising(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            run("pull")


def test_broken_pipe_is_quiet():
    command = [sys.executable, "-m", "trivium", "bench", "latency", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""
    assert process.returncode == 141


def test_full_disk_is_one_line(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    with open("/dev/full", "wb") as full:
        result = subprocess.run([sys.executable, "-m", "trivium", "pull", file], stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (1, b"trivium: error: No space left on device\n")


def test_terminal_without_unicode(tmp_path):
    file = tmp_path / "модель.gguf"
    file.write_bytes(b"GGUF")
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = subprocess.run([sys.executable, "-m", "trivium", "pull", file], capture_output=True, env=environ, check=True)
    assert result.stdout.endswith(b"/??????.gguf\n")


def test_pull_prints_the_path_only(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    result = run("pull", file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{file}\n", "")


def test_pull_of_an_unknown_name(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path))
    result = run("pull", "smolm2")
    assert result.exit_code == 1
    assert result.stderr.startswith("trivium: error: there is no model 'smolm2'")
    assert result.stderr.count("\n") == 1


def test_group_is_the_entry_point():
    assert cli.name == "trivium"
