# Headrace. `make` alone prints what can be done.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CLUSTER := PYTHONPATH=e2e $(PYTHON) -m cluster
RIG := PYTHONPATH=e2e $(PYTHON) -m rig
# The tests end to end, which wait much, keep one worker; two run all others beside them.
WORKERS := -n 3 --dist loadscope --no-loadscope-reorder
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo demo-down test test-fast check format crds images setup venv cluster-up cluster-down

help: ## Print this list
	@echo "Headrace: serve language models on Kubernetes within their latency targets."
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "make demo ARGS=--no-burst leaves out the last minutes; ARGS='--name mine' gives demo and demo-down a cluster"
	@echo "of that name; ARGS=--force takes over one that another checkout started."
	@echo "demo and test start a single-node Kubernetes of their own; with KUBECONFIG set they play on that cluster instead"
	@echo "(its images named in HEADRACE_CONTROL_PLANE_IMAGE and HEADRACE_ENGINE_IMAGE) and remove there only what they made."

setup: ## Install what is missing: Debian packages, Kubernetes binaries, the virtual environment
	@$(CLUSTER) setup

venv: ## Make .venv, from a cache that all checkouts share
	@$(CLUSTER) setup --only venv

demo: ## Everything from nothing to a streamed answer on a real Kubernetes; leaves it running
	@PYTHONPATH=e2e $(PYTHON) -m demo up $(ARGS)

demo-down: ## Remove all that the demo started
	@PYTHONPATH=e2e $(PYTHON) -m demo down $(ARGS)

test: ## All tests: unit, API server, engine, end to end; removes all it started
	@$(RIG) prepare
	@trap '$(RIG) close >/dev/null 2>&1 || true' EXIT; nice -n 5 .venv/bin/pytest e2e tests $(WORKERS)

test-fast: venv ## Tests that need no cluster and no API server
	@.venv/bin/pytest tests -m "not apiserver and not e2e"

check: venv ## Lint, types, import contracts, generated files
	@.venv/bin/ruff check operator engine tests e2e benchmarks
	@.venv/bin/ruff format --check operator engine tests e2e benchmarks
	@.venv/bin/mypy operator/headrace engine/headrace_wire engine/headrace_engine e2e/cluster e2e/rig e2e/demo
	@.venv/bin/lint-imports
	@.venv/bin/headrace crds --check

format: venv ## Format the code
	@.venv/bin/ruff check --fix operator engine tests e2e benchmarks
	@.venv/bin/ruff format operator engine tests e2e benchmarks

crds: venv ## Generate crds/ and charts/headrace-crds/ from the Python types
	@.venv/bin/headrace crds --output crds --chart charts/headrace-crds/templates

images: ## Build the control plane's and the engine's image
	@$(CLUSTER) setup --only images

cluster-up: ## Start a single-node Kubernetes for development and print its kubeconfig
	@$(CLUSTER) setup --only binaries
	@$(CLUSTER) up --name dev

cluster-down: ## Stop it and remove all it made
	@$(CLUSTER) down --name dev
