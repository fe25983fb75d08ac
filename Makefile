# Every target works in a virtual environment of its own, .venv, made on first use.
#
#   make setup PYTHON=python3.12                                            another interpreter
#   make setup TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu'   a small, CPU-only torch
#   make bench ARGS='--limit 2'                                             options of the command

PYTHON ?= python3
TORCH_ARGS ?=
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos lint format proto docs bench clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Install diffuspec and everything it needs into .venv

demo: $(STAMP) ## Plain, drafted and overlapped decoding side by side, on a Ray cluster of its own
	$(BIN)/python -m deploy.demo $(ARGS)

test: lint ## Lint, then all tests
	$(BIN)/python -m pytest $(ARGS)

chaos: $(STAMP) ## 200 requests while processes and nodes die, stop and dawdle, with recovery times
	$(BIN)/python -m pytest tests/actors/test_chaos.py --chaos-requests 200 $(ARGS)

lint: $(STAMP) ## Style, formatting, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Rewrite the code in its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## Compile protos/ into diffuspec/v1
	$(BIN)/python protos/generate.py

docs: $(STAMP) ## Write docs/configuration.md from the schema
	$(BIN)/python docs/make_configuration.py

bench: $(STAMP) ## The benchmark against transformers, with tables and plots in runs/bench
	$(BIN)/diffuspec bench $(ARGS)

clean: ## Remove .venv, caches and build products (runs/ stays)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf build dist *.egg-info
	find diffuspec tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'error: Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.11' >&2; exit 1; }
	@command -v g++ >/dev/null || \
	    { echo 'error: g++ is needed, because KenLM is compiled on installation (apt install g++)' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch $(TORCH_ARGS)
	$(PIP) --editable '.[dev]'
	@touch $@
