# Every target sets up what it needs: `make demo` and `make test` work on a fresh machine
# with Python 3.11, make and a network that reaches the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: demo test quick lint bench clean

demo: $(VENV)/core.stamp
	$(BIN)/python -m steppe demo

test: $(VENV)/dev.stamp lint
	$(BIN)/python .ci/torch_stays.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# A cross-section for the everyday loop: a file or a test of every room, in two minutes with lint.
QUICK := \
	tests/test_rooms.py tests/test_import.py \
	tests/accounting/test_statement.py tests/audit/test_counts.py \
	tests/audit/test_battery.py::test_sensitivity_is_tight \
	tests/averaging/test_running.py tests/cli/test_inspect_command.py \
	tests/clipping/test_engine.py tests/clipping/test_flat.py \
	tests/compat/test_hooked_run.py \
	tests/conformance/test_layers.py::test_non_finite_record_counts_zero_and_changes_nothing \
	tests/conformance/test_methods.py::test_a_record_moves_every_answer_by_no_more_than_the_sensitivity \
	tests/data/test_tables.py tests/flatness/test_directions.py \
	tests/gradients/test_record_gradients.py tests/gradients/test_kernel_choice.py \
	tests/isolation/test_proof.py::test_a_case_that_mixes_is_refused_by_name \
	tests/ledger tests/models/test_plain_cnn.py \
	tests/noise/test_gaussian_noise.py tests/papers/test_pages.py \
	tests/plan/test_plan.py tests/points/test_point.py \
	tests/pretraining/test_pretraining_methods.py tests/procedural \
	tests/private/test_private.py tests/private/test_private_step.py \
	tests/probing/test_inspect.py tests/randomness/test_source.py \
	tests/records/test_map_style.py tests/report/test_words.py tests/runs \
	tests/sampling/test_poisson_sampling.py tests/starts \
	tests/trained/test_inputs.py tests/training/test_folder.py \
	tests/updates/test_dp_adam.py tests/utils

quick: $(VENV)/dev.stamp lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(QUICK)

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
