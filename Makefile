# Two commands for a newcomer: `make demo` and `make test`. Each installs what it needs.
VENV ?= .venv
BIN := $(VENV)/bin
# Most tests wait for kernels: twice as many workers as processors keep these busy.
JOBS ?= $(shell echo $$((2 * $$(nproc))))
PIP_QUIET ?= -q --disable-pip-version-check

.PHONY: demo test test-full lint bench bytecode clean

demo: $(VENV)/.demo bytecode
	@scripts/ensure-bwrap
	@$(BIN)/sandbox-kernel run --policy tour notebooks/tour.ipynb

test: $(VENV)/.test lint bytecode
	@scripts/ensure-bwrap
	@scripts/ensure-chromium
	@PYTHON=$(BIN)/python JOBS=$(JOBS) scripts/run-tests $(ARGS)

# All repetitions, the public suites and a new seed. A failure repeats with its SANDBOX_KERNEL_SEED.
test-full: export SANDBOX_KERNEL_TIER = full
test-full: export SANDBOX_KERNEL_SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
test-full:
	@echo "SANDBOX_KERNEL_SEED=$$SANDBOX_KERNEL_SEED"
	@$(MAKE) --no-print-directory test ARGS="--hypothesis-seed=$$SANDBOX_KERNEL_SEED $(ARGS)"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	@scripts/ensure-bwrap
	$(BIN)/python benchmarks/compare.py $(ARGS)

# What pip does for a package that is not installed from its folder. Else every kernel compiles it, at half a
# start's cost, where Python is told to write none (PYTHONDONTWRITEBYTECODE).
bytecode: | $(BIN)/python
	@$(BIN)/python -m compileall -q sandbox_kernel

$(BIN)/python:
	@python=$$(scripts/find-python) && echo "creating $(VENV) with $$python" && $$python -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing sandbox-kernel into $(VENV)"
	@$(BIN)/python -m pip install $(PIP_QUIET) -e '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@echo "installing sandbox-kernel and its test tools into $(VENV)"
	@$(BIN)/python -m pip install $(PIP_QUIET) -e '.[demo,test,lint]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .cache dist
