# Two commands for a newcomer: `make demo` and `make test`. Each installs what it needs.
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
PIP_QUIET ?= -q --disable-pip-version-check

.PHONY: demo test lint bench bytecode clean

demo: $(VENV)/.demo bytecode
	@scripts/ensure-bwrap
	@$(BIN)/sandbox-kernel run --policy tour notebooks/tour.ipynb

test: $(VENV)/.test lint bytecode
	@scripts/ensure-bwrap
	@scripts/ensure-chromium
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

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
