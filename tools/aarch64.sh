#!/usr/bin/env bash
# Trivium for 64-bit ARM on a machine of another kind: cross-compiled, and run by an aarch64 Python under emulation.
#
#   tools/aarch64.sh python         make build/aarch64/venv, whose bin/python is Debian's arm64 Python under qemu-aarch64
#   tools/aarch64.sh wheel FOLDER   build the aarch64 wheel into FOLDER
#   tools/aarch64.sh test [ARG…]    install that wheel there and run tests/native with each set of NEON kernels
#
# Everything lies in build/aarch64; nothing is installed on the machine itself. TRIVIUM_ARM_CPU names the CPU that qemu shows (max);
# PYTHON is a Python of this machine with pip (python3).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
home=$PWD/build/aarch64
sysroot=$home/sysroot
venv=$home/venv
python=$venv/bin/python

need() {
  command -v "$1" >/dev/null && return
  echo "tools/aarch64.sh: $1 is missing; on Debian: apt-get install $2" >&2
  exit 1
}

# apt with lists and a cache of its own, as if on an arm64 machine where nothing is installed.
arm_apt() {
  local tool=$1
  shift
  "$tool" -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
    -o Dir::State="$home/apt/state" -o Dir::State::status="$home/apt/status" -o Dir::Cache="$home/apt/cache" \
    -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$home/apt/sources" "$@"
}

# Debian's arm64 Python, its headers and libraries, unpacked into the sysroot. Prints the Python's name ("python3.11").
make_sysroot() {
  local complete=$sysroot/.complete name package
  if [ ! -f "$complete" ]; then
    rm -rf "$sysroot" "$home/apt"
    mkdir -p "$sysroot" "$home"/apt/{state/lists/partial,cache/archives/partial,sources}
    : >"$home/apt/status"
    { grep -lsE '://[^ ]*/debian(-security)?( |/|$)' /etc/apt/sources.list /etc/apt/sources.list.d/* || true; } |
      xargs -r cp -t "$home/apt/sources"
    if [ -z "$(ls -A "$home/apt/sources")" ]; then
      echo "tools/aarch64.sh: no Debian package source in /etc/apt: the arm64 Python comes from Debian" >&2
      exit 1
    fi
    echo "Fetching Debian's Python for arm64" >&2
    arm_apt apt-get update >&2
    name=$(arm_apt apt-cache depends python3 | grep -oE 'python3\.[0-9]+$' | head -n 1)
    arm_apt apt-get -y --no-install-recommends --download-only install "$name" "lib$name-dev" libstdc++6 >&2
    for package in "$home"/apt/cache/archives/*.deb; do
      dpkg-deb --extract "$package" "$sysroot"
    done
    # Debian's pyconfig.h includes the one of the architecture, by a path that the cross compiler does not search.
    cp "$sysroot/usr/include/aarch64-linux-gnu/$name/pyconfig.h" "$sysroot/usr/include/$name/pyconfig.h"
    rm -rf "$home/apt"
    echo "$name" >"$complete"
  fi
  cat "$complete"
}

# What the build and tests/native import, as aarch64 wheels beside the emulated Python.
make_python() {
  need qemu-aarch64 qemu-user
  need dpkg-deb dpkg
  local name version packages
  local wanted=(numpy gguf hypothesis pytest pytest-timeout scikit-build-core nanobind)
  name=$(make_sysroot)
  version=${name#python}
  packages=$venv/lib/$name/site-packages
  mkdir -p "$venv/bin" "$packages"
  echo "home = $sysroot/usr/bin" >"$venv/pyvenv.cfg"
  # A script, so that a process started as sys.executable is emulated, too.
  cat >"$python" <<WRAPPER
#!/bin/sh
exec qemu-aarch64 -cpu "\${TRIVIUM_ARM_CPU:-max}" -L "$sysroot" -0 "$python" "$sysroot/usr/bin/$name" "\$@"
WRAPPER
  chmod +x "$python"
  if [ "$(cat "$venv/.packages" 2>/dev/null)" != "${wanted[*]}" ]; then
    echo "Fetching aarch64 wheels of ${wanted[*]}" >&2
    rm -rf "$packages" && mkdir -p "$packages"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --only-binary=:all: --implementation cp --python-version "$version" \
      --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
      --target "$packages" "${wanted[@]}"
    echo "${wanted[*]}" >"$venv/.packages"
  fi
}

build_wheel() {
  need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
  need cmake cmake
  need ninja ninja-build
  make_python
  mkdir -p "$1"
  # The build back end runs emulated and so knows what it builds for; the tools that it starts are this machine's.
  CMAKE_TOOLCHAIN_FILE=$PWD/tools/aarch64.cmake "$python" -c \
    'import sys, scikit_build_core.build as backend
settings = {"build-dir": "build/aarch64/{wheel_tag}", "cmake.define.TRIVIUM_STATIC_CXX": "ON"}
print(backend.build_wheel(sys.argv[1], settings))' "$1" >&2
}

# Without test_processes.py: qemu-user itself gives up when a forked child starts threads.
run_tests() {
  local packages cpu set
  rm -rf "$home/wheel"
  build_wheel "$home/wheel"
  packages=$(echo "$venv"/lib/python3.*/site-packages)
  rm -rf "$packages"/trivium "$packages"/trivium-*
  "$PYTHON" -m zipfile -e "$home"/wheel/*.whl "$packages"
  for set in neon:cortex-a53 neon_dot:neoverse-n1; do
    cpu=${set#*:}
    echo "tests/native with the kernels ${set%:*}, on an emulated $cpu"
    TRIVIUM_ARM_CPU=$cpu TRIVIUM_ISA=${set%:*} "$python" -m pytest tests/native --ignore tests/native/test_processes.py \
      -p no:cacheprovider "$@"
  done
}

case "${1:-}" in
  python) make_python ;;
  wheel) build_wheel "${2:?a folder for the wheel}" ;;
  test) shift && run_tests "$@" ;;
  *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' tools/aarch64.sh >&2 && exit 2 ;;
esac
