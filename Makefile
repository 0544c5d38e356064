# Two commands do everything on a fresh machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
# The newest stock onnxruntime lives apart, with all that a device on ARM and a coordinator have beside it: it shares its
# import name with onnxruntime-training.
STOCK  := .venv-stock
NATIVE := CMakeLists.txt $(shell find edge/native -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.ver')
FOLDERS := edge coordinator export benchmarks hardware
TESTS  ?= tests
# Seconds that a whole suite may take; a single test has its own limit in pyproject.toml.
TEST_LIMIT_S  ?= 1200
CHECK_LIMIT_S ?= 300
DEMO ?=
# Inputs of all targets together, and the seconds that one target may take.
FUZZ_INPUTS ?= 1000000
FUZZ_LIMIT_S ?= 900
CODEC := $(wildcard edge/native/codec/*.cc)

# What runs where there is no board: a cross-compiled wheel, and a Debian tree that it is installed in.
ARM_WHEEL = dist/sparsyedge-$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)-py3-none-manylinux_2_34_aarch64.whl
ARM_SUITE ?= bookworm
ARM_TREE  = build/arm/$(ARM_SUITE)
PACKAGED  := pyproject.toml $(shell find $(FOLDERS) -name '*.py')

.PHONY: help setup demo check check-native bench-kernels test test-kill test-absence test-flood test-hostile fuzz clean wheel-aarch64 arm-tree test-arm bench-arm-static footprint bench-runtime test-image

help:  ## show what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 18

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

bench-kernels: setup  ## speed of every layer beside dense torch, and what activation pruning costs
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/native/test_sparse_conv.py tests/native/test_selection_speed.py

# Many tests run real brokers and processes on a real clock: a stumble of the machine gets a second chance, and the
# summary names every test that took one.
test: setup  ## all tests (a part of them: make test TESTS=tests/edge)
	timeout $(TEST_LIMIT_S) $(BIN)/python -m pytest -n 2 --reruns 2 -rR $(TESTS)

# Every kill ends in a wait for the run to go on: about 6 s each on two cores.
KILLS ?= 50
KILL_LIMIT_S ?= 3600
test-kill: setup  ## coordinator, broker and devices killed at 50 random moments each (some 20 minutes)
	SPARSYEDGE_KILLS=$(KILLS) timeout $(KILL_LIMIT_S) $(BIN)/python -m pytest -q -s -m slow tests/system/test_kill.py

test-absence: setup  ## how soon a device that is gone is noticed, in seconds (a minute)
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_absence.py

test-hostile: setup  ## twenty rounds with one hostile member of ten, and what it costs (a minute)
	timeout 1200 $(BIN)/python -m pytest -q -s -m slow tests/coordinator/test_hostile_run.py

test-flood: setup  ## whether new devices enrol while others flood the broker for a minute, and what memory it takes
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_enrolment_flood.py

# With clang and its libFuzzer (on Debian: clang, libclang-rt-14-dev) the native codec's coverage is followed, with atheris
# Python's; both have a stand-in that goes without.
LIBFUZZER := $(wildcard $(shell clang++ -print-resource-dir 2> /dev/null)/lib/linux/libclang_rt.fuzzer-*.a)
FUZZ_CODEC := build/fuzz_codec$(if $(LIBFUZZER),_guided)
FUZZ_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -fno-sanitize-recover=all -fno-omit-frame-pointer -Iedge/native/codec
FUZZ ?=
fuzz: setup $(VENV)/.fuzz $(FUZZ_CODEC)  ## altered input for all that reads input (one target: make fuzz FUZZ=messages)
	PYTHONPATH=tests $(BIN)/python -m fuzz.runner $(FUZZ) --inputs $(FUZZ_INPUTS) --limit-s $(FUZZ_LIMIT_S) --codec $(FUZZ_CODEC)

build/fuzz_codec: tests/native/fuzz_codec.cc $(CODEC) edge/native/codec/codec.h
	@mkdir -p build
	g++ $(FUZZ_FLAGS) -fsanitize=address,undefined -o $@ $(filter %.cc,$^)

build/fuzz_codec_guided: tests/native/fuzz_codec.cc $(CODEC) edge/native/codec/codec.h
	@mkdir -p build
	clang++ $(FUZZ_FLAGS) -DFUZZ_GUIDED -fsanitize=fuzzer,address,undefined -o $@ $(filter %.cc,$^)

$(VENV)/.fuzz: $(VENV)/.installed
	@$(BIN)/pip install --quiet --editable '.[dev,fuzz]' || echo "note: atheris does not install here; inputs are altered without feedback" >&2
	@touch $@

wheel-aarch64: $(ARM_WHEEL)  ## the device's wheel for 64-bit ARM, cross-compiled and checked (dist/)

$(ARM_WHEEL): $(NATIVE) $(PACKAGED) | setup
	$(BIN)/python -m sparsyedge.hardware.arm.wheel --out dist

arm-tree: $(ARM_TREE)/.made  ## a Debian arm64 tree with that wheel in it (Debian 13: make arm-tree ARM_SUITE=trixie)

$(ARM_TREE)/.made: $(ARM_WHEEL)
	rm -rf $(ARM_TREE)
	$(BIN)/python -m sparsyedge.hardware.arm.tree $(ARM_TREE) --wheel $(ARM_WHEEL) --suite $(ARM_SUITE)
	@touch $@

test-arm: $(ARM_TREE)/.made  ## steps and rounds of an emulated ARM device against this machine's (some minutes, as root)
	SPARSYEDGE_ARM_TREE=$(ARM_TREE) timeout 3600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_arm_device.py

bench-arm-static: setup  ## instructions per multiply-add of the NEON kernels beside the AVX2 ones
	$(BIN)/python -m sparsyedge.hardware.arm.instructions

footprint: setup $(ARM_WHEEL)  ## what a device's install takes on disk and in memory
	$(BIN)/sparsyedge bench footprint --python $(STOCK)/bin/python --wheel $(ARM_WHEEL)

bench-runtime: setup  ## a training step in any onnxruntime against onnxruntime-training's API
	$(BIN)/sparsyedge bench runtime

# Debian 13 on an emulated board; its Python is 3.13. Everything stays in build/image: logs, and the wheels that were tested.
IMAGE := build/image
test-image: $(IMAGE)/stock/.made $(ARM_WHEEL)  ## boot a flashed card in qemu: first boot, enrolment, two rounds (10 to 20 minutes)
	@command -v qemu-system-aarch64 > /dev/null || { echo "no qemu-system-aarch64 here: on Debian, apt-get install qemu-system-arm ipxe-qemu" >&2; exit 1; }
	rm -rf $(IMAGE)/wheels
	$(BIN)/sparsyedge flash wheelhouse --out $(IMAGE)/wheels --wheel $(ARM_WHEEL) --python 3.13
	timeout 3600 $(BIN)/python -m pytest -q -s -m slow -p no:cacheprovider tests/system/test_image.py

$(IMAGE)/stock/.made: hardware/arm/image.py hardware/arm/initramfs.py hardware/arm/tree.py | setup
	rm -rf $(IMAGE)/stock
	$(BIN)/python -m sparsyedge.hardware.arm.image $(IMAGE)/stock
	@touch $@

setup: $(VENV)/.installed $(STOCK)/.installed .typing/.linked mosquitto arm-tools  ## everything the other targets need

$(VENV)/.installed: pyproject.toml $(NATIVE)
	@command -v $(PYTHON) > /dev/null || { echo "sparsyedge needs Python 3.11 as '$(PYTHON)': on Debian, apt-get install python3.11 python3.11-venv; elsewhere, make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "sparsyedge trains with onnxruntime-training, whose last Python is 3.11; '$(PYTHON)' is $$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { echo "Python's venv module is missing: on Debian, apt-get install python3.11-venv" >&2; exit 1; }
	@command -v g++ > /dev/null || { echo "g++ is missing: on Debian, apt-get install g++" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(STOCK)/.installed: pyproject.toml | $(VENV)/.installed
	@[ -x $(STOCK)/bin/python ] || $(PYTHON) -m venv $(STOCK)
	$(STOCK)/bin/pip install --quiet --upgrade -r <($(BIN)/python -m sparsyedge.hardware.arm.requirements --extra coordinator)
	@touch $@

# mypy cannot see through the editable install's import hook; it can see links.
.typing/.linked:
	@mkdir -p .typing/sparsyedge
	@for folder in $(FOLDERS); do ln -sfn ../../$$folder .typing/sparsyedge/$$folder; done
	@touch $@

# $(call apt_install,packages,note): as root or with sudo; elsewhere the note, which in CI is an error.
define apt_install
	if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); \
	elif sudo -n true 2> /dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq --no-install-recommends $(1); \
	else echo "note: $(2); install with: sudo apt-get install $(1)" >&2; [ "$${CI:-}" != true ]; fi
endef

.PHONY: mosquitto arm-tools
mosquitto:
	@if ! PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mosquitto > /dev/null; then \
	  $(call apt_install,mosquitto,no Mosquitto here: its tests will be skipped); fi

# g++-aarch64-linux-gnu only recommends the C library's headers that it needs.
ARM_TOOLS := g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static mmdebstrap
arm-tools:
	@if ! { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64-static && command -v mmdebstrap; } > /dev/null; then \
	  $(call apt_install,$(ARM_TOOLS),no cross compiler or emulator for ARM here: their tests will be skipped); fi

clean:  ## remove what was built and installed
	rm -rf $(VENV) $(STOCK) .typing build dist

# --- releases, and other Pythons: docs/releasing.md ---------------------------------------------------------------

.PHONY: release test-device

# For hosted CI, which builds what was tagged: make release RELEASE=--tagged
RELEASE ?=
release: $(VENV)/.release arm-tools  ## sdist, wheels for x86-64 and aarch64, notes and hashes, checked and tried (dist/VERSION)
	PYTHONPATH=.ci $(BIN)/python -m release $(RELEASE)

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/pip install --quiet $(shell sed -n 's/^release = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d ',')
	@touch $@

# What a device installs, on any Python that has a stock onnxruntime: make test-device PYTHON=python3.13
DEVICE_VERSION = $(shell $(PYTHON) -c 'import sys; print(*sys.version_info[:2], sep=".")')
DEVICE_VENV = build/device-$(DEVICE_VERSION)
DEVICE_TESTS ?= tests/ci tests/edge tests/fuzz tests/hardware tests/native
# What tests use beside the product: digits, and graphs of single ops.
DEVICE_TOOLS := hypothesis onnx pytest pytest-timeout pytest-xdist safetensors scikit-learn
test-device: mosquitto  ## the tests that need no torch, on a device's packages (another Python: PYTHON=python3.13)
	@command -v $(PYTHON) > /dev/null || { echo "no '$(PYTHON)' here; name a Python from 3.11 on: make test-device PYTHON=/path/to/python3.13" >&2; exit 1; }
	rm -rf $(DEVICE_VENV)
	$(PYTHON) -m venv $(DEVICE_VENV)
	$(DEVICE_VENV)/bin/pip install --quiet '.[coordinator,images]' $(DEVICE_TOOLS)
	SPARSYEDGE_TEST_INSTALL=device $(DEVICE_VENV)/bin/python -m pytest -q -n 2 -p no:cacheprovider $(DEVICE_TESTS)
