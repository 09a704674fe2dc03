# `make train` and `make test` need Python 3.11 or newer and make, and no compiler.
# Both create .venv, install into it what is missing, and reuse it afterwards.

VENV ?= .venv
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check install --quiet --no-deps
CLUSTER_VENV ?= .venv-openrlhf
# Frameworks whose requirements exclude each other: each in .venv-NAME, for its adapter's tests.
FRAMEWORKS := inspect openenv verifiers
RECIPE ?= embedded
WORKERS ?= 2
# Arguments for the program behind a target: make train ARGS="updates=5", make test ARGS="-k pool"
ARGS ?=

# The first of these that is new enough makes the environment; PYTHON=... chooses another.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python, \
	$(shell $(name) -c 'import sys; print("$(name)" * (sys.version_info >= (3, 11)))' 2>/dev/null)))
# Installs a set of requirements/ (2) into an environment (1), every file of it with its hash checked. No other package
# comes in: a set is complete. uv does in seconds what takes pip minutes, but knows nothing of the mirrors that pip is
# set up with.
define INSTALL
@$(BIN)/python -m uv pip install --quiet --python $(1)/bin/python --no-deps --require-hashes -r requirements/$(2).txt || { \
	echo "uv cannot install the locked versions (its reason is above); pip installs them, which takes minutes." >&2; \
	$(1)/bin/python $(PIP) --require-hashes -r requirements/$(2).txt; }
endef
# The clone itself, which has no hash; hatchling, which builds it, is in the environment.
EDITABLE := $(PIP) --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help train test test-original test-adapters test-openrlhf lint format types audit lock check-locks docs serve-docs examples bench gpu-evidence build clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(VENV)/.train ## train the embedded default and write runs/<name>/report.html
	$(BIN)/paw train $(RECIPE) $(ARGS)

# One thread a worker: more of them than cores slows every test down.
test test-original: export OMP_NUM_THREADS ?= 1
test test-original: export HF_HUB_OFFLINE ?= 1
# Compiled modules are kept, apart from their sources: many tests start a process that imports torch and transformers,
# which takes twice the time without them.
test test-original: export PYTHONDONTWRITEBYTECODE =
test test-original: export PYTHONPYCACHEPREFIX ?= $(CURDIR)/$(VENV)/pycache
test: $(VENV)/.dev ## run every test but those of the next three
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# Takes a C and a C++ compiler: two packages of TextWorld have no wheels.
test-original: $(VENV)/.original ## the original engines of ALFWorld and TextWorld, and ours against them
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m original $(ARGS)

test-adapters: export HF_HUB_OFFLINE ?= 1
test-adapters: $(FRAMEWORKS:%=.venv-%/.ready) ## the adapters of Inspect, OpenEnv and verifiers, each with its framework
	@set -e; for name in $(FRAMEWORKS); do \
		echo "== $$name"; .venv-$$name/bin/python -m pytest tests/adapters/test_$$name.py tests/adapters/test_ways.py $(ARGS); done

# Python 3.11 and 3 GB: Ray, vLLM for CPUs and DeepSpeed pin much of what .venv has in other versions.
test-openrlhf: export OMP_NUM_THREADS = 1
test-openrlhf: export DS_ACCELERATOR = cpu
test-openrlhf: export HF_HUB_OFFLINE = 1
# DeepSpeed builds kernels at the first use; in a folder of its own no other build's lock is waited for.
test-openrlhf: export TORCH_EXTENSIONS_DIR = $(CURDIR)/$(CLUSTER_VENV)/torch_extensions
test-openrlhf: export PYTHONPATH = $(CURDIR)/tests/openrlhf/cpu:$(CURDIR)
test-openrlhf: $(CLUSTER_VENV)/.ready ## the cluster engine, with real Ray, vLLM and DeepSpeed on a CPU
	PAW_CLUSTER_TESTS=1 $(CLUSTER_VENV)/bin/python -m pytest tests/openrlhf tests/train/test_vllm.py $(ARGS)

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
audit: $(VENV)/.dev .venv-audit/.ready ## known vulnerabilities of what is installed; fails where nothing was audited
	@.venv-audit/bin/python scripts/audit.py $(ARGS) \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

