# Two commands do everything on a fresh machine: `make run` and `make test`.
# They need Python 3.11 or newer and make; they work as root and as a normal user.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test check format test-programs bench-sql reference lock clean

help: ## List the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Create the virtual environment with everything pinned

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Leasehold needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing the pinned environment into $(VENV) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

run: setup ## Start the product on its embedded database
	@$(BIN)/leasehold demo

test: setup ## Run the tests on a real PostgreSQL
	@$(BIN)/pytest -n auto --maxprocesses 4 --dist loadgroup

check: setup ## Format, lint, types, layers, migrations
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/squawk --config .squawk.toml src/leasehold/store/postgres/sql/migrations/*.sql
	@$(BIN)/pytest -q tests/unit/test_sources.py

format: setup ## Apply the formatter and the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

test-programs: ## Install the programs of the distribution that some tests need (Debian, as root)
	@sh tests/support/install_programs.sh

bench-sql: setup ## Measure the database functions beside bare SQL
	@$(BIN)/python -m benchmarks.sql

reference: setup ## Write docs/reference/functions.md from the live schema
	@$(BIN)/python -m tests.support.reference

lock: setup ## Pin requirements/dev.txt anew
	@$(BIN)/python -m pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --extra embedded --output-file requirements/dev.txt pyproject.toml requirements/dev.in

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
