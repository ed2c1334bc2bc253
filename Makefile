# make run   environment, default model, main job, the vote
# make test  all the tests need, then ruff, mypy --strict and pytest
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Built with GCC 12, llama.cpp's set-up of AMX tiles ended the process at the first matrix product; why is not proved.
NO_AMX := $(shell grep -qs amx_tile /proc/cpuinfo && echo -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
BUILD  := CFLAGS="$(CFLAGS) $(NO_AMX)" CXXFLAGS="$(CXXFLAGS) $(NO_AMX)"

.PHONY: run test lint clean
.DELETE_ON_ERROR:

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvswarm needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BUILD) $(BIN)/pip install --quiet -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BUILD) $(BIN)/pip install --quiet -e ".[test]"
	touch $@

run: $(VENV)/.installed
	$(BIN)/python -m runner

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
