PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Threads that spin while they wait hurt whoever shares the cores.
export OMP_WAIT_POLICY := passive

.PHONY: install test check attack lint docs demo bench cpp clean

install: $(STAMP)

# uv resolves this set in seconds where pip backtracks for minutes. Compiled bytecode halves the
# start of every command where PYTHONDONTWRITEBYTECODE is set, as in most containers.
$(STAMP): pyproject.toml hatch_build.py $(wildcard nnstretch/stretch/search/compiled/*.[ch])
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade uv
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[dev]'
	@$(BIN)/python -m compileall -q nnstretch
	@touch $@

# Two processes, a file of tests in one of them, each on one thread.
test check: export OMP_NUM_THREADS := 1
# Processes that tests start read the modules that the first one compiled.
test check: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)
	$(PYTEST) -m "not slow"

check: $(STAMP)
	$(PYTEST)

# Hostile files, arguments and signals on every verb, longer than the 18 seconds of `check`.
MINUTES ?= 30
attack: export NNSTRETCH_ATTACK_MINUTES := $(MINUTES)
attack: $(STAMP)
	$(BIN)/python -m pytest tests/attack

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

# Broken links fail. Its extra is no part of `dev`.
docs: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP)
	$(BIN)/python scripts/demo.py --out demo

bench: $(STAMP)
	$(BIN)/python scripts/coverage_zoo.py --out docs/results/coverage_zoo.md

# The C++ runtime by itself, with its own tests. What is missing is installed where apt-get may be
# used, else named. CPP_FLAGS go to CMake.
CPP_BUILD := build/cpp
CPP_FLAGS ?=
CPP_TOOLS := command -v cmake && command -v c++ && command -v make

cpp:
	@{ $(CPP_TOOLS); } >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq cmake g++ make >/dev/null; } || { echo "missing: cmake, a C++17 compiler or make (Debian: apt-get install cmake g++ make)"; exit 1; }
	cmake -S cpp -B $(CPP_BUILD) -DCMAKE_BUILD_TYPE=Release -DNNSTRETCH_TESTS=ON $(CPP_FLAGS)
	cmake --build $(CPP_BUILD) --parallel 2
	cd $(CPP_BUILD) && ctest --output-on-failure

clean:
	rm -rf $(VENV) demo site build/cpp
