# On a fresh Debian or Ubuntu machine, run `make rehearse` or `make test`: both install what they need.
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/node_modules/.bin:$(CURDIR)/.cache/bin:$(PATH)

# Found by their first lines. Tests check the batch script's template when they render it.
SHELL_SCRIPTS = $$(git grep -lE '^\#!(/usr/bin/env |/bin/)(ba)?sh' -- ':!*.md' ':!*.py' ':!*.sbatch' ':!*.jinja')

# Six workers more than cores: they mostly wait, for Terraform and Slurm. tests/conftest.py groups tests by worker.
SIDE_BY_SIDE = --numprocesses=$$(($$(nproc) + 6)) --maxprocesses=8 --dist=loadfile

# Tests start hundreds of Pythons; without bytecode on disk each would compile the checkout's sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs generate schemas wheels bare release rehearse test collect tests setup setup-rehearsal setup-test lint types quick bench-smoke sbom lock clean

rehearse: setup-rehearsal ## deploy, bootstrap, train, lose a host, resume, export, destroy
	$(BIN)/podwright rehearse cluster.yaml

test: setup-test ## run everything CI checks
	@$(MAKE) --no-print-directory --jobs=2 lint collect
	@$(MAKE) --no-print-directory --jobs=2 types tests

collect: # writes the tests' bytecode, which else each worker compiles
	@$(BIN)/pytest --collect-only --quiet > .cache/collected.txt || { tail -40 .cache/collected.txt; exit 1; }

tests: # what fails is tried once more, alone
	$(BIN)/python tools/run_tests.py $(SIDE_BY_SIDE) --slowest 20

quick: setup lint types ## run the tests that take milliseconds: no hosts, no Terraform, no AWS stand-in
	$(BIN)/pytest --numprocesses=$$(nproc) --maxprocesses=6 --dist=loadfile -m "not hosts and not terraform and not rehearsal and not slow"

bench-smoke: setup-test ## run the smallest case of each benchmark
	$(BIN)/python bench/smoke.py

generate: setup schemas ## write all files that follow from sources: schemas, bindings, docs/constructs.md
	$(BIN)/python tools/generate_bindings.py
	$(BIN)/python tools/document_constructs.py
	$(BIN)/python tools/metadata.py

schemas: ## write the JSON Schemas of cluster.yaml, run.yaml and job.yaml for editors
	$(BIN)/podwright schema -o schemas/cluster.json
	$(BIN)/podwright-train schema > schemas/run.json
	$(BIN)/podwright-train schema --job > schemas/job.json

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
	$(BIN)/codespell
	$(BIN)/python tools/lint_names.py
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/shfmt -d $(SHELL_SCRIPTS)

types:
	$(BIN)/mypy
	$(BIN)/mypy bench/*.py tools/*.py # scripts, so not among the packages

docs: setup ## build the documentation site, strictly: a broken link ends it
	@tools/setup.sh docs
	$(BIN)/python tools/build_docs.py site

wheels: setup ## build the wheels into dist/, and try them in an empty folder
	$(BIN)/python tools/release.py dist --no-rehearsal --no-tag

bare: setup ## build the wheels, and try them in an empty folder and in a bare Debian root; needs root
	$(BIN)/python tools/bare_root.py --here
	$(BIN)/python tools/bare_root.py

sbom: setup ## list every pinned package with its hashes, in CycloneDX
	$(BIN)/python tools/sbom.py sbom.json

release: setup ## build and try the wheels, with checksums and SBOM, and tag; pushes and uploads nothing
	$(BIN)/python tools/release.py dist

lock: setup ## pin all dependencies again
	tools/lock.sh

clean:
	$(BIN)/podwright rehearse --clean
	rm -rf cdktf.out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
