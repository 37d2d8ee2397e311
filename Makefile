# Every target sets up what it needs: `make demo` and `make test` work on a fresh machine
# with Python 3.11, make and a network that reaches the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: demo test lint bench clean

demo: $(VENV)/core.stamp
	$(BIN)/python -m steppe demo

test: $(VENV)/dev.stamp lint
	$(BIN)/python .ci/torch_stays.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.clipping; clipping=$$?; \
	$(BIN)/python -m benchmarks.noise_and_average; noise=$$?; \
	$(BIN)/python -m benchmarks.averaging && exit $$((clipping | noise))

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

KERNELS := $(wildcard src/steppe/*/_*.c src/steppe/*/*/_*.c src/steppe/*/*/_*.h)

$(VENV)/core.stamp: $(VENV)/bin/python pyproject.toml constraints.txt $(KERNELS)
	$(PIP) install -q -c constraints.txt torch==2.13.0
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
