# Two commands do everything on a fresh machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
# The newest stock onnxruntime lives apart: it shares its import name with onnxruntime-training.
STOCK  := .venv-stock
NATIVE := CMakeLists.txt $(shell find edge/native -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.ver')
FOLDERS := edge coordinator export benchmarks hardware
TESTS  ?= tests
# Seconds that a whole suite may take; a single test has its own limit in pyproject.toml.
TEST_LIMIT_S  ?= 1200
CHECK_LIMIT_S ?= 300
DEMO ?=
FUZZ_INPUTS ?= 1000000
FUZZ_LIMIT_S ?= 600
CODEC := $(wildcard edge/native/codec/*.cc)

.PHONY: help setup demo check check-native bench-kernels test fuzz clean

help:  ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: setup  ## a whole federated run on this machine (options: make demo DEMO="--rounds 3")
	$(BIN)/sparsyedge demo $(DEMO)

check: setup  ## linter, formatter, types, layering
	timeout $(CHECK_LIMIT_S) $(BIN)/ruff check .
	timeout $(CHECK_LIMIT_S) $(BIN)/ruff format --check .
	timeout $(CHECK_LIMIT_S) $(BIN)/mypy
	timeout $(CHECK_LIMIT_S) $(BIN)/lint-imports --no-cache

# Sanitizers make the kernels' templates slow to compile, not to run; one level of optimisation is the best of both.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g1
check-native: setup  ## native tests on a build with ASan and UBSan (some minutes)
	$(BIN)/cmake -S . -B build/sanitized -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$(SANITIZE)" \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja > /dev/null
	$(BIN)/cmake --build build/sanitized
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	  SPARSYEDGE_OP_LIBRARY=build/sanitized/libsparsyedge_ops.so \
	  timeout 1800 $(BIN)/python -m pytest -q -p no:cacheprovider tests/native \
	  --deselect tests/native/test_library.py --ignore tests/native/test_stock_onnxruntime.py

bench-kernels: setup  ## the native case table in its third mode: speed of every layer beside dense torch
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/native/test_sparse_conv.py

# Many tests run real brokers and processes on a real clock: a stumble of the machine gets a second chance, and the
# summary names every test that took one.
test: setup  ## all tests (a part of them: make test TESTS=tests/edge)
	timeout $(TEST_LIMIT_S) $(BIN)/python -m pytest -n 2 --reruns 2 -rR $(TESTS)

fuzz: build/fuzz_codec  ## altered input for the native decoder under sanitizers (more: make fuzz FUZZ_INPUTS=2000000)
	timeout $(FUZZ_LIMIT_S) build/fuzz_codec $(FUZZ_INPUTS)

build/fuzz_codec: tests/native/fuzz_codec.cc $(CODEC) edge/native/codec/codec.h
	@mkdir -p build
	g++ -std=c++17 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
	  -Iedge/native/codec -o $@ tests/native/fuzz_codec.cc $(CODEC)

setup: $(VENV)/.installed $(STOCK)/.installed .typing/.linked mosquitto  ## everything the other targets need

$(VENV)/.installed: pyproject.toml $(NATIVE)
	@command -v $(PYTHON) > /dev/null || { echo "sparsyedge needs Python 3.11 as '$(PYTHON)': on Debian, apt-get install python3.11 python3.11-venv; elsewhere, make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "sparsyedge trains with onnxruntime-training, whose last Python is 3.11; '$(PYTHON)' is $$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { echo "Python's venv module is missing: on Debian, apt-get install python3.11-venv" >&2; exit 1; }
	@command -v g++ > /dev/null || { echo "g++ is missing: on Debian, apt-get install g++" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(STOCK)/.installed: | $(VENV)/.installed
	@[ -x $(STOCK)/bin/python ] || $(PYTHON) -m venv $(STOCK)
	$(STOCK)/bin/pip install --quiet --upgrade onnxruntime numpy
	@touch $@

# mypy cannot see through the editable install's import hook; it can see links.
.typing/.linked:
	@mkdir -p .typing/sparsyedge
	@for folder in $(FOLDERS); do ln -sfn ../../$$folder .typing/sparsyedge/$$folder; done
	@touch $@

.PHONY: mosquitto
mosquitto:
	@if ! PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mosquitto > /dev/null; then \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq mosquitto; \
	  elif sudo -n true 2> /dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq mosquitto; \
	  else echo "note: no Mosquitto here, its tests will be skipped; install it with: sudo apt-get install mosquitto"; fi; \
	fi

clean:  ## remove what was built and installed
	rm -rf $(VENV) $(STOCK) .typing build dist