lock: $(VENV)/.dev ## write the pinned sets in requirements/ (ARGS=--upgrade: the newest versions)
	$(BIN)/python scripts/lock.py $(ARGS)

check-locks: $(VENV)/.dev ## resolve every pinned set again, from the index's metadata
	$(BIN)/python scripts/lock.py --check

docs: $(VENV)/.dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

serve-docs: $(VENV)/.dev ## the documentation at http://127.0.0.1:8000, rebuilt on change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# An example that trains has a short form, --smoke.
examples: $(VENV)/.dev ## run every example and the notebook
	@set -e; for example in examples/*.py; do echo "== $$example"; \
		$(BIN)/python $$example $$(grep -o -m1 -e --smoke $$example); done
	@for book in examples/*.ipynb; do echo "== $$book"; $(BIN)/python scripts/run_notebook.py $$book || exit 1; done

bench: $(VENV)/.dev ## measure the environments
	$(BIN)/python benchmarks/alfworld.py $(ARGS)

# For a machine without a network: the Python that has torch for its GPU, and no environment of our own.
GPU_PYTHON ?= python3
gpu-evidence: ## measure what needs a GPU, into runs/gpu-evidence/evidence.json; installs nothing
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) benchmarks/gpu_evidence.py $(ARGS)

build: $(VENV)/.dev ## source distribution and wheel, into dist/
	$(BIN)/hatchling build

clean: ## remove what the other targets made, .venv and runs excepted
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found. Install one, or give it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# DeepSpeed has no wheels. It is built without pip's cache, so that a wheel from another day hides no failure.
CLUSTER_SETS := $(patsubst %,requirements/%.txt,build torch cluster-cpu deepspeed)
$(CLUSTER_VENV)/.ready: $(CLUSTER_SETS)
	python3.11 -m venv $(CLUSTER_VENV)
	$(CLUSTER_VENV)/bin/pip install --quiet --require-hashes -r requirements/build.txt
	$(CLUSTER_VENV)/bin/pip install --quiet -r requirements/torch.txt
	$(CLUSTER_VENV)/bin/pip install --quiet --no-deps --require-hashes -r requirements/cluster-cpu.txt
	DS_BUILD_OPS=0 $(CLUSTER_VENV)/bin/pip install --quiet --no-deps --require-hashes --no-build-isolation --no-cache-dir \
		-r requirements/deepspeed.txt
	@touch $@

$(FRAMEWORKS:%=.venv-%/.ready): .venv-%/.ready: requirements/%.txt requirements/install.txt pyproject.toml | $(VENV)/.train
	$(BIN)/python -m venv .venv-$*
	@.venv-$*/bin/python $(PIP) --require-hashes -r requirements/install.txt
	$(call INSTALL,.venv-$*,$*)
	@.venv-$*/bin/python $(EDITABLE)
	@touch $@

.venv-audit/.ready: requirements/audit.txt | $(VENV)/.train
	$(BIN)/python -m venv .venv-audit
	$(call INSTALL,.venv-audit,audit)
	@touch $@

TRAIN_INPUTS := pyproject.toml hatch_build.py scripts/install_torch.py $(patsubst %,requirements/%.txt,torch install train)
$(VENV)/.train: $(TRAIN_INPUTS) | $(BIN)/python
	@echo "Installing into $(VENV): once, a minute or two"
	@$(BIN)/python scripts/install_torch.py
	@$(BIN)/python $(PIP) --require-hashes -r requirements/install.txt
	$(call INSTALL,$(VENV),train)
	@$(BIN)/python $(EDITABLE)
	@touch $@

$(VENV)/.dev: requirements/cpu.txt $(VENV)/.train
	@echo "Installing what the tests and checks need"
	$(call INSTALL,$(VENV),cpu)
	@touch $@

$(VENV)/.original: requirements/original.txt $(VENV)/.dev
	@echo "Installing the original engines of ALFWorld and TextWorld"
	$(call INSTALL,$(VENV),original)
	@touch $@
