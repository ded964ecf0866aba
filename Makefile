# Every target makes its own environment: a clone, Python 3.11 or later and `make` are enough.
#
#   make demo          a real Postgres, loaded and followed into Parquet tables, in front of you
#   make test          unit, integration and a short chaos round
#   make slow          integration tests that would make the round above too long; SHARE=16 a sixteenth, as in CI
#   make iceberg       what the state file and each mode promise, on Iceberg tables; ALL=1: and every other test of tables;
#                      SHARE=8 an eighth of them
#   make lint          ruff, mypy --strict, import-linter
#   make chaos-once    kill -9 at every failpoint, on Parquet and on Iceberg, writers running on; REST=1 as in CI:
#                      what `make test` left, and with SHARE=6 a sixth of what is left of MySQL and MongoDB,
#                      and of the kills of compaction, another one whenever code changes; without SHARE all
#   make chaos         the whole matrix: at every failpoint several times, in every scenario, on both, in about three
#                      hours; PART=1/4 to PART=4/4 SEED=7: in four parts
#   make soak          leader and standby under load while something breaks every while; SECONDS=1200
#   make failover      a standby takes over within its seconds, with nothing else on the machine
#   make idle          ten minutes without a change while another database is written to; SECONDS=600
#   make mutants       plant known bugs; each must turn a test red; SHARE=8 an eighth of them, as in CI, where GREEN=known
#                      spares the same tests without a bug
#   make bench         ratios against pg_recvlogical, COPY and MERGE INTO; CHECK=1 fails below a bar
#   make bench-peers   the same beside other tools
#   make constraints   renew constraints.txt from what pyproject.toml allows today
#   make clean         remove the environment and everything the tools left behind

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS_STAMP := $(VENV)/.installed-peers
# Given on the command line as PYTHON=…, or the first of these that is new enough.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
# The first variable pins what is installed, the second what builds it.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install --quiet
# Each worker has servers and a Spark session of its own, and waits for them a third of its time: one more than
# there are cores.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 3 ? cores + 1 : 4)))
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 30 --durations-min 5
CHECK ?=
# What `make iceberg` runs; the other modules that write to any destination are left to ALL=1. What is of Iceberg tables
# alone is in `make test slow`.
ICEBERG := strict_cdc incremental resync pause rebuild toast
ALL ?=
SHARE ?=
REST ?=
PART ?=
SEED ?=
GREEN ?=
SECONDS ?= 1200

.PHONY: help venv demo test slow iceberg unit integration lint format bench bench-peers chaos chaos-once soak failover idle mutants constraints clean

help:
	@sed -n 's/^#   make/make/p' Makefile

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/has-java
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or later; none was found. Set PYTHON=/path/to/python."; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@extras=demo,dev,kafka,kinesis,mongodb,mysql,shapes; \
		scripts/has-java || { extras=$$extras,java; echo "no Java 17 or later found: installing a runtime into $(VENV)"; }; \
		command -v npm > /dev/null || { extras=$$extras,node; echo "no Node found: installing it into $(VENV)"; }; \
		$(PIP_INSTALL) --upgrade pip; \
		echo "installing penstock[$$extras] into $(VENV) (a few minutes the first time)"; \
		$(PIP_INSTALL) --editable ".[$$extras]"; \
		$(BIN)/penstock prepare
	@touch $@

$(PEERS_STAMP): $(STAMP)
	$(PIP_INSTALL) --editable ".[peers]"
	@touch $@

demo: venv
	$(BIN)/penstock demo

test: venv
	$(PYTEST) tests/unit tests/integration tests/chaos -m "not slow"

slow: venv
	SHARE=$(SHARE) $(PYTEST) tests/integration -m slow

iceberg: venv
	SHARE=$(SHARE) PENSTOCK_TEST_DESTINATION=iceberg $(PYTEST) $(if $(ALL),tests/integration --ignore-glob 'tests/integration/*iceberg*' \
		--ignore tests/integration/test_compact.py,\
		$(ICEBERG:%=tests/integration/test_%.py) -m "not slow")

unit: venv
	$(PYTEST) tests/unit

integration: venv
	$(PYTEST) tests/integration

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv
	CHECK=$(CHECK) $(BIN)/python -m bench

bench-peers: $(PEERS_STAMP)
	CHECK=$(CHECK) $(BIN)/python -m bench.peers

chaos-once: venv
	SHARE=$(SHARE) PENSTOCK_CHAOS=$(if $(REST),rest,once) $(PYTEST) tests/chaos \
		tests/integration/test_compact.py::test_a_kill_while_a_table_is_looked_after_loses_nothing \
		tests/integration/test_compact.py::test_compact_killed_at_any_step_while_changes_come_loses_nothing_and_is_done_again

chaos: venv
	PART=$(PART) PENSTOCK_CHAOS=full PENSTOCK_CHAOS_SEED=$(SEED) $(PYTEST) tests/chaos

soak: venv
	PENSTOCK_SOAK_S=$(SECONDS) $(BIN)/python -m pytest --numprocesses 0 -s tests/chaos/test_soak.py

failover: venv
	$(BIN)/python -m pytest --numprocesses 0 -s -m slow tests/integration/test_failover.py

idle: SECONDS := 600
idle: venv
	PENSTOCK_IDLE_S=$(SECONDS) $(BIN)/python -m pytest --numprocesses 0 -s -m slow tests/integration/test_idle.py

mutants: venv
	SHARE=$(SHARE) GREEN=$(GREEN) $(BIN)/python -m tests.mutants

# Resolved in an environment of its own, so that nothing that happens to be installed gets pinned.
constraints:
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or later; none was found. Set PYTHON=/path/to/python."; exit 1; }
	"$(PYTHON)" scripts/pin_versions.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench/results \
		spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
