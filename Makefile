# Every target that needs it sets up .venv first: the tested versions, the project editable.
# Another Python: make fit PYTHON=python3.12. Another installer: see .github/workflows/ci.yml.

PYTHON ?= python3
INSTALL ?= $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint .ci/constraints.txt

BIN := .venv/bin
# Scripts in .venv hold absolute paths: a checkout that was moved gets a stamp of another name, and so a new install.
HERE := $(shell pwd -P | cksum | cut -d ' ' -f 1)
READY := .venv/.ready-$(HERE)
EXTRAS_READY := .venv/.extras-ready-$(HERE)

define NEEDS_PYTHON
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Python 3.11 or newer is needed, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
       "Name another: make $(or $(MAKECMDGOALS),fit) PYTHON=python3.12" >&2; exit 2; }
endef

.DEFAULT_GOAL := help
.PHONY: help fit tensorboard test test-all soak bench check notebooks rename clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

fit: $(READY) ## Train the digits recipe: real data, a minute, no download
	$(BIN)/lightning fit

tensorboard: $(READY) ## Look at the curves of all runs in logs/, at http://127.0.0.1:6006
	$(BIN)/python -m tensorboard.main --logdir logs --host 127.0.0.1

test: $(READY) ## Run the fast tests: one to two minutes, offline
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(READY) $(EXTRAS_READY) ## Run the fast and the slow tests
	$(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/python -m pytest -m slow --ignore tests/doctor
	$(if $(wildcard tests/doctor),$(BIN)/python -m pytest -n 2 -m slow tests/doctor)

soak: $(READY) ## Run the tests that repeat one thing for many minutes
	$(BIN)/python -m pytest -m soak

bench: $(READY) ## Measure speed, start-up and memory: tables of ratios, many minutes on a quiet machine
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/train_step.py --data_dir data
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/precision.py --compile
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/start_up.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/memory.py --data_dir data
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/image_files.py

check: $(READY) ## Lint, formatting and types: ruff and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy

notebooks: $(EXTRAS_READY) ## Execute the notebooks, leaving them as they are
	$(BIN)/python -m jupyter execute notebooks/*.ipynb

rename: ## Give the package your name: make rename NAME=my_net
	$(NEEDS_PYTHON)
	@$(PYTHON) -m project.commands.rename '$(NAME)'

clean: ## Remove .venv and caches; runs in logs/ and data/ stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/constraints.txt
	$(NEEDS_PYTHON)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@echo "Setting up .venv. The first time takes minutes: torch is a large download."
	@$(PYTHON) -m venv .venv
	@$(INSTALL) --editable '.[dev]'
	@rm -f .venv/.ready-* .venv/.extras-ready-*
	@touch $@

# matplotlib slows every start of torchmetrics, so it comes only to those who run notebooks or all tests.
$(EXTRAS_READY): $(READY)
	@echo "Adding what notebooks, export and serving need to .venv."
	@$(INSTALL) --editable '.[dev,notebooks,export,serve,parquet]'
	@touch $@
