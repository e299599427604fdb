# Targets for people; `make help` lists them. Everything runs in .venv, which the first target makes.
#
# PyTorch is installed first and alone, so that no other package pulls a build of its own choice. On Linux x86-64 the
# default index serves a CUDA build of several GB; for another build name its index, for example
#     make test TORCH_ARGS="--index-url <index of PyTorch's CPU wheels>"
# or give a wheel file:  make test TORCH=/path/to/torch-2.13.0-....whl
# (another version of PyTorch: change it in requirements/lock.txt too).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished

.DEFAULT_GOAL := help
.PHONY: help train test test-exact lint format bench bench-train bench-engines bench-memory clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(STAMP)  ## train, evaluate and export a policy; Hydra overrides in ARGS="..."
	$(PY) train.py $(ARGS)

test: $(STAMP)  ## the tests without the slow ones; pytest arguments in ARGS="..."
	$(PY) -m pytest $(ARGS)

test-exact: $(STAMP)  ## 50,000 tokens of the real target under random decisions against plain decoding: an hour
	$(PY) -m benchmarks.exactness $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(STAMP)  ## rewrite the sources in the project's format
	$(PY) -m ruff check --fix-only
	$(PY) -m ruff format

bench: $(STAMP)  ## the benchmarks; arguments in ARGS="..."
	$(PY) -m benchmarks.run $(ARGS)

bench-train: $(STAMP)  ## speed of replay and of learning; arguments in ARGS="..."
	$(PY) -m benchmarks.training $(ARGS)

bench-engines: $(STAMP)  ## against transformers' generate and its speculation; arguments in ARGS="--bundle DIR ..."
	$(PY) -m benchmarks.engines $(ARGS)

bench-memory: $(STAMP)  ## memory held against the budget, and over 500 loads; arguments in ARGS="..."
	$(PY) -m benchmarks.memory $(ARGS)

clean:  ## remove build products and caches; .venv and outputs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The stamp is written last. An install that was killed half way leaves UNFINISHED behind, and the next run starts
# .venv again from nothing; one that merely failed (no network, a typo) is gone on with.
$(STAMP): pyproject.toml requirements/lock.txt
	@if [ -e $(UNFINISHED) ] || ! $(PY) -m pip --version >/dev/null 2>&1; then \
		echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@touch $(UNFINISHED)
	@{ $(PY) -m pip install $(TORCH_ARGS) "$(TORCH)" \
		&& $(PY) -m pip install -c requirements/lock.txt -e ".[gguf,train,cluster,serve,dev]"; } \
		|| { rc=$$?; [ $$rc -ge 128 ] || rm -f $(UNFINISHED); exit $$rc; }
	@rm -f $(UNFINISHED)
	@touch $@
