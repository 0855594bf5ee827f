# Each target does its own set-up first, which takes no time when nothing is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
SCENARIO ?= scenarios/incast.yaml
PYTEST := $(BIN)/pytest
# Fabrics that tests build side by side. Each chooses its dilation by what it gets of the machine.
FABRICS ?= 2
# Scenarios that take 20 s and more, and whose parts others and tests/fabric cover.
LONG := all-to-all-moe fsdp-iteration gpt3-hpn incast-long pipeline-scatter-gather straggler two-jobs

.PHONY: help setup run test scenarios lint unit test-ryu bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## install Debian packages and the Python environment
	@tools/setup-system.sh
	@tools/setup-venv.sh

run: setup  ## run the main job (or: make run SCENARIO=file)
	@$(BIN)/rocelab run $(SCENARIO)

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: setup  ## tests that need no root
	$(PYTEST) -n auto tests/unit tests/interop

test: lint  ## style, types and every test; those that build a fabric need root
	$(PYTEST) -n auto tests/unit tests/interop
	$(PYTEST) -n $(FABRICS) --dist loadgroup -m 'not alone' tests/fabric scenarios $(LONG:%=--ignore=scenarios/%.yaml)
	$(PYTEST) -m alone tests/fabric

scenarios: setup  ## every scenario, the long ones too
	$(PYTEST) -n $(FABRICS) scenarios

test-ryu: setup  ## the routing tests with Ryu 4.34 in place of os-ken
	tools/ryu-env.sh .venv-ryu
	ROCELAB_CONTROLLER_PYTHON=.venv-ryu/bin/python $(PYTEST) tests/fabric/test_routing.py

bench: setup  ## benchmarks, each a ratio within one run
	$(BIN)/python -m tests.bench

clean:  ## remove caches and build products (not the environments, not runs/)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
	find . -path './.venv*' -prune -o -name '*.bpf.o' -type f -exec rm -f {} +
