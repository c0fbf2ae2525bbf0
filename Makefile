# Everything runs from .venv, which is made on first use and again whenever
# pyproject.toml or requirements.lock changes. Only Python 3.11 (or newer) is needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Many tests wait for processes: two for each of two cores. Those of a file share what they start.
PYTEST_ARGS ?= -n 4 --dist loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Tests start hundreds of processes from here: without bytecode on disk each compiles all anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo example examples stubs test collect polyglot lint format protos docs lock bench soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with everything the other targets need

$(STAMP): pyproject.toml requirements.lock
	@echo "installing into $(VENV) (some 35 s of work, several minutes on a busy machine)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@# The one that comes with Python 3.11 takes more than twice the time to choose the packages.
	@$(BIN)/pip install --quiet --upgrade 'pip>=26'
	@# Compiled is what is used, when it is used first: less than half.
	@$(BIN)/pip install -qq --no-compile --only-binary :all: -c requirements.lock -e '.[local,endpoint,s3,otel,mcp,langgraph,bench,dev]'
	@touch $@

demo: $(STAMP) ## Start a node, write memories, find them again, forget one
	@$(BIN)/python examples/demo/demo.py

# LANG is also a variable of the environment, the locale: only one that was given to make counts.
LANGUAGE = $(if $(filter command line,$(origin LANG)),$(LANG),$(error say which language, as in: make $@ LANG=go))

example: $(STAMP) ## Build the example of LANG=python|go|typescript|rust|java and run it
	@LANG=C.UTF-8 $(BIN)/python examples/run.py $(LANGUAGE) $(ARGS)

examples: ## Build the examples of all languages (needs Go, Node, Rust and Java)
	@LANG=C.UTF-8 $(PYTHON) examples/build.py

stubs: $(STAMP) ## Generate the stubs of LANG=... from protos/ and say where they are
	@LANG=C.UTF-8 $(BIN)/python examples/run.py --stubs $(LANGUAGE)

test: $(STAMP) ## Run the tests (all but the soak runs and the examples of other languages)
	$(BIN)/python -m pytest -m "not soak and not polyglot" $(PYTEST_ARGS)

collect: $(STAMP) ## Load the tests without running them
	@told=$$($(BIN)/python -m pytest --collect-only --quiet -m "not soak and not polyglot") \
	  || { echo "$$told"; exit 1; }

polyglot: $(STAMP) ## Build and run the examples of all languages (needs Go, Node, Rust and Java)
	$(BIN)/python -m pytest -m polyglot tests/polyglot

lint: $(STAMP) ## Check style, types, import layers, protos and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy memsvc replicas
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	scripts/protos.sh --check

format: $(STAMP) ## Rewrite Python and proto files in the house style
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/buf format --write

protos: $(STAMP) ## Generate the Python stubs from protos/
	scripts/protos.sh

docs: $(STAMP) ## Generate docs/reference/configuration.md and deploy/memsvc.example.yaml
	$(BIN)/python scripts/config_docs.py

lock: $(STAMP) ## Pin the newest versions that pyproject.toml allows
	scripts/lock.sh

bench: $(STAMP) ## Measure latency and recall against ef_search
	$(BIN)/python -m benchmarks

soak: $(STAMP) ## Run the long tests
	$(BIN)/python -m pytest -m soak

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) .hermes build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf examples/*/stubs examples/*/dist examples/*/target examples/*/node_modules examples/*/src/gen
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
