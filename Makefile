# `make` alone lists the targets. Every target that needs the environment sets it up first.
PYTHON ?= python3
VENV := .venv
EXTRAS := experiments,dev
PYTEST_ARGS ?=
PROFILE ?= quick
PIP_FLAGS := -qq --disable-pip-version-check --no-input --progress-bar off

# `make test PY=python` uses an environment of your own (conda, say) and sets up nothing.
ifeq ($(origin PY),command line)
READY :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

# Tests on real data run only if the user says where the data is.
ifdef DATA_DIR
export DATA_DIR
else
unexport DATA_DIR
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test test-slow lint format types lock reproduce-table1 reproduce-table3 reproduce-table4 reproduce-ablation reproduce-recompute figures notebooks data-cifar10 data-cifar100 data-imagenette benchmark benchmark-kernels benchmark-sizes benchmark-transformers benchmark-gpu roofline test-gpu report clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-zA-Z0-9_-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make the environment in .venv from constraints.txt

test: $(READY) ## Run the fast tests (PYTEST_ARGS="-n 2" passes options on)
	$(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: $(READY) ## Run all the tests, the slow ones too
	$(PY) -m pytest $(PYTEST_ARGS)

test-gpu: $(READY) ## Run the tests that need a GPU, its kernels compiled and not interpreted
	TRITON_INTERPRET=0 $(PY) -m pytest -m gpu $(PYTEST_ARGS)

lint: $(READY) ## Check style, format and types, and that tables are what the rows give
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m experiments.report --check

format: $(READY) ## Format the code and fix what can be fixed
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

types: $(READY) ## Check the types of the core
	$(PY) -m mypy

reproduce-table1: $(READY) ## Train and measure every method, write Table 1 (PROFILE=quick, cifar or paper)
	@# A run that ended badly is a row: the table is written all the same, then make fails.
	$(PY) scripts/run_grid.py --profile $(PROFILE); ended=$$?; \
	$(PY) -m experiments.report --profile $(PROFILE) && exit $$ended

reproduce-ablation: $(READY) ## Change one option of DIVISION at a time, write Table 5 (PROFILE=quick or cifar)
	$(PY) -m experiments.ablation --profile $(PROFILE); ended=$$?; \
	$(PY) -m experiments.report --ablation $(PROFILE) && exit $$ended

# Each network with the schedule of Table 1, shortened; its gradients are those of stock training.
COMPARED := dataset=cifar10 scale=reduced hardware.threads=1 optim.batch=128 ~at.early layers=[] \
    specs=[recompute] +specs.division={} +specs.actnn={}
reproduce-recompute: $(READY) ## Compare gradient errors at equal bytes on three networks (CIFAR-10), write the tables
	$(PY) -m experiments.errors model=resnet20 optim=sgd optim.lr=0.4 optim.epochs=2 \
	    +at.middle=390 $(COMPARED)
	$(PY) -m experiments.errors model=vit_micro optim=adamw optim.lr=2e-3 optim.epochs=1 \
	    +at.middle=195 $(COMPARED)
	$(PY) -m experiments.errors model=wrn16_4 optim=sgd optim.lr=0.2 optim.epochs=1 \
	    +at.middle=195 batch=32 warmup=10 $(COMPARED)
	$(PY) -m experiments.report

reproduce-table3: $(READY) ## Count the memory of the published networks without a GPU, write Table 3
	$(PY) -m experiments.table3
	$(PY) -m experiments.report --table3

reproduce-table4: $(READY) ## Time every method against batch size and within a memory budget, write Table 4
	$(PY) -m experiments.table4
	$(PY) -m experiments.report --table4

data-cifar10: $(READY) ## Put CIFAR-10 into DATA_DIR or ./data
	$(PY) scripts/get_data.py cifar10

data-cifar100: $(READY) ## Put CIFAR-100 into DATA_DIR or ./data
	$(PY) scripts/get_data.py cifar100

data-imagenette: $(READY) ## Put Imagenette into DATA_DIR or ./data
	$(PY) scripts/get_data.py imagenette

benchmark: $(READY) ## Time a training step under several methods, and measure its peak memory
	$(PY) -m experiments.benchmark

benchmark-kernels: $(READY) ## Time the kernels against plain copies
	$(PY) -m experiments.kernels

benchmark-sizes: $(READY) ## Count what is saved for the published networks, without data
	$(PY) -m experiments.sizes

benchmark-gpu: $(READY) ## Time a step of ResNet-50 on this machine's GPU under several methods, and its memory
	$(PY) -m experiments.benchmark --config-name benchmark_gpu

roofline: $(READY) ## Predict what the methods cost on GPUs that are not here
	for gpu in rtx3090 a100 h100; do \
	    $(PY) -m experiments.roofline gpu=$$gpu && \
	    $(PY) -m experiments.roofline gpu=$$gpu dtype=bfloat16 layout=channels_last || exit 1; \
	done

figures: $(READY) ## Draw all figures that have rows, into results/figures
	$(PY) -m experiments.draw

notebooks: $(READY) ## Execute all notebooks; copies with outputs go to outputs/notebooks
	$(PY) scripts/run_notebooks.py

benchmark-transformers: $(READY) ## Measure saved bytes and gradient errors of ViT, Swin and ConvNeXt
	$(PY) -m experiments.transformers

report: $(READY) ## Write tables, REPRODUCTION.md and report.html from the rows, and the README's copies
	$(PY) -m experiments.report

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# A sound .venv is brought up to date in place; a missing or broken one is made anew.
$(VENV)/.ready: pyproject.toml constraints.txt
	@if ! $(VENV)/bin/python -c '$(SUPPORTED)' 2>/dev/null; then \
	    if ! $(PYTHON) -c '$(SUPPORTED)' 2>/dev/null; then \
	        echo "Python 3.11, 3.12 or 3.13 is needed; $(PYTHON) is" \
	            "$$($(PYTHON) --version 2>/dev/null || echo missing)." \
	            "Choose another with: make setup PYTHON=python3.11" >&2; \
	        exit 1; \
	    fi; \
	    $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "Installing into $(VENV): the first time about 6 GB and 2 to 10 minutes, silent unless it fails."
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# Versions that suit the oldest supported Python suit the newer ones, not the other way round.
lock: ## Renew constraints.txt, and the pins of environment.yml, with Python 3.11
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	    echo "The lock is made with Python 3.11: make lock PYTHON=python3.11" >&2; exit 1; }
	@echo "Resolving in a new environment: about 6 GB and 2 to 10 minutes, silent unless it fails."
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(PYTHON) -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install $(PIP_FLAGS) -e '.[$(EXTRAS)]'; \
	{ echo "# Every package of the environment at its exact version (Linux, x86_64, all extras)."; \
	  echo "# Generated by \`make lock\` from the ranges in pyproject.toml; do not edit by hand."; \
	  "$$tmp/venv/bin/python" -m pip freeze --all --exclude pip --exclude division-repro; \
	} > "$$tmp/constraints.txt"; \
	awk -F '==' 'NR == FNR { version[tolower($$1)] = $$2; next } \
	    { name = $$1; sub(/^ *- /, "", name) } \
	    NF == 2 && name in version { $$0 = $$1 "==" version[name] } \
	    { print }' "$$tmp/constraints.txt" environment.yml > "$$tmp/environment.yml"; \
	cat "$$tmp/constraints.txt" > constraints.txt; \
	cat "$$tmp/environment.yml" > environment.yml

clean: ## Remove caches and build leftovers; .venv and results stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./.git -prune -o \
	    \( -name __pycache__ -o -name '*.nb[ci]' \) -prune -exec rm -rf {} +
