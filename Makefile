PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Threads that spin while they wait hurt whoever shares the cores.
export OMP_WAIT_POLICY := passive

.PHONY: install test lint demo bench clean

install: $(STAMP)

# uv resolves this set in seconds where pip backtracks for minutes.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@

# Two processes, a file of tests in one of them, each on one thread.
test: export OMP_NUM_THREADS := 1
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/python scripts/demo.py --out demo

bench: $(STAMP)
	$(BIN)/python scripts/coverage_zoo.py --out docs/coverage_zoo.md

clean:
	rm -rf $(VENV) demo
