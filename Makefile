# Every command sets itself up: the first one makes .venv, later ones reuse it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help dev demo demo-datasets test test-as-user lint format sim sim-bugs soak-registry bench soak-callback soak-lease docs protos clean

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	if $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
READY := .venv/.ready
RUNS := .venv/.runs
RUNS_DATASETS := .venv/.runs-datasets
comma := ,
ON_OLDER := tests/kernel/store/test_claim.py tests/kernel/store/test_plan.py tests/kernel/store/test_sql_submit.py
# What behaves differently for root: processes, sandboxes, rights, embedded PostgreSQL, homes.
OF_USERS := tests/contracts/lease/worker tests/contracts/stdio tests/contracts/machine/launchers tests/cli \
	tests/kernel/store/test_embedded.py tests/sdk/test_process.py tests/e2e/test_commands.py tests/e2e/test_demo.py \
	tests/e2e/test_machine.py
# One PostgreSQL per core; a few named tests (ARGS) run faster, and can be debugged, in one process.
PARALLEL := -n $(or $(JOBS),auto) --maxprocesses 8 --dist worksteal
# Ends what the tests have started, also after Ctrl-C: servers, workers, carriers.
GUARDED := $(BIN)/python -m tests.kit.guard $(BIN)/python
# The tests start many Python processes, which should not compile the same files again and again.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Shows which package is fetched: on one line, or in a log a line for each.
TELL := tell() { if [ -t 1 ]; then printf '\r\033[K  %s' "$$1"; elif [ -n "$$1" ]; then echo "  $$1"; fi; }
SHOW_PROGRESS := n=0; while read -r what package rest; do case "$$what $$package $$rest" in \
	Collecting*) n=$$((n + 1)); tell "$$n  $${package%%[<>=~!;[]*}" ;; \
	"Installing collected"*) if [ $$n -gt 0 ]; then tell "installing $$n packages …"; fi ;; \
	"Installing build"*started) tell "preparing …" ;; \
	esac; done; if [ -t 1 ]; then printf '\r\033[K'; fi

# $(1): what to install. $(2): which pip that needs, if not any.
define set_up
	@test -n "$(PYTHON)" || { echo "Windlass needs Python 3.11, 3.12 or 3.13 on the PATH (or: make PYTHON=/path/to/python)"; exit 1; }
	@echo "Setting up .venv with $(PYTHON), once …"
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python "$(PYTHON)" .venv; uv pip install --python $(BIN)/python $(1); \
	else \
		$(TELL); PIP="$(BIN)/python -m pip --disable-pip-version-check install"; \
		tell "making an environment …"; "$(PYTHON)" -m venv .venv; \
		$(if $(2),tell "$(2)"; $$PIP --quiet --upgrade '$(2)';) \
		$$PIP --progress-bar off $(1) | { $(SHOW_PROGRESS); }; \
	fi
	@touch $@
endef

$(READY): pyproject.toml
	$(call set_up,-e '.[all]' --group dev,pip>=25.1)

# For who wants to see it run: nothing that only developers need.
$(RUNS): pyproject.toml
	$(call set_up,-e '.[server$(comma)embedded]')

$(RUNS_DATASETS): pyproject.toml
	$(call set_up,-e '.[server$(comma)embedded$(comma)arrow]')

dev: $(or $(wildcard $(READY)),$(RUNS)) ## Embedded PostgreSQL, API, engine and a sample worker, until Ctrl-C
	@$(BIN)/windlass dev examples.greet:app

demo: $(or $(wildcard $(READY)),$(RUNS)) ## Submit work, kill a worker in the middle, show that everything finished once
	@$(BIN)/windlass demo

demo-datasets: $(or $(wildcard $(READY)),$(RUNS_DATASETS)) ## Deploy a DAG, kill a worker and a sink, count every row, partition and event
	@$(BIN)/windlass demo --datasets

test: $(READY) ## All tests on the embedded PostgreSQL (FAST=1: under a minute; ARGS=... for pytest; JOBS=1: one by one)
	@$(GUARDED) -m pytest $(if $(ARGS),,$(PARALLEL)) $(if $(FAST),-m "not slow") $(ARGS)
	@$(if $(FAST)$(ARGS),true,echo "Once more on PostgreSQL 16, what depends on its planner and its SQL:"; \
		WINDLASS_TEST_PG=16 $(GUARDED) -m pytest -q $(PARALLEL) $(ON_OLDER))
	@if [ "$$(id -u)" = 0 ] && [ -z "$(FAST)$(ARGS)" ]; then $(MAKE) --no-print-directory test-as-user; fi

test-as-user: $(READY) ## As root: once more as an ordinary user, made for it, what depends on the user
	@$(GUARDED) -m tests.as_user -q $(PARALLEL) $(OF_USERS)

lint: $(READY) ## Format, lint and types, as CI checks them
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## Rewrite the files as `make lint` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

sim: $(READY) ## Simulate many seeds with faults (SEEDS=200 FROM=0 WORLD=dag)
	@$(GUARDED) -m tests.sim run --seeds $(or $(SEEDS),200) --from $(or $(FROM),0) $(if $(WORLD),--world $(WORLD))

sim-bugs: $(READY) ## Prove that the simulation finds each planted bug within two minutes
	@$(GUARDED) -m tests.sim bugs

soak-registry: $(READY) ## Kill gRPC workers and servers at random during 2,000 workflows (WORKFLOWS=2000 KILLS=60 SEED=7)
	@$(GUARDED) -m tests.e2e.registry_soak --workflows $(or $(WORKFLOWS),2000) --kills $(or $(KILLS),60) $(if $(SEED),--seed $(SEED))

soak-lease: $(READY) ## Kill dispatcher, carrier, workers and database during 10,000 tasks, for each carrier (TASKS=10000 KILLS=40 CARRIER=nats)
	@$(GUARDED) -m tests.e2e.lease_soak --tasks $(or $(TASKS),10000) --kills $(or $(KILLS),40) $(if $(CARRIER),--carrier $(CARRIER))

bench: $(READY) ## Ours beside the peers and the raw limit (ROWS=P4,P6 for a part)
	@$(BIN)/python -m bench $(if $(ROWS),--rows $(ROWS))

soak-callback: $(READY) ## 5,000 running tasks with a heartbeat each second, for ten minutes (SECONDS=600 TASKS=5000)
	@$(BIN)/python -m bench.heartbeats long --seconds $(or $(SECONDS),600) --tasks $(or $(TASKS),5000)

docs: $(READY) ## Rewrite the generated pages under docs/
	@$(BIN)/python -m docs.generate

protos: $(READY) ## Rewrite the Python code of the protos 
	@$(BIN)/python -m tests.shape.protos

clean: ## Remove the virtual environment and all that was generated
	rm -rf .venv .bench bench/out .mypy_cache .pytest_cache .ruff_cache .hypothesis
