from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import damaged, memory_limit
from safetensors.numpy import save_file

from trivium.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from trivium.models import safetensors as safetensors_module
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.safetensors import SafetensorsFolder

INDEX = "model.safetensors.index.json"


def raw_file(header: object, data: bytes = b"") -> bytes:
    """A safetensors file as bytes, right or wrong; `header` is text or becomes JSON."""
    encoded = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


SOUND = raw_file(
    {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], [0, 24]),
        "b": entry("BF16", [4], [24, 32]),
        "c": entry("I64", [1], [32, 40]),
        "scalar": entry("F32", [], [40, 44]),
        "empty": entry("F16", [0, 4], [44, 44]),
    },
    bytes(range(44)),
)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(data: bytes) -> SafetensorsFolder:
        (tmp_path / "model.safetensors").write_bytes(data)
        return SafetensorsFolder.open(tmp_path)

    return load


def test_paddle_calls_bfloat16_u16(load: Any) -> None:
    file = load(raw_file({"w": entry("U16", [2], [0, 4])}, np.array([0x3F80, 0xC000], np.uint16).tobytes()))
    tensor = file.tensor("w")
    assert tensor.type == TensorType.BF16
    assert bytes(tensor.data) == bytes([0x80, 0x3F, 0x00, 0xC0])


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder with two files and their index."""
    save_file({"a": np.arange(4, dtype=np.float32), "unlisted": np.zeros(2, np.float32)}, tmp_path / "part-1.safetensors")
    save_file({"b": np.ones((2, 2), np.float16), "ids": np.zeros(2, np.int64)}, tmp_path / "part-2.safetensors")
    write_index(tmp_path, {"a": "part-1.safetensors", "b": "part-2.safetensors", "ids": "part-2.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": weight_map}))


class TestSoundFolders:
    def test_tensors_equal_what_the_safetensors_package_wrote(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "model.embed_tokens.weight": rng.standard_normal((5, 7), dtype=np.float32),
            "model.norm.weight": rng.standard_normal(3).astype(np.float16),
            "experts": rng.standard_normal((2, 3, 4), dtype=np.float32),
        }
        save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
        folder = SafetensorsFolder.open(tmp_path)
        assert folder.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            tensor = folder.tensor(name)
            assert isinstance(tensor, Tensor)
            assert tensor.name == name
            assert tensor.type == {"f4": TensorType.F32, "f2": TensorType.F16}[array.dtype.str[1:]]
            assert tensor.shape == array.shape
            assert tensor.data.tobytes() == array.tobytes()

    def test_bf16(self, load: Any) -> None:
        tensor = load(SOUND).tensor("b")
        assert tensor.type == TensorType.BF16
        assert tensor.shape == (4,)
        assert tensor.data.tolist() == list(range(24, 32))

    def test_tensors_are_flat_read_only_views(self, load: Any) -> None:
        data = load(SOUND).tensor("a").data
        assert data.dtype == np.uint8
        assert data.tolist() == list(range(24))
        assert not data.flags.writeable
        assert not data.flags.owndata

    def test_shards(self, sharded: Path) -> None:
        folder = SafetensorsFolder.open(sharded)
        assert list(folder.tensors) == ["a", "b"]
        assert folder.tensor("a").data.tobytes() == np.arange(4, dtype=np.float32).tobytes()
        assert folder.tensor("b").data.tobytes() == np.ones(4, np.float16).tobytes()
        assert "ids" in folder
        assert "unlisted" not in folder

    def test_shards_may_be_links(self, sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("snapshot")
        for path in sharded.iterdir():
            (folder / path.name).symlink_to(path)
        assert list(SafetensorsFolder.open(folder).tensors) == ["a", "b"]

    def test_one_file_is_preferred_to_an_index(self, sharded: Path) -> None:
        (sharded / "model.safetensors").write_bytes(SOUND)
        assert list(SafetensorsFolder.open(sharded).tensors) == ["a", "b"]
        assert "scalar" in SafetensorsFolder.open(sharded)

    def test_folder_with_one_file_of_another_name(self, tmp_path: Path) -> None:
        (tmp_path / "weights.safetensors").write_bytes(SOUND)
        (tmp_path / "optimizer.pt").write_bytes(b"never read")
        assert "a" in SafetensorsFolder.open(tmp_path)

    def test_path_of_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "weights.safetensors").write_bytes(SOUND)
        assert "a" in SafetensorsFolder.open(str(tmp_path / "weights.safetensors"))

    def test_path_of_an_index(self, sharded: Path) -> None:
        assert list(SafetensorsFolder.open(sharded / INDEX).tensors) == ["a", "b"]

    def test_padded_header_without_metadata_and_with_extra_fields(self, load: Any) -> None:
        padded = json.dumps({"a": {**entry(), "note": 1}}) + "    "
        assert load(raw_file(padded, bytes(8))).tensor("a").shape == (2,)

    def test_contains(self, load: Any) -> None:
        folder = load(SOUND)
        assert "a" in folder
        assert "c" in folder
        assert "d" not in folder
        assert "__metadata__" not in folder
        assert 3 not in folder

    def test_close_unmaps_the_files(self, tmp_path: Path) -> None:
        path = tmp_path / "to-be-closed.safetensors"
        path.write_bytes(SOUND)
        folder = SafetensorsFolder.open(path)
        assert path.name in Path("/proc/self/maps").read_text()
        folder.close()
        assert path.name not in Path("/proc/self/maps").read_text()
        assert "a" not in folder
        assert "c" not in folder

    def test_a_view_outlives_close(self, load: Any) -> None:
        folder = load(SOUND)
        data = folder.tensor("a").data
        folder.close()
        assert data.tolist() == list(range(24))


class TestRefusedTensors:
    def test_missing(self, load: Any) -> None:
        with pytest.raises(ModelLoadError, match=r"there is no tensor 'lm_head\.weight'") as caught:
            load(SOUND).tensor("lm_head.weight")
        assert type(caught.value) is ModelLoadError

    @pytest.mark.parametrize(
        ("dtype", "size"),
        [("I64", 16), ("U8", 2), ("BOOL", 2), ("F8_E4M3", 2), ("F4", 1), ("F64", 16), ("FUTURE", 5)],
    )
    def test_dtype(self, load: Any, dtype: str, size: int) -> None:
        folder = load(raw_file({"w": entry(dtype, [2], [0, size])}, bytes(size)))
        assert "w" in folder
        assert folder.tensors == {}
        with pytest.raises(UnsupportedModelError, match=f"tensor 'w' has dtype {dtype}; supported are F32, F16, BF16"):
            folder.tensor("w")

    def test_dtype_in_a_shard(self, sharded: Path) -> None:
        with pytest.raises(UnsupportedModelError, match="tensor 'ids' has dtype I64"):
            SafetensorsFolder.open(sharded).tensor("ids")

    @pytest.mark.parametrize(("name", "shape"), [("scalar", r"\[\]"), ("empty", r"\[0, 4\]")])
    def test_nothing_to_multiply_with(self, load: Any, name: str, shape: str) -> None:
        with pytest.raises(
            UnsupportedModelError, match=f"tensor '{name}' has the shape {shape}, without a dimension or an element"
        ):
            load(SOUND).tensor(name)


class TestRefusedFolders:
    @pytest.mark.parametrize("name", ["none", "none.safetensors"])
    def test_missing(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ModelNotFoundError, match=f"{name}: no such file or folder"):
            SafetensorsFolder.open(tmp_path / name)

    def test_without_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ModelNotFoundError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
            SafetensorsFolder.open(tmp_path)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model_state.pdparams", "consolidated.00.pth"])
    def test_pickled_weights(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x80\x04.")
        message = f"has no .safetensors file but {name}: pickled weights can run code and are never read; convert"
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(UnsupportedModelError, match=message):
                SafetensorsFolder.open(path)

    def test_several_files_without_an_index(self, sharded: Path) -> None:
        (sharded / INDEX).unlink()
        with pytest.raises(ModelLoadError, match=r"has 2 \.safetensors files but no model\.safetensors\.index\.json"):
            SafetensorsFolder.open(sharded)

    def test_circle_of_links(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        with pytest.raises(ModelLoadError, match="cannot be read"):
            SafetensorsFolder.open(tmp_path / "a")

    def test_weights_that_are_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").mkdir()
        with pytest.raises(ModelLoadError, match="is not a regular file"):
            SafetensorsFolder.open(tmp_path)

    def test_weights_that_are_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "model.safetensors")
        with pytest.raises(ModelLoadError, match="is not a regular file"):
            SafetensorsFolder.open(tmp_path)

    def test_impossible_name(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match="cannot be read"):
            SafetensorsFolder.open(tmp_path / "a\0b")


class TestDamagedIndex:
    @pytest.mark.parametrize(
        "shard",
        [
            "../part.safetensors",
            "/etc/part.safetensors",
            "sub/part.safetensors",
            "..\\p.safetensors",
            "..",
            "",
            "part-1.bin",
            INDEX,
        ],
    )
    def test_file_name_that_leads_elsewhere(self, sharded: Path, shard: str) -> None:
        write_index(sharded, {"a": shard})
        with pytest.raises(ModelLoadError, match=r"file of tensor 'a' must be the plain name of a \.safetensors file, got '"):
            SafetensorsFolder.open(sharded)

    @pytest.mark.parametrize("shard", [None, 3, ["part-1.safetensors"], {}])
    def test_file_name_of_another_type(self, sharded: Path, shard: object) -> None:
        write_index(sharded, {"a": shard})
        with pytest.raises(ModelLoadError, match="file of tensor 'a' must be the plain name"):
            SafetensorsFolder.open(sharded)

    @pytest.mark.parametrize("shard", ["nul\0.safetensors", "\ud800.safetensors", "x" * 5000 + ".safetensors"])
    def test_impossible_file_name(self, sharded: Path, shard: str) -> None:
        write_index(sharded, {"a": shard})
        with pytest.raises(ModelLoadError, match="cannot be read"):
            SafetensorsFolder.open(sharded)

    def test_missing_file(self, sharded: Path) -> None:
        (sharded / "part-2.safetensors").unlink()
        with pytest.raises(
            ModelLoadError, match=r"index\.json: names the file 'part-2\.safetensors', which is missing"
        ) as caught:
            SafetensorsFolder.open(sharded)
        assert type(caught.value) is ModelLoadError

    def test_tensor_that_its_file_lacks(self, sharded: Path) -> None:
        write_index(sharded, {"b": "part-1.safetensors"})
        with pytest.raises(ModelLoadError, match=r"says that tensor 'b' is in part-1\.safetensors, which does not have it"):
            SafetensorsFolder.open(sharded)

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            ("{}", "weight_map must be an object, got None"),
            ('{"weight_map": ["a"]}', r"weight_map must be an object, got \['a'\]"),
            ("[]", r"its JSON must be an object, got \[\]"),
            ('{"weight_map": {"a": "x", "a": "y"}}', "its JSON is damaged: key 'a' is there twice"),
            ('{"weight_map": {', "its JSON is damaged"),
            ("[" * 100_000, "its JSON is nested too deep"),
        ],
    )
    def test_json(self, tmp_path: Path, index: str, message: str) -> None:
        (tmp_path / INDEX).write_text(index)
        with pytest.raises(ModelLoadError, match=rf"index\.json: {message}"):
            SafetensorsFolder.open(tmp_path)

    def test_above_the_limit(self, sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safetensors_module, "MAX_HEADER_BYTES", 20)
        with pytest.raises(ModelLoadError, match=r"index\.json: must have at most 20 bytes, has \d+"):
            SafetensorsFolder.open(sharded)


DAMAGED = {
    "shorter than a length": (b"1234567", "truncated: it has 7 bytes, a header's length alone takes 8"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "truncated: its header ends at 108, the file at 10"),
    "header above the limit": (
        struct.pack("<Q", 2**63) + b"{}",
        f"not a safetensors file: its header would have {2**63} bytes, the limit is 100000000",
    ),
    "empty header": (raw_file(""), "its JSON is damaged"),
    "header is a list": (raw_file([]), r"its JSON must be an object, got \[\]"),
    "header is not UTF-8": (struct.pack("<Q", 4) + b'{"\xff"', "its JSON is damaged: 'utf-8' codec"),
    "tensor twice": (raw_file('{"a": {}, "b": {}, "a": {}}'), "its JSON is damaged: key 'a' is there twice"),
    "field twice": (raw_file('{"a": {"dtype": "F32", "dtype": "F16"}}'), "key 'dtype' is there twice"),
    "not a number": (raw_file('{"a": NaN}'), "its JSON is damaged: NaN is not JSON"),
    "a number of 5000 digits": (raw_file('{"a": ' + "9" * 5000 + "}"), "its JSON is damaged|must be an object"),
    "nested too deep": (raw_file('{"a":' * 50_000), "its JSON is nested too deep"),
    "metadata is a list": (raw_file({"__metadata__": []}), r"__metadata__ must be an object of strings, got \[\]"),
    "metadata of numbers": (raw_file({"__metadata__": {"x": 1}}), "__metadata__ must be an object of strings, got {'x': 1}"),
    "entry is null": (raw_file({"a": None}), "tensor 'a': must be an object with dtype, shape and data_offsets, got None"),
    "entry is empty": (raw_file({"a": {}}), "tensor 'a': dtype must be a string, got None"),
    "dtype is a number": (raw_file({"a": entry(32)}, bytes(8)), "dtype must be a string, got 32"),
    "shape is text": (raw_file({"a": entry("F32", "2")}, bytes(8)), "shape must be a list of at most 8 sizes, got '2'"),
    "shape is missing": (raw_file({"a": entry("F32", None)}, bytes(8)), "shape must be a list of at most 8 sizes, got None"),
    "negative size": (raw_file({"a": entry("F32", [-2, -1])}, bytes(8)), r"shape must be .*, got \[-2, -1\]"),
    "size of true": (raw_file({"a": entry("F32", [2, True])}, bytes(8)), r"shape must be .*, got \[2, True\]"),
    "size is a float": (raw_file({"a": entry("F32", [2.0])}, bytes(8)), r"shape must be .*, got \[2\.0\]"),
    "size that overflows": (raw_file({"a": entry("F32", [2**63])}, bytes(8)), r"shape must be .*, got \[9223372036854775808\]"),
    "nine dimensions": (raw_file({"a": entry("F32", [1] * 9)}, bytes(8)), "shape must be a list of at most 8 sizes"),
    "shape product that overflows": (raw_file({"a": entry("F32", [2**62, 2**62])}, bytes(8)), "does not take the 8 bytes"),
    "offsets are missing": (
        raw_file({"a": entry(offsets=None)}, bytes(8)),
        "data_offsets must be two ascending offsets, got None",
    ),
    "one offset": (raw_file({"a": entry(offsets=[8])}, bytes(8)), r"data_offsets must be two ascending offsets, got \[8\]"),
    "negative offset": (raw_file({"a": entry(offsets=[-8, 0])}, bytes(8)), r"data_offsets must be .*, got \[-8, 0\]"),
    "offsets descend": (raw_file({"a": entry(offsets=[8, 0])}, bytes(8)), r"data_offsets must be .*, got \[8, 0\]"),
    "offset past the end": (
        raw_file({"a": entry(offsets=[0, 8])}, bytes(7)),
        "tensor 'a': takes bytes 0 to 8 of the 7 that are there",
    ),
    "fewer bytes than the shape": (
        raw_file({"a": entry("F32", [2], [0, 4])}, bytes(8)),
        r"tensor 'a': F32 of shape \[2\] does not take the 4 bytes of its data_offsets",
    ),
    "more bytes than an unused dtype takes": (
        raw_file({"a": entry("F4", [2], [0, 2])}, bytes(2)),
        r"F4 of shape \[2\] does not take",
    ),
    "overlap": (
        raw_file({"b": entry(offsets=[4, 12]), "a": entry(offsets=[0, 8])}, bytes(12)),
        "tensors 'a' and 'b' overlap",
    ),
    "same bytes twice": (raw_file({"a": entry(), "b": entry()}, bytes(8)), "tensors 'a' and 'b' overlap"),
}


class TestDamage:
    @pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED.keys())
    def test_names_the_file_and_the_fault(self, load: Any, data: bytes, message: str) -> None:
        with memory_limit(20_000_000), pytest.raises(ModelLoadError, match=rf"model\.safetensors: .*(?:{message})") as caught:
            load(data)
        assert type(caught.value) is ModelLoadError

    def test_truncated_anywhere(self, load: Any) -> None:
        for length in range(len(SOUND)):
            with pytest.raises(ModelLoadError, match=r"truncated|is empty|that are there"):
                load(SOUND[:length])


def touch_everything(path: Path) -> None:
    folder = SafetensorsFolder.open(path)
    for name, tensor in folder.tensors.items():
        assert name in folder
        assert tensor.data.nbytes == tensor.rows * tensor.cols * tensor.type.block_bytes
        tensor.data.sum()
    for name in ("a", "b", "c", "scalar"):
        folder.tensor(name)


def fuzz(target: Path, opened: Path, data: bytes) -> None:
    """Only a `ModelLoadError` that names a file of the folder may come of `data` in `target`."""
    target.write_bytes(data)
    message = None
    with memory_limit(2_000_000):
        try:
            touch_everything(opened)
        except ModelLoadError as error:
            message = str(error)
    assert message is None or message.startswith(str(opened))


@settings(max_examples=400, deadline=None)
@given(
    data=st.one_of(
        damaged(SOUND), damaged(SOUND[8:-44]).map(lambda header: struct.pack("<Q", len(header)) + header + SOUND[-44:])
    )
)
def test_fuzz_file(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    fuzz(path, path, data)


SOUND_INDEX = json.dumps({"weight_map": {"a": "part.safetensors", "b": "part.safetensors"}}).encode()


@settings(max_examples=300, deadline=None)
@given(data=damaged(SOUND_INDEX))
def test_fuzz_index(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed-index"
    folder.mkdir(exist_ok=True)
    (folder / "part.safetensors").write_bytes(SOUND)
    fuzz(folder / INDEX, folder, data)
