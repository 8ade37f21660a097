# What people type: `make serve`, `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# An editable install knows the modules that were there when it was made, so a new module makes a new stamp.
STAMP  := $(VENV)/.installed-$(shell find src -name '*.py' | LC_ALL=C sort | cksum | cut -d' ' -f1)
TOOLS  := $(VENV)/.test
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/trivium/native/*.* src/trivium/native/kernels/*.*)
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install serve chat test test-portable test-arm test-oracle test-browser test-voice soak lint format golden wheels clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	rm -f $(VENV)/.installed-* && touch $@

$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

install: $(STAMP)  ## make .venv and install Trivium in it

serve: $(STAMP)  ## install, fetch the default model, serve it (ARGS="--port 9000 …": see `trivium serve --help`)
	$(BIN)/trivium pull smollm2
	exec $(BIN)/trivium serve $(ARGS)

chat: $(STAMP)  ## install, fetch the default model, talk to it (PROMPT="…" answers one question)
	$(BIN)/trivium pull smollm2
	$(if $(PROMPT),$(BIN)/trivium generate "$(PROMPT)",$(BIN)/trivium chat)

test: $(TOOLS)  ## the whole suite, without a network once the model is there
	$(BIN)/trivium pull smollm2
	$(PYTEST) -m 'not oracle and not browser and not voice and not soak'

test-portable: $(TOOLS)  ## the native tests on a CPU model without AVX (needs qemu-user)
	OPENBLAS_CORETYPE=Nehalem qemu-x86_64 -cpu Nehalem $(BIN)/python -m pytest tests/native -m 'not oracle' -p no:cacheprovider

test-arm: $(BIN)/python  ## the native tests on emulated ARM CPUs (needs qemu-user, g++-aarch64-linux-gnu, cmake, ninja-build)
	PYTHON=$(BIN)/python tools/aarch64.sh test

$(VENV)/.oracle: $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[oracle]'
	touch $@

test-oracle: $(VENV)/.oracle  ## recompute what the golden files hold, with torch and transformers
	$(BIN)/trivium pull smollm2
	$(PYTEST) -m oracle tests/oracle

$(VENV)/.browser: $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	touch $@

test-browser: $(VENV)/.browser  ## drive the page in a real Chromium (needs chromium and chromium-driver)
	$(BIN)/trivium pull smollm2
	$(PYTEST) -m browser tests/browser

$(VENV)/.voice: $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[sherpa,test]' 'onnx>=1.16'
	touch $@

test-voice: $(VENV)/.voice  ## wake words, speech to text and text to speech, with real models (needs espeak-ng)
	$(BIN)/trivium pull smollm2
	$(BIN)/trivium pull whisper-tiny
	$(PYTEST) -m voice tests/doors/unit/voice

soak: $(TOOLS)  ## both doors under load for long: nothing may be left behind (ARGS=--soak-short takes about a minute)
	$(BIN)/trivium pull smollm2
	$(PYTEST) -m soak -rP tests/soak $(ARGS)

golden: $(VENV)/.oracle  ## make the golden files anew
	for script in tests/golden/make_*.py; do $(BIN)/python $$script || exit 1; done

$(VENV)/.dev: $(TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheels:  ## wheels for other machines: x86-64 and, with the tools of test-arm, aarch64; into dist/
	tools/wheels.sh $(PYTHON)

clean:  ## remove what was built
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
