# `make train` and `make test` need Python 3.11 or newer and make, nothing else.
# Both create .venv, install into it what is missing, and reuse it afterwards.

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --prefer-binary
CLUSTER_VENV ?= .venv-openrlhf
RECIPE ?= embedded
WORKERS ?= 2
# Arguments for the program behind a target: make train ARGS="updates=5", make test ARGS="-k pool"
ARGS ?=

# The first of these that is new enough makes the environment; PYTHON=... chooses another.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python, \
	$(shell $(name) -c 'import sys; print("$(name)" * (sys.version_info >= (3, 11)))' 2>/dev/null)))
# The extras that tests use; a test whose extra is missing is skipped and says which.
TESTED := train,alfworld,eval,server,retrieval,dense,webshop,lucene,export,sft,tau2
INPUTS := pyproject.toml hatch_build.py

.DEFAULT_GOAL := help
.PHONY: help train test test-openrlhf lint format types audit docs serve-docs examples bench build clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(VENV)/.train ## train the embedded default and write runs/<name>/report.html
	$(BIN)/paw train $(RECIPE) $(ARGS)

# One thread a worker: more of them than cores slows every test down.
test: export OMP_NUM_THREADS ?= 1
test: export HF_HUB_OFFLINE ?= 1
test: $(VENV)/.dev ## run every test
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# Python 3.11 and 3 GB: Ray, vLLM for CPUs and DeepSpeed pin much of what .venv has in other versions.
test-openrlhf: export OMP_NUM_THREADS = 1
test-openrlhf: export DS_ACCELERATOR = cpu
test-openrlhf: export HF_HUB_OFFLINE = 1
test-openrlhf: export PYTHONPATH = $(CURDIR)/tests/openrlhf/cpu:$(CURDIR)
test-openrlhf: $(CLUSTER_VENV)/.ready ## the cluster engine, with real Ray, vLLM and DeepSpeed on a CPU
	PAW_CLUSTER_TESTS=1 $(CLUSTER_VENV)/bin/python -m pytest tests/openrlhf $(ARGS)

lint: $(VENV)/.dev ## ruff: rules and format; import-linter: who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## ruff: fix what can be fixed, and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy
	$(BIN)/mypy

# Its own environment: what audits is not part of what is audited. Needs the network.
audit: $(VENV)/.dev ## known vulnerabilities of what is installed
	@test -x .venv-audit/bin/pip-audit \
		|| { $(BIN)/python -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit; } \
		|| echo "NOT AUDITED: pip-audit cannot be installed."
	@test ! -x .venv-audit/bin/pip-audit || .venv-audit/bin/python scripts/audit.py \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

docs: $(VENV)/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

serve-docs: $(VENV)/.docs ## the documentation at http://127.0.0.1:8000, rebuilt on change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# An example that trains has a short form, --smoke.
examples: $(VENV)/.dev ## run every example and the notebook
	@set -e; for example in examples/*.py; do echo "== $$example"; \
		$(BIN)/python $$example $$(grep -o -m1 -e --smoke $$example); done
	@for book in examples/*.ipynb; do echo "== $$book"; $(BIN)/python scripts/run_notebook.py $$book || exit 1; done

bench: $(VENV)/.dev ## measure the environments
	$(BIN)/python benchmarks/alfworld.py $(ARGS)

build: $(VENV)/.dev ## source distribution and wheel, into dist/
	$(BIN)/hatchling build

clean: ## remove what the other targets made, .venv and runs excepted
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found. Install one, or give it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# DeepSpeed has no wheels. Its build needs torch and setuptools 80 or newer (77 lacks what torch's
# extension builder passes on); without pip's cache, so that a wheel from another day hides no failure.
BUILT_FROM_SOURCE := tests/openrlhf/requirements-cpu-source.txt
$(CLUSTER_VENV)/.ready: tests/openrlhf/requirements-cpu.txt $(BUILT_FROM_SOURCE)
	python3.11 -m venv $(CLUSTER_VENV)
	$(CLUSTER_VENV)/bin/pip install --quiet setuptools==80.9.0 wheel torch==2.13.0
	$(CLUSTER_VENV)/bin/pip install --quiet --no-deps -r $<
	DS_BUILD_OPS=0 $(CLUSTER_VENV)/bin/pip install --quiet --no-deps --no-build-isolation --no-cache-dir \
		-r $(BUILT_FROM_SOURCE)
	@touch $@

$(VENV)/.train: $(INPUTS) scripts/install_torch.py | $(BIN)/python
	@echo "Installing into $(VENV): once, a minute or two"
	@$(BIN)/python scripts/install_torch.py
	@$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo "Installing what the tests and checks need"
	@$(PIP) --editable '.[$(TESTED),dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(PIP) --editable '.[$(TESTED),dev,docs]'
	@touch $@
