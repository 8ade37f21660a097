"""Make copies of OpenVINO's packages that take this machine for one without AVX-512.

    python benchmarks/hide_avx512/prepare.py --python ../peers/bin/python ../hidden

Some engines look at the processor by themselves and cannot be told to use less. The folder gets a private copy of the packages
in which every `cpuid` instruction is replaced by an invalid one of the same length, and the library that answers in its place
(hide_avx512.c). The instructions are found by disassembling, not by looking for their bytes. Run something in it with

    LD_PRELOAD=../hidden/hide_avx512.so PYTHONPATH=../hidden/packages ../peers/bin/python …

Needs objdump (binutils) and a C compiler. The copies are for measuring on this machine only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
from pathlib import Path

CPUID, UD0 = b"\x0f\xa2", b"\x0f\xff"
PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True, metavar="PATH", help="Python of the environment that has the packages")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("hide_avx512.c")
    library = options.folder / "hide_avx512.so"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source], check=True)
    for package in PACKAGES:
        target = options.folder / "packages" / package
        shutil.copytree(folder_of(package, options.python), target, dirs_exist_ok=True)
        for file in sorted(target.rglob("*.so*")):
            if file.is_file() and not file.is_symlink() and (count := patch(file)):
                print(f"{file.relative_to(options.folder)}: {count} instructions")


def folder_of(package: str, python: str) -> Path:
    program = f"import importlib.util; print(importlib.util.find_spec({package!r}).submodule_search_locations[0])"
    return Path(subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip())


def patch(file: Path) -> int:
    """Replace the `cpuid` instructions of a library. Returns how many there were."""
    content = bytearray(file.read_bytes())
    if CPUID not in content:
        return 0
    segments = executable_segments(content)
    addresses = find_instructions(file)
    for address in addresses:
        offset = file_offset(address, segments)
        if content[offset : offset + 2] != CPUID:
            raise SystemExit(f"{file}: no cpuid at {address:#x}")
        content[offset : offset + 2] = UD0
    file.write_bytes(content)
    return len(addresses)


def find_instructions(file: Path) -> list[int]:
    """Addresses of all `cpuid` instructions."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found = [line for line in process.stdout or () if re.fullmatch(r"\s*[0-9a-f]+:\s+cpuid\s*", line)]
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return [int(line.split(":")[0], 16) for line in found]


def executable_segments(content: bytes | bytearray) -> list[tuple[int, int, int]]:
    """Address, file offset and size of the segments of a 64-bit ELF file that hold code."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("not a 64-bit little-endian ELF file")
    table = struct.unpack_from("<Q", content, 32)[0]
    size, count = struct.unpack_from("<HH", content, 54)
    segments = []
    for place in range(table, table + size * count, size):
        kind, flags, offset, address, _, length = struct.unpack_from("<IIQQQQ", content, place)
        if kind == 1 and flags & 1:  # PT_LOAD, PF_X
            segments.append((address, offset, length))
    return segments


def file_offset(address: int, segments: list[tuple[int, int, int]]) -> int:
    for start, offset, length in segments:
        if start <= address < start + length:
            return address - start + offset
    raise SystemExit(f"{address:#x} lies in no code")


if __name__ == "__main__":
    main()
