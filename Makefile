# Everything a developer or CI runs. `make setup` is called by the others and costs nothing when nothing changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONPATH :=

.PHONY: setup check format test test-slow test-s3 demo up down lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("lakeops needs Python 3.11 or newer; say PYTHON=...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing pinned packages into $(VENV) (a minute or two the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## pin every version with hashes (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --group data \
	  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not s3 and not spark"
