# Sheaf's front door. `make help` lists what there is; CMake does the work (CMakeLists.txt).
#
#   BUILD=dir       where to build (build)
#   PREFIX=dir      where `make install` installs (/usr/local); DESTDIR is honoured
#   JOBS=n          parallel jobs (all cores)
#   CMAKE_ARGS=...  more arguments for cmake, such as -DSHEAF_BUILD_CLI=OFF
#   BENCH=...       what `make bench` and `make bench-peers` are to do, such as "bag f16 --threads 1" or "--quick"

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
BENCH ?=

PACKAGES = cmake/install-packages.sh
SUITE = BUILD="$(BUILD)" JOBS="$(JOBS)" tests/scripts/run_suite.sh

.PHONY: all configure demo test test-all bench bench-peers bench-python install lint format clean help
.DEFAULT_GOAL := all

all: configure
	@echo "Building $(BUILD)/libsheaf.so, $(BUILD)/libsheaf.a, $(BUILD)/sheaf"
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; cmake --build $(BUILD) --parallel $(JOBS) -- $$quiet

# Tests are left to `make test`, which needs more packages; a build folder that has them keeps them.
configure:
	@$(PACKAGES) build
	@if [ ! -f $(BUILD)/build.ninja ] || [ -n "$(CMAKE_ARGS)" ]; then \
	  echo "Configuring $(BUILD)"; mkdir -p $(BUILD); \
	  cmake -G Ninja -S . -B $(BUILD) -DSHEAF_WERROR=ON -DSHEAF_BUILD_TESTS=OFF $(CMAKE_ARGS) >$(BUILD)/configure.log 2>&1 || \
	    { cat $(BUILD)/configure.log; exit 1; }; fi

# In a folder of its own, with this machine's kernels only and no plug-ins, which takes half the time of all.
demo:
	@$(MAKE) --no-print-directory configure BUILD="$(BUILD)/demo" \
	  CMAKE_ARGS="-DSHEAF_KERNELS=native -DSHEAF_CUDA=OFF -DSHEAF_MPI=OFF -DSHEAF_BUILD_EXAMPLES=OFF $(CMAKE_ARGS)"
	@echo "Building $(BUILD)/demo/sheaf"
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	  cmake --build $(BUILD)/demo --parallel $(JOBS) --target sheaf_cli -- $$quiet
	@$(BUILD)/demo/sheaf demo

test:
	@$(PACKAGES) build test
	@$(SUITE) quick

test-all:
	@$(PACKAGES) build test
	@$(SUITE) all

bench: all
	@$(BUILD)/sheaf bench $(BENCH)

# Its own virtual environment, since the peers are large: nothing else needs them.
bench-peers: all
	@BUILD="$(BUILD)" bench/peers/run_peers.sh $(BENCH)

bench-python: all
	@BUILD="$(BUILD)" bench/peers/run_peers.sh functions $(BENCH)

install: all
	@echo "Installing into $(DESTDIR)$(PREFIX)"
	@cmake --install $(BUILD) --prefix "$(PREFIX)" >$(BUILD)/install.log || { cat $(BUILD)/install.log; exit 1; }

lint:
	@$(PACKAGES) build test lint
	@$(SUITE) lint

# Not a check: versions of clang-format differ among themselves. The headers are laid out by hand.
format:
	@$(PACKAGES) lint
	@git ls-files -co --exclude-standard -- 'src/*.[ch]' 'cli/*.[ch]' 'examples/*.c' 'tests/*.[ch]' 'python/*.c' | xargs clang-format -i

clean:
	rm -rf $(BUILD) $(BUILD)-clang $(BUILD)-asan $(BUILD)-tsan

help:
	@echo "make            build $(BUILD)/libsheaf.so, $(BUILD)/libsheaf.a and the command $(BUILD)/sheaf"
	@echo "make demo       build, then run lookups, bags and segments forward and backward, checked, with their speed"
	@echo "make test       all tests under gcc and clang, sanitizers and a short fuzz run"
	@echo "make test-all   that, and the thread sanitizer, sizes past 2^31 (24 GiB of memory), 10 minutes of fuzzing a target"
	@echo "make bench      speed as a fraction of this machine's memory bandwidth (BENCH=\"bag f16 --threads 1\")"
	@echo "make bench-peers  that beside PyTorch and FBGEMM, which it installs into $(BUILD)/venv-peers (BENCH=--quick)"
	@echo "make bench-python the Python package beside PyTorch's functions (BENCH=\"--svg picture.svg\")"
	@echo "make lint       clang-tidy, cppcheck, and ruff for Python"
	@echo "make format     lay out sources in the house style (clang-format)"
	@echo "make install    install into PREFIX (/usr/local)"
	@echo "make clean      remove build folders"
	@echo "Packages that are missing are installed when that is allowed, or named. SHEAF_NO_INSTALL=1 only names them."
