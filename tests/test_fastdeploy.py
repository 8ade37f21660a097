"""`python -m trivium.fastdeploy`: FastDeploy scripts run unchanged, with a tiny model behind the names they use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from trivium.fastdeploy.aliases import ALIASES

TESTS = Path(__file__).parent
SCRIPTS = TESTS / "fastdeploy_scripts"
NAMES = ("baidu/ERNIE-4.5-0.3B-Paddle", "baidu/ERNIE-4.5-VL-28B-A3B-Paddle", "baidu/ERNIE-4.5-21B-A3B-Base-Paddle")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}Assistant: "
)


@pytest.fixture(scope="module")
def aliases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An alias table that leads every name of the scripts to one tiny random model with a tokenizer of bytes."""
    folder = tmp_path_factory.mktemp("models")
    tiny = folder / "tiny"
    tiny.mkdir()
    source = TESTS / "golden" / "architectures" / "ernie4_5"
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (tiny / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}), encoding="utf-8")
    (tiny / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    tokenizer.save(str(tiny / "tokenizer.json"))
    (tiny / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}), encoding="utf-8")
    (tiny / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    table = folder / "aliases.toml"
    table.write_text("[aliases]\n" + "".join(f'"{name}" = "tiny"\n' for name in NAMES), encoding="utf-8")
    return table


def run(script: str, folder: Path, aliases: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRIVIUM_ALIASES": str(aliases), "TRIVIUM_HOME": str(folder / "home"), **environ}
    command = [sys.executable, "-m", "trivium.fastdeploy", script, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def printed(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_batch_chat_and_the_log(tmp_path: Path, aliases: Path) -> None:
    result = run(str(SCRIPTS / "chat_batch.py"), tmp_path, aliases)
    assert printed(result) == (
        "prompt: system: You answer briefly.\nuser: 用一句话介绍李白\nAssistant: \n"
        "prompt: system: You answer briefly.\nuser: Name three rivers.\nAssistant: \n"
    )
    assert "Processed prompts: 100%" in result.stderr
    log = (tmp_path / "log" / "fastdeploy.log").read_text(encoding="utf-8")
    assert re.findall(r"Doing profile, the total_block_num:(\d+)$", log, re.MULTILINE) == ["640"]


def test_thinking_switched_off(tmp_path: Path, aliases: Path) -> None:
    text = printed(run(str(SCRIPTS / "chat_thinking.py"), tmp_path, aliases))
    assert text == "prompt: user: Which century was it made in?\n<think></think>Assistant: \n"


def test_generate_with_arguments_and_another_log_folder(tmp_path: Path, aliases: Path) -> None:
    result = run(str(SCRIPTS / "generate.py"), tmp_path, aliases, "--shots", "2", FD_LOG_DIR=str(tmp_path / "elsewhere"))
    assert printed(result) == "arguments: --shots 2\n"
    assert "total_block_num:" in (tmp_path / "elsewhere" / "fastdeploy.log").read_text(encoding="utf-8")
    assert not (tmp_path / "log").exists()


def test_the_tokenizer_renders_the_template(tmp_path: Path, aliases: Path) -> None:
    text = printed(run(str(SCRIPTS / "generate_with_tokenizer.py"), tmp_path, aliases))
    assert text == "prompt: user: Which century was it made in?\nAssistant: \n"


def test_images_are_refused_by_name(tmp_path: Path, aliases: Path) -> None:
    result = run(str(SCRIPTS / "chat_image.py"), tmp_path, aliases)
    assert result.returncode == 1
    assert "messages[0]['content'][0] (image_url) is a part of kind image, but this model takes text only" in result.stderr


def test_misspelt_arguments_are_named(tmp_path: Path, aliases: Path) -> None:
    result = run(str(SCRIPTS / "misspelt.py"), tmp_path, aliases)
    assert result.returncode == 1
    assert (
        "TypeError: LLM got an unexpected keyword argument 'resoning_parser'; did you mean 'reasoning_parser'?" in result.stderr
    )


def test_usage_and_missing_scripts(tmp_path: Path, aliases: Path) -> None:
    assert "usage: python -m trivium.fastdeploy SCRIPT" in printed(run("--help", tmp_path, aliases))
    missing = run("nothing.py", tmp_path, aliases)
    assert missing.returncode == 2
    assert "there is no file 'nothing.py'" in missing.stderr
    assert not (tmp_path / "log").exists()


def test_scripts_run_as_main_beside_their_own_modules(tmp_path: Path, aliases: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("VALUE = 7\n", encoding="utf-8")
    script = tmp_path / "sub" / "script.py"
    script.write_text(
        "import sys, helper, fastdeploy\n"
        "assert __name__ == '__main__' and __file__.endswith('script.py')\n"
        "print(helper.VALUE, sys.argv[1:], fastdeploy.__version__ == fastdeploy.version)\n"
        "try:\n    import fastdeploy.nothing\nexcept ModuleNotFoundError as error:\n    print(error.name)\n",
        encoding="utf-8",
    )
    assert printed(run("sub/script.py", tmp_path, aliases, "x")) == "7 ['x'] True\nfastdeploy.nothing\n"


def test_an_unwritable_log_folder_does_not_stop_the_script(tmp_path: Path, aliases: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "script.py").write_text("print('ran')\n", encoding="utf-8")
    result = run("script.py", tmp_path, aliases, FD_LOG_DIR=str(tmp_path / "file" / "log"))
    assert printed(result) == "ran\n"
    assert "no log file" in result.stderr


def test_every_alias_names_its_parents() -> None:
    for name in ALIASES:
        parent = name.rpartition(".")[0]
        assert not parent or parent in ALIASES
