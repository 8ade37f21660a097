from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from trivium.errors import ModelLoadError, ModelNotFoundError
from trivium.models.mapping import map_file


def test_gives_the_bytes_read_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x00\x01\xff")
    data = map_file(path)
    assert data.dtype == np.uint8
    assert data.tolist() == [0, 1, 255]
    assert not data.flags.writeable


def test_unmaps_with_the_last_view(tmp_path: Path) -> None:
    path = tmp_path / "mapped-file"
    path.write_bytes(b"x" * 100)
    view = map_file(path)[10:20]
    assert "mapped-file" in Path("/proc/self/maps").read_text()
    del view
    assert "mapped-file" not in Path("/proc/self/maps").read_text()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing: no such file"):
        map_file(tmp_path / "nothing")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ModelLoadError, match=r"empty: the file is empty"):
        map_file(tmp_path / "empty")


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is not a regular file"):
        map_file(tmp_path)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="is not a regular file"):
        map_file(tmp_path / "pipe")


def test_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        map_file(tmp_path / "a")


@pytest.mark.parametrize("name", ["nul\0byte", "surrogate\ud800", "x" * 5000])
def test_impossible_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        map_file(tmp_path / name)
