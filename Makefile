# On a fresh machine, `make demo` and `make test` just work: every target installs what it needs and nothing else.
# `make setup` installs everything.
.DEFAULT_GOAL := help
SHELL := /bin/bash
# Some machines forbid Python to keep bytecode. Then every process that a test starts compiles its packages anew, and
# pip has compiled none of them (--no-compile).
unexport PYTHONDONTWRITEBYTECODE
.SHELLFLAGS := -eu -o pipefail -c

# Python 3.11 where it is, since onnxruntime-training ended there; else the system's, if wheels of our packages exist for it.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
ifndef PYTHON
PYTHON := $(shell for one in python3.11 python3; do "$$one" -c '$(SUPPORTED)' 2> /dev/null && { echo "$$one"; break; }; done)
endif
VENV   := .venv
BIN    := $(VENV)/bin
# The newest stock onnxruntime gets its own venv, with the packages of an ARM device and a coordinator: it has the same
# import name as onnxruntime-training.
STOCK  := .venv-stock
DEMO_ENV  := $(VENV)/.demo
DEV_ENV   := $(VENV)/.installed
STOCK_ENV := $(STOCK)/.installed
# The tested versions (`make lock`). No compiling at install: pip would compile all of torch and sympy.
INSTALL := install --quiet --no-compile
LOCKED  := PIP_CONSTRAINT=constraints.txt
# PyPI's torch for x86-64 Linux brings gigabytes of CUDA, so the CPU build comes first where pip finds one.
TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
NATIVE := CMakeLists.txt $(shell find edge/native -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.ver')
CXX_FILES := $(shell find edge/native tests/native -name '*.cc' -o -name '*.h' -o -name '*.inc')
FOLDERS := edge coordinator export benchmarks hardware
TESTS  ?= tests
CHECK_LIMIT_S ?= 300
DEMO ?=
# Inputs over all targets, and the limit in seconds for each target.
FUZZ_INPUTS ?= 1000000
FUZZ_LIMIT_S ?= 900
CODEC := $(wildcard edge/native/codec/*.cc)

# For machines without a board: a cross-compiled wheel, and a Debian tree with that wheel installed.
ARM_WHEEL = dist/sparsyedge-$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)-py3-none-manylinux_2_34_aarch64.whl
ARM_SUITE ?= bookworm
ARM_TREE  = build/arm/$(ARM_SUITE)
PACKAGED  := pyproject.toml $(shell find $(FOLDERS) -name '*.py')

.PHONY: help setup demo check docs check-native bench-kernels test test-fast test-s3 bench-blobs test-wheel lock test-kill test-absence test-memory test-flood test-rotation test-hostile test-versions test-update fuzz clean wheel-aarch64 arm-tree test-arm bench-arm-static footprint bench-fine-tune bench-runtime bench-page test-image test-phone

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 18

demo: $(DEMO_ENV)  ## a whole federated run on this machine (options: make demo DEMO="--rounds 3")
	$(BIN)/sparsyedge demo $(DEMO)

check: $(DEV_ENV) .typing/.linked  ## linter, formatters (Python and C++), types, layering
	timeout $(CHECK_LIMIT_S) $(BIN)/ruff check .
	timeout $(CHECK_LIMIT_S) $(BIN)/ruff format --check .
	timeout $(CHECK_LIMIT_S) $(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	timeout $(CHECK_LIMIT_S) $(BIN)/mypy
	timeout $(CHECK_LIMIT_S) $(BIN)/lint-imports --no-cache

# Strict: the build fails on a warning, a broken link, or a page missing from every table of contents.
docs: $(VENV)/.docs  ## these documents as a site (build/docs/index.html)
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet --jobs auto \
	  --doctree-dir build/docs-cache docs build/docs
	@echo "the site is build/docs/index.html"

# sparsyedge is installed already. Given its name, pip only adds the extra's packages and does not rebuild it.
$(VENV)/.docs: $(VENV)/.installed
	$(LOCKED) $(BIN)/pip $(INSTALL) 'sparsyedge[docs]'
	@touch $@

# Sanitizers slow down compiling the kernels' templates; -O1 balances compile time and run time.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g1
check-native: $(DEV_ENV)  ## native tests on a build with ASan and UBSan (some minutes)
	$(BIN)/cmake -S . -B build/sanitized -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$(SANITIZE)" \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja > /dev/null
	$(BIN)/cmake --build build/sanitized
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	  SPARSYEDGE_OP_LIBRARY=build/sanitized/libsparsyedge_ops.so \
	  timeout 1800 $(BIN)/python -m pytest -q -p no:cacheprovider tests/native \
	  --deselect tests/native/test_library.py --ignore tests/native/test_stock_onnxruntime.py

CASE ?=
bench-kernels: $(DEV_ENV)  ## speed of the op cases, convolutions beside dense torch (some of them: CASE=BatchNorm)
	PYTHONPATH=tests timeout 600 $(BIN)/python -m fixtures.op_cases.speed "$(CASE)"
	PYTHONPATH=tests timeout 600 $(BIN)/python -m fixtures.op_cases.speed --selection

DEVICES ?= 20
bench-blobs: $(DEV_ENV) mosquitto nginx  ## time for devices to fetch 2 MB from Mosquitto and from nginx (DEVICES=100)
	PYTHONPATH=tests timeout 600 $(BIN)/python -m fixtures.blob_speed $(DEVICES)

bench-page: $(DEV_ENV) chromium  ## what the live page costs with 200 devices and ten browsers, and how soon it shows an event (two minutes)
	PYTHONPATH=tests timeout 600 $(BIN)/python -m fixtures.page_speed

# An S3-like server, with packages that nothing else needs.
S3_ENV := .venv-s3
$(S3_ENV)/bin/moto_server:
	$(call make_venv,$(S3_ENV))
	$(S3_ENV)/bin/pip $(INSTALL) 'moto[server]>=5,<6'

test-s3: $(DEV_ENV) $(S3_ENV)/bin/moto_server  ## blobs in a bucket of a local S3-like server (installs moto)
	SPARSYEDGE_MOTO=$(abspath $(S3_ENV))/bin/moto_server timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/coordinator/fleet/test_bucket.py

# pyproject.toml limits the time of each test. The suite has no limit: a busy machine may take longer.
# COVERAGE=yes ends with the share of our lines that ran in the tests' own processes.
COVERAGE ?=
# One more than there are cores: many tests wait for brokers and processes most of the time.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(COVERAGE),--cov --cov-report=)
COVERED = $(if $(COVERAGE),@echo "coverage: $$($(BIN)/coverage report --format=total) % of lines ($(BIN)/coverage report shows which)")
test-fast: $(DEV_ENV)  ## tests without brokers, exports and training, for every commit (under a minute)
	$(PYTEST) -m 'not slow and not heavy' $(TESTS)
	$(COVERED)

test: $(DEV_ENV) $(STOCK_ENV) mosquitto nats-server nginx chromium prometheus systemd cross-tools card-tools-in-ci  ## all tests (some: make test TESTS=tests/edge)
	$(PYTEST) $(TESTS)
	$(COVERED)

# Only what a device installs, in a venv of its own.
WHEEL := build/wheel
test-wheel: $(DEV_ENV)  ## build the wheel, install it in a clean venv, and run the command
	rm -rf $(WHEEL)
	$(LOCKED) $(BIN)/pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(LOCKED) $(WHEEL)/venv/bin/pip $(INSTALL) $(WHEEL)/*.whl
	cd $(WHEEL) && venv/bin/sparsyedge --version
	cd $(WHEEL) && venv/bin/sparsyedge methods > /dev/null
	cd $(WHEEL) && venv/bin/sparsyedge frame inspect $(CURDIR)/tests/golden/lossless.frame

# After every kill we wait for the run to continue: about 6 s each on two cores.
KILLS ?= 50
KILL_LIMIT_S ?= 3600
test-kill: $(DEV_ENV) mosquitto  ## coordinator, its workers, broker and devices killed at 50 random moments each (some 20 minutes)
	SPARSYEDGE_KILLS=$(KILLS) timeout $(KILL_LIMIT_S) $(BIN)/python -m pytest -q -s -m slow tests/system/test_kill.py

test-absence: $(DEV_ENV) mosquitto  ## how many seconds until a lost device is noticed (takes a minute)
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_absence.py

test-memory: $(DEV_ENV) mosquitto  ## does a round of ResNet-18 of width 64 fit into a board of 512 MB (two minutes)
	timeout 1200 $(BIN)/python -m pytest -q -m slow tests/system/test_device_memory.py

test-hostile: $(DEV_ENV) mosquitto  ## the cost of one hostile member in ten over twenty rounds (three minutes)
	timeout 1200 $(BIN)/python -m pytest -q -s -m slow tests/coordinator/fleet/test_hostile_run.py tests/coordinator/fleet/test_hostile_progress.py

test-flood: $(DEV_ENV) mosquitto  ## can new devices enrol during a one-minute flood, and at what memory cost
	timeout 600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_enrolment_flood.py

test-rotation: $(DEV_ENV) mosquitto nats-server  ## another authority for a fleet during a run, with real processes (two minutes)
	timeout 1200 $(BIN)/python -m pytest -q -s -m slow tests/system/test_rotation.py

test-cluster: $(DEV_ENV) nats-server  ## three nodes of NATS: who may read and write what, and a run with one killed in mid-round (three minutes)
	timeout 3600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_nats_cluster.py tests/system/test_cluster_run.py

# An earlier release, built from this repository's history, in a venv of its own.
OLD_RELEASE := 38d7f65
OLD := build/versions
test-versions: $(DEV_ENV) mosquitto  ## devices and coordinators of this version and of 0.3.0 in one run (some minutes)
	@if ! git cat-file -e '$(OLD_RELEASE)^{commit}' 2> /dev/null; then \
	  echo "test-versions: skipped, since this clone's history does not reach back to $(OLD_RELEASE)"; \
	else $(MAKE) $(OLD)/.installed && \
	  SPARSYEDGE_OLD_COMMAND=$(abspath $(OLD))/venv/bin/sparsyedge timeout 1200 $(BIN)/python -m pytest -q -s -m slow tests/system/test_versions.py; fi

$(OLD)/.installed:
	rm -rf $(OLD)
	mkdir -p $(OLD)/source
	git archive $(OLD_RELEASE) | tar -x -C $(OLD)/source
	$(PYTHON) -m venv $(OLD)/venv
	$(LOCKED) $(OLD)/venv/bin/pip $(INSTALL) '$(OLD)/source[coordinator]'
	@touch $@

# Our real wheel, in two versions, with everything that a device installs beside it.
UPDATE := build/update
test-update: $(DEV_ENV) mosquitto  ## upgrades over the air with real wheels: canary, failures, rollback, kill -9 at every stage (ten minutes)
	rm -rf $(UPDATE)
	$(LOCKED) $(BIN)/pip wheel --quiet --no-deps --wheel-dir $(UPDATE) .
	$(LOCKED) $(BIN)/sparsyedge flash wheelhouse --out $(UPDATE)/wheels --machine $$(uname -m) --python $(DEVICE_VERSION) --wheel $(UPDATE)/*.whl
	SPARSYEDGE_WHEELHOUSE=$(abspath $(UPDATE))/wheels timeout 3600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_real_upgrade.py tests/system/test_killed_upgrades.py

# Fuzzing follows coverage if it can: of the native codec with clang and libFuzzer (on Debian: clang, libclang-rt-14-dev),
# of Python with atheris. Both have a fallback without coverage.
LIBFUZZER := $(wildcard $(shell clang++ -print-resource-dir 2> /dev/null)/lib/linux/libclang_rt.fuzzer-*.a)
FUZZ_CODEC := build/fuzz_codec$(if $(LIBFUZZER),_guided)
FUZZ_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -Wno-psabi -fno-sanitize-recover=all -fno-omit-frame-pointer -Iedge/native/codec
FUZZ ?=
fuzz: $(VENV)/.fuzz $(FUZZ_CODEC)  ## feed altered input to every parser (one target: make fuzz FUZZ=messages)
	PYTHONPATH=tests $(BIN)/python -m fuzz.runner $(FUZZ) --inputs $(FUZZ_INPUTS) --limit-s $(FUZZ_LIMIT_S) --codec $(FUZZ_CODEC)

build/fuzz_codec: tests/native/fuzz_codec.cc $(CODEC) edge/native/codec/codec.h
	@mkdir -p build
	g++ $(FUZZ_FLAGS) -fsanitize=address,undefined -o $@ $(filter %.cc,$^)

build/fuzz_codec_guided: tests/native/fuzz_codec.cc $(CODEC) edge/native/codec/codec.h
	@mkdir -p build
	clang++ $(FUZZ_FLAGS) -DFUZZ_GUIDED -fsanitize=fuzzer,address,undefined -o $@ $(filter %.cc,$^)

$(VENV)/.fuzz: $(VENV)/.installed
	@$(LOCKED) $(BIN)/pip $(INSTALL) --editable '.[dev,fuzz]' || echo "note: atheris does not install here; inputs are altered without feedback" >&2
	@touch $@

wheel-aarch64: $(ARM_WHEEL)  ## the device's wheel for 64-bit ARM, cross-compiled and checked (dist/)

$(ARM_WHEEL): $(NATIVE) $(PACKAGED) | $(DEV_ENV) cross-tools
	$(BIN)/python -m sparsyedge.hardware.arm.wheel --out dist

arm-tree: $(ARM_TREE)/.made  ## a Debian arm64 tree with that wheel in it (Debian 13: make arm-tree ARM_SUITE=trixie)

$(ARM_TREE)/.made: $(ARM_WHEEL) | tree-tools
	rm -rf $(ARM_TREE)
	$(BIN)/python -m sparsyedge.hardware.arm.tree $(ARM_TREE) --wheel $(ARM_WHEEL) --suite $(ARM_SUITE)
	@touch $@

test-arm: $(ARM_TREE)/.made  ## steps and rounds of an emulated ARM device against this machine's (some minutes, as root)
	SPARSYEDGE_ARM_TREE=$(ARM_TREE) timeout 3600 $(BIN)/python -m pytest -q -s -m slow tests/system/test_arm_device.py

# Debian 13 is what proot-distro installs; what setup.sh would have apt-get install is in the tree.
PHONE := build/phone
PHONE_PACKAGES := base-files,bash,grep,openssl,sed
test-phone: $(PHONE)/.made mosquitto phone-tools  ## a phone's bundle, with proot and an emulated Debian, from set-up to rounds (long, as root)
	SPARSYEDGE_PHONE_DIR=$(PHONE) timeout 7200 $(BIN)/python -m pytest -q -s -m slow tests/system/test_phone.py

$(PHONE)/.made: $(ARM_WHEEL) | tree-tools
	rm -rf $(PHONE)
	$(BIN)/python -m sparsyedge.hardware.arm.tree $(PHONE)/debian --suite trixie --include $(PHONE_PACKAGES)
	$(BIN)/sparsyedge flash wheelhouse --out $(PHONE)/wheels --wheel $(ARM_WHEEL)
	@touch $@

bench-arm-static: $(DEV_ENV) cross-tools analyser-tools  ## multiply-adds per cycle of the NEON kernels on three cores, modelled
	$(BIN)/python -m sparsyedge.hardware.arm.static_report --out benchmarks/arm/cycles.json

footprint: $(STOCK_ENV) $(ARM_WHEEL)  ## size of a device's install, on disk and in memory
	$(BIN)/sparsyedge bench footprint --python $(STOCK)/bin/python --wheel $(ARM_WHEEL)

bench-fine-tune: $(DEV_ENV)  ## the table of docs/how-to/fine-tune.md: time, memory and bytes where only the last layers train
	$(BIN)/python -m sparsyedge.benchmarks.step.fine_tune_table

bench-runtime: $(DEV_ENV) $(STOCK_ENV)  ## a training step in any onnxruntime against onnxruntime-training's API
	$(BIN)/sparsyedge bench runtime

# Debian 13 on an emulated board, with Python 3.13. build/image keeps everything, including logs and the tested wheels.
IMAGE := build/image
test-image: $(IMAGE)/stock/.made $(ARM_WHEEL) image-tools  ## boot a flashed card in qemu: settings, enrolment, two rounds, an update (20 to 30 minutes)
	rm -rf $(IMAGE)/wheels
	$(BIN)/sparsyedge flash wheelhouse --out $(IMAGE)/wheels --wheel $(ARM_WHEEL) --python 3.13
	timeout 3600 $(BIN)/python -m pytest -q -s -m slow -p no:cacheprovider tests/system/test_image.py

$(IMAGE)/stock/.made: hardware/arm/debian_image.py hardware/arm/initramfs.py hardware/arm/tree.py | $(DEV_ENV) tree-tools image-tools
	rm -rf $(IMAGE)/stock
	$(BIN)/python -m sparsyedge.hardware.arm.debian_image $(IMAGE)/stock
	@touch $@

setup: $(DEV_ENV) $(STOCK_ENV) .typing/.linked mosquitto nats-server nginx chromium prometheus systemd cross-tools tree-tools  ## everything the other targets need

# $(call make_venv,folder): a new virtual environment, or one sentence about what this machine lacks.
define make_venv
	@[ -n "$(PYTHON)" ] || { echo "sparsyedge needs Python 3.11, 3.12, 3.13 or 3.14, and neither python3.11 nor python3 is one: on Debian, apt-get install python3 python3-venv; elsewhere, make PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v $(PYTHON) > /dev/null || { echo "no '$(PYTHON)' here; name a Python from 3.11 to 3.14: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "sparsyedge needs Python 3.11, 3.12, 3.13 or 3.14; '$(PYTHON)' is $$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || { echo "Python's venv module is missing: on Debian, apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	@command -v g++ > /dev/null || { echo "g++ is missing: on Debian, apt-get install g++" >&2; exit 1; }
	@[ -x $(1)/bin/python ] || $(PYTHON) -m venv $(1)
endef

# $(call cpu_torch,folder): torch without CUDA on x86-64 Linux; succeeds where an environment has torch, or now gets it.
define cpu_torch
	[ "$$(uname -sm)" != "Linux x86_64" ] || $(1)/bin/python -c 'import importlib.metadata as m; m.version("torch")' 2> /dev/null \
	  || $(LOCKED) $(1)/bin/pip $(INSTALL) --timeout 20 --retries 1 --extra-index-url $(TORCH_INDEX) '$(TORCH)' 2> /dev/null
endef
CUDA_NOTE = echo "note: pip finds no $(TORCH) for this Python, so it takes PyPI's torch, with gigabytes of CUDA" >&2

# Editing the C++ triggers a reinstall, which rebuilds the op library; the packages are installed by then.
$(DEMO_ENV): pyproject.toml constraints.txt $(NATIVE)
	$(call make_venv,$(VENV))
	@{ $(call cpu_torch,$(VENV)); } || $(CUDA_NOTE)
	$(LOCKED) $(BIN)/pip $(INSTALL) --editable '.[demo]'
	@touch $@

$(DEV_ENV): pyproject.toml constraints.txt $(NATIVE)
	$(call make_venv,$(VENV))
	@{ $(call cpu_torch,$(VENV)); } || $(CUDA_NOTE)
	$(LOCKED) $(BIN)/pip $(INSTALL) --editable '.[dev]'
	@touch $(DEMO_ENV) $@

$(STOCK_ENV): pyproject.toml constraints.txt | $(DEV_ENV)
	$(call make_venv,$(STOCK))
	$(LOCKED) $(STOCK)/bin/pip $(INSTALL) -r <($(BIN)/python -m sparsyedge.hardware.arm.requirements --extra coordinator)
	@touch $@

lock: $(DEV_ENV)  ## pin the newest versions that pyproject.toml allows in constraints.txt
	$(BIN)/python .ci/lock.py

# mypy cannot see through the editable install's import hook; it can see links.
.typing/.linked:
	@mkdir -p .typing/sparsyedge
	@for folder in $(FOLDERS); do ln -sfn ../../$$folder .typing/sparsyedge/$$folder; done
	@touch $@

# $(call apt_install,packages,note): installs as root or with sudo; otherwise prints the note, an error in CI.
define apt_install
	if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); \
	elif sudo -n true 2> /dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq --no-install-recommends $(1); \
	else echo "note: $(2); install with: sudo apt-get install $(1)" >&2; [ "$${CI:-}" != true ]; fi
endef

.PHONY: mosquitto nats-server nginx chromium prometheus systemd cross-tools analyser-tools tree-tools phone-tools image-tools card-tools card-tools-in-ci
mosquitto:
	@if ! PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mosquitto > /dev/null; then \
	  $(call apt_install,mosquitto,no Mosquitto here: its tests will be skipped); fi

systemd:
	@if ! command -v systemd-analyze > /dev/null; then \
	  $(call apt_install,systemd,no systemd-analyze here: its tests will be skipped); fi

nginx:
	@if ! PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v nginx > /dev/null; then \
	  $(call apt_install,nginx-light,no nginx here: its tests will be skipped); fi

chromium:
	@if ! { command -v chromium && command -v chromedriver; } > /dev/null; then \
	  $(call apt_install,chromium chromium-driver,no Chromium here: tests of the live page in a browser will be skipped); fi
# Debian's package also starts a Prometheus as a service; `systemctl disable --now prometheus` ends that one.
prometheus:
	@if ! { command -v prometheus && command -v promtool; } > /dev/null; then \
	  $(call apt_install,prometheus,no Prometheus here: its tests will be skipped); fi

nats-server:
	@if ! PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v nats-server > /dev/null; then \
	  $(call apt_install,nats-server,no NATS here: its tests will be skipped); fi

# g++-aarch64-linux-gnu only recommends the C library's headers that it needs.
CROSS_TOOLS := g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
cross-tools:
	@if ! { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64-static; } > /dev/null; then \
	  $(call apt_install,$(CROSS_TOOLS),no cross compiler or emulator for ARM here: their tests will be skipped); fi

# llvm-mca with models of these cores; 44 MB to fetch, 210 MB on disk, so no other target asks for it.
analyser-tools: cross-tools
	@if ! command -v llvm-mca-19 > /dev/null; then \
	  $(call apt_install,llvm-19,no llvm-mca-19 here: the kernels' cycles cannot be modelled); fi

tree-tools: cross-tools
	@if ! command -v mmdebstrap > /dev/null; then \
	  $(call apt_install,mmdebstrap,no mmdebstrap here: no Debian tree for ARM can be made); fi

phone-tools: cross-tools
	@if ! command -v proot > /dev/null; then \
	  $(call apt_install,proot,no proot here: no Debian of a phone can be entered); fi

IMAGE_TOOLS := qemu-system-arm ipxe-qemu dosfstools e2fsprogs fdisk openssh-client
image-tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; if ! { command -v qemu-system-aarch64 && command -v mkfs.vfat && command -v mke2fs && \
	  command -v sfdisk && command -v ssh-keygen; } > /dev/null; then \
	  $(call apt_install,$(IMAGE_TOOLS),no emulator or disk tools here: no card can be booted); fi

# What reads a card's settings on a board. An installed cloud-init acts when its machine boots, so nobody gets it unasked but CI.
CARD_TOOLS := cloud-init netplan.io wpasupplicant
card-tools:  ## cloud-init, netplan and wpa_passphrase, which tests of cards use (not for a machine that boots with them)
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	if ! { command -v cloud-init && command -v netplan && command -v wpa_passphrase; } > /dev/null; then \
	  $(call apt_install,$(CARD_TOOLS),no cloud-init or netplan here: their tests will be skipped); fi

card-tools-in-ci:
	@if [ "$${CI:-}" = true ]; then $(MAKE) --no-print-directory card-tools; fi

clean:  ## remove what was built and installed
	rm -rf $(VENV) $(STOCK) $(S3_ENV) .typing build dist

# --- releases, and other Pythons: docs/how-to/releasing.md ---------------------------------------------------------------

.PHONY: release test-device test-python

# Hosted CI builds the tag: make release RELEASE=--tagged
RELEASE ?=
release: $(VENV)/.release tree-tools  ## sdist, wheels for x86-64 and aarch64, notes and hashes, checked and tried (dist/VERSION)
	PYTHONPATH=.ci $(BIN)/python -m release $(RELEASE)

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/pip install --quiet $(shell sed -n 's/^release = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d ',')
	@touch $@

# What a device installs, on any Python that has a stock onnxruntime: make test-device PYTHON=python3.13
DEVICE_VERSION = $(shell $(PYTHON) -c 'import sys; print(*sys.version_info[:2], sep=".")')
DEVICE_VENV = build/device-$(DEVICE_VERSION)
DEVICE_TESTS ?= tests/ci tests/edge tests/fuzz tests/hardware tests/native
# What tests use beside the product: digits, and graphs of single ops.
DEMO_TOOLS := 'amqtt>=0.11.3,<0.13' matplotlib tomli-w
DEVICE_TOOLS := httpx2 hypothesis onnx pytest pytest-timeout pytest-xdist safetensors scikit-learn
test-device: mosquitto nginx  ## the tests that need no torch, on a device's packages (another Python: PYTHON=python3.13)
	@command -v $(PYTHON) > /dev/null || { echo "no '$(PYTHON)' here; name a Python from 3.11 on: make test-device PYTHON=/path/to/python3.13" >&2; exit 1; }
	rm -rf $(DEVICE_VENV)
	$(PYTHON) -m venv $(DEVICE_VENV)
	$(DEVICE_VENV)/bin/pip install --quiet '.[coordinator,images]' $(DEVICE_TOOLS)
	SPARSYEDGE_TEST_INSTALL=device $(DEVICE_VENV)/bin/python -m pytest -q -n 2 -p no:cacheprovider $(DEVICE_TESTS)

# All of sparsyedge on another Python than the one of .venv: make test-python PYTHON=python3.13, or the newest that is found.
# Without a torch for it, whatever exports is skipped, and runs use what .venv exported.
OTHERS = python3.14 python3.13 python3.12 $(shell ls -r $(HOME)/.pyenv/versions/3.1[234].*/bin/python3 2> /dev/null)
OTHER := $(if $(filter command line environment,$(origin PYTHON)),$(PYTHON),$(shell \
  for one in $(OTHERS); do "$$one" -c '$(SUPPORTED)' 2> /dev/null && { echo "$$one"; break; }; done))
OTHER_VENV = build/python-$(shell $(OTHER) -c 'import sys; print(*sys.version_info[:2], sep=".")')
OTHER_PYTEST = $(OTHER_VENV)/bin/python -m pytest -q -n 2 -p no:cacheprovider
test-python: mosquitto  ## fast tests and small runs on another Python (PYTHON=python3.13; default: the newest found)
ifeq ($(OTHER),)
	@echo "test-python: skipped, since no Python 3.12, 3.13 or 3.14 is found; name one with PYTHON=/path/to/python3.13"
else
	@rm -rf $(OTHER_VENV)
	$(OTHER) -m venv $(OTHER_VENV)
	@if { $(call cpu_torch,$(OTHER_VENV)); }; then echo dev; else echo "coordinator,images"; fi > $(OTHER_VENV)/extras
	$(LOCKED) $(OTHER_VENV)/bin/pip $(INSTALL) ".[$$(cat $(OTHER_VENV)/extras)]" $(DEVICE_TOOLS) $(DEMO_TOOLS)
	if grep -q dev $(OTHER_VENV)/extras; then \
	  $(OTHER_PYTEST) -m 'not slow and not heavy' tests; $(OTHER_VENV)/bin/sparsyedge demo --rounds 2 --run-dir $(OTHER_VENV)/demo; \
	else \
	  echo "note: pip finds no $(TORCH) for $(OTHER): tests that need torch are skipped there"; \
	  SPARSYEDGE_TEST_INSTALL=device $(OTHER_PYTEST) -m 'not slow and not heavy' tests; fi
	if [ -e $(DEV_ENV) ]; then SPARSYEDGE_OTHER_PYTHON=$(abspath $(OTHER_VENV))/bin/python SPARSYEDGE_STOCK_PYTHON=$(abspath $(OTHER_VENV))/bin/python \
	  $(PYTEST) -q tests/system/test_other_python.py tests/system/test_stock_runtime.py; fi
endif
