# On a fresh Debian or Ubuntu machine, run `make rehearse` or `make test`: both install what they need.
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/node_modules/.bin:$(CURDIR)/.cache/bin:$(PATH)

# Found by their first lines. Tests check the batch script's template when they render it.
SHELL_SCRIPTS = $$(git grep -lE '^\#!(/usr/bin/env |/bin/)(ba)?sh' -- ':!*.py' ':!*.sbatch')

# Two workers more than cores: one mostly waits for Terraform, one for Slurm. tests/conftest.py groups tests by worker.
SIDE_BY_SIDE = --numprocesses=$$(($$(nproc) + 2)) --maxprocesses=6 --dist=loadfile

# Tests start hundreds of Pythons; without bytecode on disk each would compile the checkout's sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: rehearse test setup setup-rehearsal setup-test lint types quick bench-smoke lock clean

rehearse: setup-rehearsal ## deploy, bootstrap, train, lose a host, resume, export, destroy
	$(BIN)/podwright rehearse cluster.yaml

test: setup-test lint types ## run everything CI checks
	$(BIN)/pytest $(SIDE_BY_SIDE) --slowest 20

quick: setup lint types ## run the tests without hosts, Terraform and campaigns
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not hosts and not terraform and not rehearsal and not campaign"

bench-smoke: setup-test ## run the smallest case of each benchmark
	$(BIN)/python bench/smoke.py

setup:
	@tools/setup.sh

setup-rehearsal:
	@tools/setup.sh rehearsal

setup-test:
	@tools/setup.sh rehearsal browser

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/shfmt -d $(SHELL_SCRIPTS)

types:
	$(BIN)/mypy

lock: setup ## pin all dependencies again
	tools/lock.sh

clean:
	$(BIN)/podwright rehearse --clean
	rm -rf cdktf.out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
