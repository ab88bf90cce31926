# `make demo` and `make test` do all their set-up on a machine that has only Python 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

# Compiled modules are kept: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check unit requirements wheel mutants chaos bench bench-postgres bench-redis bench-many bench-service bench-idempotency clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $(READY)

demo: $(READY) ## Thousands of deliveries with duplicates, failures and a killed worker, each handled once
	$(BIN)/postroom demo

test: check unit requirements ## Everything that CI runs

check: $(READY) ## Style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY) ## All tests, or those that TESTS names: make unit TESTS="tests/engines -k redis"
	$(BIN)/pytest --numprocesses auto --dist worksteal --quiet $(TESTS)

mutants: $(READY) ## Whether tests notice when the code is wrong: applies requirements/mutants.toml to a copy; several minutes
	$(BIN)/python tools/mutants.py $(MUTANTS)

chaos: $(READY) ## Killed workers and servers, failover, every order of statements, every state of the FIFO rules: half an hour
	POSTROOM_CHAOS=1 POSTROOM_HISTORIES=700 POSTROOM_RESTARTS=200 $(BIN)/pytest tests/postgres_chaos tests/redis_chaos tests/join_load tests/many \
		tests/exploration tests/histories tests/runtime/test_kill.py tests/runtime/test_order.py \
		tests/scenarios/test_guard_kills.py --quiet -s

requirements: $(READY) ## Whether each requirement of the built areas is proven; rewrites requirements/coverage.md
	$(BIN)/python tools/requirements.py

wheel: $(READY) ## Build the wheel, install it into a fresh environment and test what is installed
	$(BIN)/python -m tools.check_wheel

bench: $(READY) ## Speed on SQLite, beside a raw sqlite3 loop
	$(BIN)/python -m benchmarks.sqlite

bench-postgres: $(READY) ## Speed on PostgreSQL, beside pgqueuer, procrastinate, awa-pg, saq and a raw asyncpg loop
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-bench/bin/python -m pip install --quiet --editable '.[postgres,psycopg,cli]' -r benchmarks/postgres/requirements.txt
	.venv-bench/bin/python -m benchmarks.postgres $(BENCH)

bench-redis: $(READY) ## Speed on Redis, beside saq, arq, dramatiq, taskiq, streaq and a raw loop of scripts
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-bench/bin/python -m pip install --quiet --editable '.[cli]' -r benchmarks/redis/requirements.txt
	for peer in arq saq taskiq; do \
		$(PYTHON) -m venv .venv-bench/$$peer && \
		.venv-bench/$$peer/bin/python -m pip install --quiet -r benchmarks/redis/requirements-$$peer.txt || exit 1; \
	done  # each wants another redis-py
	.venv-bench/bin/python -m benchmarks.redis $(BENCH)

bench-many: $(READY) ## What many stores cost in one room, and how they affect each other
	$(BIN)/python -m benchmarks.many $(BENCH)

bench-service: $(READY) ## Requests per second of the HTTP service, next to a bare Starlette endpoint
	$(BIN)/python -m benchmarks.service $(BENCH)

bench-idempotency: $(READY) ## Requests per second with idempotency keys, next to hand-written SQL
	$(BIN)/python -m benchmarks.idempotency $(BENCH)

clean: ## Remove what make made
	rm -rf $(VENV) .venv-bench .build
