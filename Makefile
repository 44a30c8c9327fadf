# `make test` and `make demo` do all the set-up on a machine that has only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test test-browser lint types coverage clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(STAMP)  ## make the virtual environment with the pinned set

# torch goes in first and alone, so that nothing else decides which build is taken.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train a small model to sort, watch it improve, and write a report
	$(BIN)/fspo train --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: lint types  ## ruff, mypy and the tests
	$(BIN)/python -m pytest -n auto

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
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache
