"""`SherpaModel`: the files of a keyword model for sherpa-onnx, and a trial of them in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trivium.doors.unit.voice.sound import RATE
from trivium.errors import ModelLoadError

__all__ = ["PACKAGE", "SherpaModel", "is_sherpa_folder", "is_sherpa_installed"]

PACKAGE = "sherpa_onnx"

_PARTS = ("encoder", "decoder", "joiner")
_TRIAL_SECONDS = 60.0
_TRIAL_SOUND = 2 * RATE  # samples: more than any model's chunk
_TRIAL = "from trivium.doors.unit.voice.sherpa_model import SherpaModel; SherpaModel.run_trial()"
_SOURCE = re.compile(r"^\S+:\w+:\d+ ")  # where in its source sherpa-onnx complains


def is_sherpa_installed() -> bool:
    """Whether the package is there; it may still fail to load."""
    return importlib.util.find_spec(PACKAGE) is not None


def is_sherpa_folder(target: str) -> bool:
    """Whether it is a folder that looks like a keyword model for sherpa-onnx, perhaps one with something missing."""
    folder = Path(target).expanduser()
    return (folder / "tokens.txt").is_file() or any(folder.glob("encoder*.onnx"))


@dataclass(frozen=True, slots=True)
class SherpaModel:
    """Paths. The parts are named like encoder-epoch-12-avg-2-chunk-16-left-64.onnx or ….int8.onnx, or just encoder.onnx."""

    tokens: str
    encoder: str
    decoder: str
    joiner: str

    @classmethod
    def find(cls, folder: Path) -> SherpaModel:
        """The parts of one model, the first if there are several; its 8-bit files only where others are missing.

        Raises `ModelLoadError` for a folder that lacks one.
        """
        if not folder.is_dir():
            raise ModelLoadError("there is no such folder")
        if not (folder / "tokens.txt").is_file():
            raise ModelLoadError("the folder has no tokens.txt")
        found: dict[str, dict[str, Path]] = {part: {} for part in _PARTS}  # by what stands behind the part in their names
        for part, stems in found.items():
            for path in sorted(folder.glob(f"{part}*.onnx"), key=lambda path: ".int8" in path.name):
                stems.setdefault(path.name[len(part) :].replace(".int8", ""), path)
        for part, stems in found.items():
            if not stems:
                raise ModelLoadError(f"the folder has no {part}*.onnx")
        whole = sorted(set.intersection(*map(set, found.values())))
        if not whole:
            raise ModelLoadError("its encoder, decoder and joiner are not of one model: their names differ behind that word")
        return cls(str(folder / "tokens.txt"), *(str(found[part][whole[0]]) for part in _PARTS))

    def load(self, keywords: str, threshold: float) -> Any:
        """A `sherpa_onnx.KeywordSpotter`. `keywords`: lines of tokens and options, as in keywords.txt.

        The library ends the whole process for a model that it cannot use: `check` first.
        """
        sherpa: Any = importlib.import_module(PACKAGE)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keywords.txt")
            Path(path).write_text(keywords, encoding="utf-8")
            return sherpa.KeywordSpotter(
                tokens=self.tokens,
                encoder=self.encoder,
                decoder=self.decoder,
                joiner=self.joiner,
                keywords_file=path,
                keywords_threshold=threshold,
                num_threads=1,
            )

    def check(self, keywords: str, threshold: float) -> None:
        """Have another process load it and hear some silence. Takes about a second. Raises `ModelLoadError`."""
        paths = [self.tokens, self.encoder, self.decoder, self.joiner]
        task = json.dumps({"paths": paths, "keywords": keywords, "threshold": threshold})
        try:
            trial = subprocess.run(
                [sys.executable, "-c", _TRIAL], input=task.encode(), capture_output=True, timeout=_TRIAL_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ModelLoadError(f"it cannot be tried: {error}") from error
        if trial.returncode:
            told = trial.stderr.decode(errors="replace").strip().splitlines() or [f"the trial ended with {trial.returncode}"]
            raise ModelLoadError(f"sherpa-onnx cannot use it: {_SOURCE.sub('', told[-1])}")

    @classmethod
    def run_trial(cls) -> None:
        """What `check` runs in the other process."""
        task = json.load(sys.stdin)
        spotter = cls(*task["paths"]).load(task["keywords"], task["threshold"])
        stream = spotter.create_stream()
        stream.accept_waveform(RATE, np.zeros(_TRIAL_SOUND, np.float32))
        while spotter.is_ready(stream):
            spotter.decode_stream(stream)
