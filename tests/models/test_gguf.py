from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import damaged, memory_limit

from trivium.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from trivium.models import gguf as gguf_module
from trivium.models.checkpoint import Tensor, TensorType
from trivium.models.gguf import GGUFFile

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
NUMBER_TYPES = [
    *[(U8, "u1"), (U16, "<u2"), (U32, "<u4"), (U64, "<u8"), (I8, "i1"), (I16, "<i2"), (I32, "<i4"), (I64, "<i8")],
    *[(F32, "<f4"), (F64, "<f8"), (BOOL, "?")],
]


def text(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def row(name: str | bytes, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """A row of the tensor table."""
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def raw_file(
    entries: list[bytes] | None = None,
    rows: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file as bytes, right or wrong."""
    entries, rows = entries or [], rows or []
    num_tensors = len(rows) if num_tensors is None else num_tensors
    num_entries = len(entries) if num_entries is None else num_entries
    header = magic + struct.pack("<IQQ", version, num_tensors, num_entries) + b"".join(entries) + b"".join(rows)
    return header + (bytes(-len(header) % alignment) + data if rows else b"")


SOUND = raw_file(
    [
        entry("general.architecture", STRING, text("llama")),
        entry("llama.block_count", U32, struct.pack("<I", 2)),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, text("a") + text("") + text("ünï"))),
        entry("tokenizer.ggml.scores", ARRAY, array(F32, 3, struct.pack("<3f", 0.0, -1.0, 2.5))),
        entry("nested", ARRAY, array(ARRAY, 2, array(BOOL, 2, b"\0\1") + array(I16, 1, b"\1\0"))),
    ],
    [row("a", [32, 2], TensorType.Q4_0), row("b", [3], TensorType.F32, 64)],
    bytes(range(76)),
)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(data: bytes) -> GGUFFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return GGUFFile.open(path)

    return load


def write_all_types(path: Path) -> dict[str, int]:
    """A file with a tensor of every supported type; returns the types by name."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    types = {}
    for kind in TensorType:
        values = rng.standard_normal((3, 512), dtype=np.float32)
        oracle = GGMLQuantizationType(int(kind))
        try:
            data = gguf.quants.quantize(values, oracle)
        except NotImplementedError:
            data = rng.integers(0, 256, (3, 512 // kind.block_size * kind.block_bytes), dtype=np.uint8)
        name = f"blk.0.{kind.name}"
        writer.add_tensor(name, data, raw_dtype=oracle)
        types[name] = int(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def oracle_tensors(path: Path) -> dict[str, tuple[int, list[int], bytes]]:
    """Type, dimensions in ggml's order and bytes of each tensor, as the gguf package reads them."""
    return {
        tensor.name: (int(tensor.tensor_type), [int(size) for size in tensor.shape], tensor.data.tobytes())
        for tensor in GGUFReader(path).tensors
    }


class TestSoundFiles:
    def test_tensors_of_every_type_equal_the_gguf_package(self, tmp_path: Path) -> None:
        path = tmp_path / "types.gguf"
        types = write_all_types(path)
        file = GGUFFile.open(path)
        assert {name: int(tensor.type) for name, tensor in file.tensors.items()} == types
        found = {name: (int(t.type), list(reversed(t.shape)), t.data.tobytes()) for name, t in file.tensors.items()}
        assert found == oracle_tensors(path)

    def test_tensors_are_flat_read_only_views(self, load: Any) -> None:
        tensor = load(SOUND).tensor("a")
        assert isinstance(tensor, Tensor)
        assert tensor.shape == (2, 32)
        assert tensor.data.dtype == np.uint8
        assert tensor.data.tolist() == list(range(36))
        assert not tensor.data.flags.writeable
        assert not tensor.data.flags.owndata

    def test_metadata_of_every_type_equals_the_gguf_package(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.gguf"
        writer = GGUFWriter(path, "qwen3")
        writer.add_uint8("u8", 255)
        writer.add_int8("i8", -128)
        writer.add_uint16("u16", 65535)
        writer.add_int16("i16", -32768)
        writer.add_uint32("u32", 2**32 - 1)
        writer.add_int32("i32", -(2**31))
        writer.add_uint64("u64", 2**64 - 1)
        writer.add_int64("i64", -(2**63))
        writer.add_float32("f32", 1e-5)
        writer.add_float64("f64", 1e-5)
        writer.add_bool("yes", True)
        writer.add_bool("no", False)
        writer.add_string("text", "grüße 🙂")
        writer.add_array("strings", ["", "a", "日本"])
        writer.add_array("integers", [1, -2, 3])
        writer.add_array("floats", [1.5, -2.5])
        writer.add_array("booleans", [True, False])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        file = GGUFFile.open(path)
        oracle = {key: field.contents() for key, field in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
        plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}
        assert plain == oracle
        assert {key: type(value) for key, value in plain.items()} == {key: type(value) for key, value in oracle.items()}

    @pytest.mark.parametrize(("kind", "dtype"), NUMBER_TYPES)
    def test_number_arrays_are_numpy_copies(self, load: Any, kind: int, dtype: str) -> None:
        values = np.array([0, 1, 1], dtype)
        found = load(raw_file([entry("x", ARRAY, array(kind, 3, values.tobytes()))])).metadata["x"]
        assert found.dtype == values.dtype
        assert found.tolist() == values.tolist()
        assert found.flags.owndata

    @pytest.mark.parametrize(("kind", "empty"), [(F32, []), (BOOL, []), (STRING, []), (ARRAY, [])])
    def test_empty_arrays(self, load: Any, kind: int, empty: list[Any]) -> None:
        assert list(load(raw_file([entry("x", ARRAY, array(kind, 0))])).metadata["x"]) == empty

    def test_nested_arrays(self, load: Any) -> None:
        booleans, integers = load(SOUND).metadata["nested"]
        assert booleans.tolist() == [False, True]
        assert integers.tolist() == [1]

    def test_bytes_that_are_not_utf8_are_replaced_in_values(self, load: Any) -> None:
        tokens = array(STRING, 2, text(b"a\xff") + text(b"\xe6\x97"))
        file = load(raw_file([entry("tokens", ARRAY, tokens), entry("name", STRING, text(b"\xc3("))]))
        assert file.metadata == {"tokens": ["a\ufffd", "\ufffd"], "name": "\ufffd("}

    def test_version_2(self, load: Any) -> None:
        assert load(SOUND).version == 3
        file = load(SOUND[:4] + struct.pack("<I", 2) + SOUND[8:])
        assert file.version == 2
        assert file.tensor("b").data.tolist() == list(range(64, 76))

    @pytest.mark.parametrize("alignment", [1, 8, 256])
    def test_other_alignments(self, load: Any, alignment: int) -> None:
        entries = [entry("general.alignment", U32, struct.pack("<I", alignment))]
        rows = [row("a", [2], 0), row("b", [1], 0, alignment * 8)]
        data = b"12345678" + bytes(alignment * 8 - 8) + b"abcd"
        file = load(raw_file(entries, rows, data, alignment=alignment))
        assert file.tensor("a").data.tobytes() == b"12345678"
        assert file.tensor("b").data.tobytes() == b"abcd"

    def test_file_without_tensors_needs_no_padding(self, load: Any) -> None:
        assert load(raw_file([entry("a", U8, b"\7")])).metadata == {"a": 7}

    def test_path_may_be_a_string(self, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(SOUND)
        assert GGUFFile.open(str(tmp_path / "m.gguf")).path == tmp_path / "m.gguf"

    def test_contains(self, load: Any) -> None:
        file = load(SOUND)
        assert "a" in file
        assert "c" not in file
        assert 3 not in file

    def test_missing_tensor(self, load: Any) -> None:
        with pytest.raises(ModelLoadError, match=r"model\.gguf: there is no tensor 'output\.weight'"):
            load(SOUND).tensor("output.weight")

    def test_close_unmaps_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "to-be-closed.gguf"
        path.write_bytes(SOUND)
        file = GGUFFile.open(path)
        assert path.name in Path("/proc/self/maps").read_text()
        file.close()
        assert path.name not in Path("/proc/self/maps").read_text()
        assert "a" not in file
        assert file.metadata["llama.block_count"] == 2

    def test_a_view_outlives_close(self, load: Any) -> None:
        file = load(SOUND)
        data = file.tensor("b").data
        file.close()
        assert data.tolist() == list(range(64, 76))

    def test_large_vocabulary_is_read_fast(self, load: Any) -> None:
        tokens = array(STRING, 50_000, b"".join(text(f"Ġtoken{index}") for index in range(50_000)))
        merges = array(STRING, 50_000, b"".join(text(f"Ġ m{index}") for index in range(50_000)))
        data = raw_file([entry("tokens", ARRAY, tokens), entry("merges", ARRAY, merges)])
        start = time.process_time()
        file = load(data)
        assert time.process_time() - start < 0.5
        assert file.metadata["tokens"][-1] == "Ġtoken49999"
        assert len(file.metadata["merges"]) == 50_000


class TestUnsupported:
    @pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ2_XXS", "IQ3_S", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "I32", "F64"])
    def test_tensor_type(self, tmp_path: Path, kind: str) -> None:
        oracle = GGMLQuantizationType[kind]
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[oracle]
        path = tmp_path / "model.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_tensor("blk.0.ffn_up.weight", np.zeros((2, 256 // block_size * block_bytes), np.uint8), raw_dtype=oracle)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(UnsupportedModelError) as caught:
            GGUFFile.open(path)
        message = str(caught.value)
        assert f"tensor 'blk.0.ffn_up.weight' has element type {kind};" in message
        assert ", ".join(kind.name for kind in TensorType) in message
        assert "Q4_K_M or Q8_0" in message

    def test_every_type_of_the_gguf_package_is_supported_or_named(self, load: Any) -> None:
        for oracle in GGMLQuantizationType:
            if int(oracle) not in list(TensorType):
                with pytest.raises(UnsupportedModelError, match=f"element type {oracle.name};"):
                    load(raw_file([], [row("a", [256], int(oracle))], bytes(4096)))

    def test_unknown_tensor_type(self, load: Any) -> None:
        with pytest.raises(
            UnsupportedModelError, match="'a' has element type number 99, unknown to this version; supported are F32"
        ):
            load(raw_file([], [row("a", [256], 99)], bytes(4096)))

    def test_big_endian(self, tmp_path: Path) -> None:
        writer = GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(UnsupportedModelError, match=r"big\.gguf: a big endian GGUF file"):
            GGUFFile.open(tmp_path / "big.gguf")

    @pytest.mark.parametrize("version", [0, 1, 4, 77])
    def test_version(self, load: Any, version: int) -> None:
        with pytest.raises(UnsupportedModelError, match=rf"GGUF version must be one of \(2, 3\), got {version}"):
            load(raw_file(version=version))

    def test_split_file(self, load: Any) -> None:
        with pytest.raises(UnsupportedModelError, match=r"one of 3 parts of a split GGUF model.*llama-gguf-split --merge"):
            load(raw_file([entry("split.count", U16, struct.pack("<H", 3))]))

    @pytest.mark.parametrize("count", [0, 1])
    def test_split_of_one_part_is_whole(self, load: Any, count: int) -> None:
        assert load(raw_file([entry("split.count", U16, struct.pack("<H", count))])).metadata == {"split.count": count}


HUGE = 2**63
TABLE = [row("a", [8], 0)]

DAMAGED = {
    "another format": (raw_file(magic=b"GGML"), r"not a GGUF file: it starts with b'GGML'"),
    "too many metadata entries": (raw_file(num_entries=65_537), "number of metadata entries must be at most 65536, got 65537"),
    "too many tensors": (raw_file(num_tensors=HUGE), f"number of tensors must be at most 65536, got {HUGE}"),
    "more metadata entries than bytes": (
        raw_file(num_entries=60_000),
        "a header with 60000 metadata entries needs 780000 bytes",
    ),
    "more tensors than bytes": (raw_file(num_tensors=60_000), "a header with 60000 tensors needs 1920000 bytes"),
    "long key": (
        raw_file([struct.pack("<Q", HUGE) + bytes(20)]),
        f"key of metadata entry 0 must have at most 65535 bytes, got {HUGE}",
    ),
    "key past the end": (
        raw_file([struct.pack("<Q", 60_000) + bytes(20)]),
        "truncated: the key of metadata entry 0 needs 60000 bytes",
    ),
    "key is not UTF-8": (raw_file([entry(b"\xff", U8, b"\0")]), r"key of metadata entry 0 is not UTF-8: b'\\xff'"),
    "key twice": (raw_file([entry("k", U8, b"\0"), entry("k", U8, b"\1")]), "metadata key 'k' is there twice"),
    "unknown value type": (raw_file([entry("k", 13, bytes(8))]), "the value of 'k' has an unknown type, 13"),
    "unknown array type": (
        raw_file([entry("k", ARRAY, array(99, 1, bytes(8)))]),
        "the value of 'k' is an array of an unknown type, 99",
    ),
    "string past the end": (raw_file([entry("k", STRING, struct.pack("<Q", HUGE))]), f"the value of 'k' needs {HUGE} bytes"),
    "string in array past the end": (
        raw_file([entry("k", ARRAY, array(STRING, 2, text("ab") + struct.pack("<Q", 99)))]),
        "truncated: the value of 'k' needs 99 bytes at 67, there are 0",
    ),
    "array of strings that ends in a length": (
        raw_file([entry("k", ARRAY, array(STRING, 2, text("abcdefgh") + b"1234"))]),
        "truncated: the value of 'k' needs 8 bytes at 65, there are 4",
    ),
    "huge array of numbers": (
        raw_file([entry("k", ARRAY, array(F64, HUGE))]),
        f"the value of 'k', an array of {HUGE} elements, needs {8 * HUGE} bytes",
    ),
    "huge array of strings": (
        raw_file([entry("k", ARRAY, array(STRING, 2**60))]),
        f"an array of {2**60} elements, needs {2**63} bytes",
    ),
    "huge array of booleans": (raw_file([entry("k", ARRAY, array(BOOL, 2**40))]), f"an array of {2**40} elements, needs"),
    "huge array of arrays": (raw_file([entry("k", ARRAY, array(ARRAY, 2**40))]), f"an array of {2**40} elements, needs"),
    "arrays nested too deep": (
        raw_file([entry("k", ARRAY, array(ARRAY, 1) * 4 + array(U8, 1, b"\0"))]),
        "the value of 'k' nests arrays more than 4 deep",
    ),
    "arrays nested absurdly deep": (raw_file([entry("k", ARRAY, array(ARRAY, 1) * 5000)]), "nests arrays more than 4 deep"),
    "boolean of 2": (raw_file([entry("k", BOOL, b"\2")]), "'k' holds a boolean that is neither 0 nor 1: 2"),
    "array with a boolean of 2": (
        raw_file([entry("k", ARRAY, array(BOOL, 2, b"\1\2"))]),
        "holds a boolean that is neither 0 nor 1: 2",
    ),
    "split count of text": (raw_file([entry("split.count", STRING, text("2"))]), "split.count must be an integer, got a str"),
    "alignment of zero": (
        raw_file([entry("general.alignment", U32, bytes(4))]),
        "general.alignment must be a power of two, got 0",
    ),
    "alignment of 24": (
        raw_file([entry("general.alignment", U8, b"\x18")]),
        "general.alignment must be a power of two, got 24",
    ),
    "alignment below zero": (raw_file([entry("general.alignment", I8, b"\x80")]), "must be a power of two, got -128"),
    "alignment of true": (raw_file([entry("general.alignment", BOOL, b"\1")]), "must be an integer, got a bool"),
    "alignment of a float": (
        raw_file([entry("general.alignment", F32, struct.pack("<f", 32))]),
        "must be an integer, got a float",
    ),
    "alignment past the end": (
        raw_file([entry("general.alignment", U64, struct.pack("<Q", HUGE))], TABLE, bytes(64)),
        "tensor 'a' takes bytes 0 to 32 of the 0 that are there",
    ),
    "tensor name is not UTF-8": (raw_file([], [row(b"\xc3(", [8])], bytes(32)), "the name of tensor 0 is not UTF-8"),
    "tensor name too long": (
        raw_file([], [row(b"n" * 65_536, [8])], bytes(32)),
        "the name of tensor 0 must have at most 65535 bytes",
    ),
    "tensor twice": (raw_file([], [row("a", [8]), row("a", [8], 0, 32)], bytes(64)), "tensor 'a' is there twice"),
    "no dimensions": (raw_file([], [row("a", []) + bytes(8)], bytes(64)), "tensor 'a' must have 1 to 4 dimensions, got 0"),
    "five dimensions": (raw_file([], [row("a", [1] * 5)], bytes(64)), "tensor 'a' must have 1 to 4 dimensions, got 5"),
    "dimension of zero": (raw_file([], [row("a", [8, 0])], bytes(64)), r"tensor 'a' has a dimension of zero: \[8, 0\]"),
    "dimensions that overflow": (
        raw_file([], [row("a", [2**32, 2**32, 2])], bytes(64)),
        f"tensor 'a' takes bytes 0 to {2**67} of the 64 that are there",
    ),
    "rows that are not whole blocks": (
        raw_file([], [row("a", [48, 32], TensorType.Q4_K)], bytes(4096)),
        "tensor 'a' has rows of 48 elements, not a multiple of Q4_K's 256",
    ),
    "unaligned offset": (
        raw_file([], [row("a", [8], 0, 8)], bytes(64)),
        "'a' is at offset 8, not a multiple of the alignment 32",
    ),
    "offset past the end": (
        raw_file([], [row("a", [8], 0, 64)], bytes(64)),
        "'a' takes bytes 64 to 96 of the 64 that are there",
    ),
    "offset that overflows": (
        raw_file([], [row("a", [8], 0, 2**64 - 32)], bytes(64)),
        f"'a' takes bytes {2**64 - 32} to {2**64} of the 64 that are there",
    ),
    "no padding after the table": (raw_file([], TABLE)[:-1], "'a' takes bytes 0 to 32 of the 0 that are there"),
    "overlapping tensors": (
        raw_file([], [row("late", [8], 0, 32), row("early", [9], 0, 0)], bytes(64)),
        "tensors 'early' and 'late' overlap",
    ),
    "tensors at the same place": (raw_file([], [row("a", [8]), row("b", [8])], bytes(64)), "tensors 'a' and 'b' overlap"),
}


class TestDamage:
    @pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED.keys())
    def test_names_the_file_and_the_fault(self, load: Any, data: bytes, message: str) -> None:
        with memory_limit(1_000_000), pytest.raises(ModelLoadError, match=rf"model\.gguf: .*{message}") as caught:
            load(data)
        assert type(caught.value) is ModelLoadError

    def test_header_above_the_limit(self, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gguf_module, "MAX_HEADER_BYTES", 100)
        with pytest.raises(
            ModelLoadError, match="'k' does not end within the first 100 bytes, the most that a header may take"
        ):
            load(raw_file([entry("k", STRING, text("x" * 100))]))

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match=r"none\.gguf: no such file"):
            GGUFFile.open(tmp_path / "none.gguf")

    def test_truncated_anywhere(self, load: Any) -> None:
        for length in range(len(SOUND)):
            with pytest.raises(ModelLoadError, match=r"truncated|is empty|that are there"):
                load(SOUND[:length])


def touch_everything(path: Path) -> None:
    file = GGUFFile.open(path)
    repr(file.metadata)
    for name, tensor in file.tensors.items():
        assert name in file
        assert tensor.data.nbytes == tensor.rows * tensor.cols // tensor.type.block_size * tensor.type.block_bytes
        tensor.data.sum()
    file.close()


@settings(max_examples=500, deadline=None)
@given(data=st.one_of(damaged(SOUND), damaged(SOUND[:24]).map(lambda start: start + SOUND[24:])))
def test_fuzz(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(data)
    message = None
    with memory_limit(500_000):
        try:
            touch_everything(path)
        except ModelLoadError as error:
            message = str(error)
    assert message is None or message.startswith(f"{path}: ")
