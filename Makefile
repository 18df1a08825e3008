# Two commands do everything on a fresh Debian or Ubuntu machine: `make rehearse` and `make test`.
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/node_modules/.bin:$(CURDIR)/.cache/bin:$(PATH)

# By their first lines; the template of a batch script is judged when it is rendered.
SHELL_SCRIPTS = $$(git grep -lE '^\#!(/usr/bin/env |/bin/)(ba)?sh' -- ':!*.py' ':!*.sbatch')

# One more than there are cores: Terraform waits for AWS for most of a test. Who shares a worker: tests/conftest.py.
SIDE_BY_SIDE = --numprocesses=$$(($$(nproc) + 1)) --maxprocesses=6 --dist=loadfile

.PHONY: rehearse test setup setup-rehearsal lint types quick lock clean

rehearse: setup-rehearsal ## the main job: deploy, bootstrap, train, lose a host, resume, export, destroy
	$(BIN)/podwright rehearse cluster.yaml

test: setup-rehearsal lint types ## everything CI checks
	$(BIN)/pytest $(SIDE_BY_SIDE)

quick: setup lint types ## the tests that need neither hosts nor Terraform
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not hosts and not terraform and not rehearsal"

setup:
	@tools/setup.sh

setup-rehearsal:
	@tools/setup.sh rehearsal

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/shfmt -d $(SHELL_SCRIPTS)

types:
	$(BIN)/mypy

lock: setup ## pin anew what requirements admit
	tools/lock.sh

clean:
	$(BIN)/podwright rehearse --clean
	rm -rf cdktf.out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
