"""The files of a keyword model for sherpa-onnx, without the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trivium.doors.unit.voice import sherpa_model as module
from trivium.doors.unit.voice.sherpa_model import SherpaModel, is_sherpa_folder
from trivium.errors import ModelLoadError

STEM = "-epoch-12-avg-2-chunk-16-left-64"
PARTS = ("encoder", "decoder", "joiner")


def find(folder, *names):
    for name in names:
        (folder / name).touch()
    found = SherpaModel.find(folder)
    return [Path(path).name for path in (found.encoder, found.decoder, found.joiner)]


def test_the_names_of_releases(tmp_path):
    names = [f"{part}{STEM}{kind}.onnx" for part in PARTS for kind in ("", ".int8")]
    assert find(tmp_path, "tokens.txt", *names) == [f"{part}{STEM}.onnx" for part in PARTS]
    assert is_sherpa_folder(str(tmp_path))


def test_8_bit_files_where_there_are_no_others(tmp_path):
    names = [f"encoder{STEM}.int8.onnx", f"decoder{STEM}.onnx", f"joiner{STEM}.int8.onnx"]
    assert find(tmp_path, "tokens.txt", *names) == names


def test_several_models_in_a_folder_are_not_mixed(tmp_path):
    names = [f"{part}{stem}.onnx" for part in PARTS for stem in (STEM, "-epoch-99-avg-1")]
    names.remove(f"decoder{STEM}.onnx")
    assert find(tmp_path, "tokens.txt", *names) == [f"{part}-epoch-99-avg-1.onnx" for part in PARTS]


def test_short_names(tmp_path):
    names = [f"{part}.onnx" for part in PARTS]
    assert find(tmp_path, "tokens.txt", *names) == names


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "the folder has no tokens.txt"),
        (["tokens.txt"], r"the folder has no encoder\*\.onnx"),
        (["tokens.txt", "encoder.onnx", "joiner.onnx"], r"the folder has no decoder\*\.onnx"),
        (["tokens.txt", "encoder.onnx", "decoder.onnx"], r"the folder has no joiner\*\.onnx"),
        (["tokens.txt", "encoder-1.onnx", "decoder-1.onnx", "joiner-2.onnx"], "are not of one model"),
    ],
)
def test_folders_that_lack_something(tmp_path, names, words):
    with pytest.raises(ModelLoadError, match=words):
        find(tmp_path, *names)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ModelLoadError, match="there is no such folder"):
        SherpaModel.find(tmp_path / "nothing")
    assert not is_sherpa_folder(str(tmp_path / "nothing"))
    assert not is_sherpa_folder(str(tmp_path))


def test_a_trial_that_does_not_end(monkeypatch):
    def run(*args, **fields):
        raise subprocess.TimeoutExpired(args[0], fields["timeout"])

    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(ModelLoadError, match="it cannot be tried"):
        SherpaModel("t", "e", "d", "j").check("", 0.25)
