# Everything a developer or a first user calls. `make` alone lists it.
# Needs make and a Python 3.11 or newer; `make install` brings the rest into .venv.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
STAMP := .venv/.installed
# Folders that exist among those that must type-check strictly.
TYPED := $(wildcard quorate client_sdk coordinator simulation dashboards benchmarks scripts tests/explorer)
SOAK_SECONDS ?= 600
# How many processes share the tests of `make fast`: one a core, but no more than four, since each takes some 700 MB.
WORKERS ?= auto

# One thread per process for numerical libraries: many small processes share the machine.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept: else each of the many processes that tests start would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
# COMPARE, SECURE, DEMO_JSON, PYTHON, TORCH_INDEX_URL and UPGRADE reach the programs through the environment, as make passes them.
export SOAK_SECONDS

.PHONY: help install demo test fast check format bench explore soak mutate lock clean

help: ## Say what there is
	@echo "Quorate. Targets:"
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1|\2/' | awk -F'|' '{printf "%-16s%s\n", $$1, $$2}'

install: $(STAMP) ## Create .venv with every extra, the project and its `quorate` script; build the dashboard
	@$(BIN)/python scripts/dashboard.py

$(STAMP): pyproject.toml requirements/lock.txt requirements/torch.txt client_sdk/tensors/compiled.c \
		$(addprefix scripts/,install.py pip_settings.py build_hook.py compiling.py)
	@python=$$(scripts/find_python.sh) && "$$python" -u scripts/install.py
	@scripts/debian.sh dataset-fashion-mnist || true

demo: install ## Train MNIST on 400 devices of this machine (SECURE=1: all rounds secure, COMPARE=1 adds a bare loop, DEMO_JSON=file writes the rounds)
	@$(BIN)/quorate demo

test: install ## Run the tests, fast ones first (ONLY=path or ONLY=marker narrows it)
	@for package in chromium nginx postgresql systemd; do scripts/debian.sh $$package || true; done
	@$(BIN)/python -m pytest $(call only,$(ONLY)) $(ARGS)

fast: install ## Run what takes under two minutes on two cores: no slow tests, no whole runs (WORKERS=0 keeps to one process)
	@$(BIN)/python -m pytest -q -m "not slow and not whole and not service" -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: install ## Lint, format, types (strict) and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

format: install ## Let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## Run every benchmark (ONLY=topic for one, ARGS="--quick --json"); on a GPU: python -m benchmarks.gpu
	@set -e; set -- $(if $(ONLY),$(ONLY),$(basename $(notdir $(filter-out benchmarks/_% benchmarks/harness.py benchmarks/gpu.py,$(wildcard benchmarks/*.py))))); \
		number=0; for topic; do number=$$((number + 1)); \
		echo "== $$topic ($$number of $$#)"; $(BIN)/python -m benchmarks.$$topic $(ARGS); done

explore: install ## Play schedules of faults for a minute (ARGS="--schedules 1000 --jobs 2", ARGS="--seed 31 --trace")
	@$(BIN)/python -m tests.explorer $(or $(ARGS),--seconds 60)

soak: install ## Search longer: soak tests for SOAK_SECONDS each (600), property tests with many examples
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -o timeout=0 -m "soak or property" $(ARGS)

mutate: install ## Make small mutations of one room and run its fast tests (ONLY=coordinator/engine, ARGS="--count 20 --seed 1")
	@$(BIN)/python -m scripts.mutation $(ONLY) $(ARGS)

lock: install ## Resolve requirements/lock.txt again (UPGRADE=1 takes the newest versions)
	@$(BIN)/python scripts/lock.py

clean: ## Remove .venv and every cache
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .mutate build dist dashboards/built dashboards/web/node_modules client_sdk/tensors/compiled-*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# ONLY is a path (perhaps with ::test) where it exists, and a marker expression otherwise.
only = $(if $(1),$(if $(wildcard $(firstword $(subst ::, ,$(1)))),$(1),-m "$(1)"))
