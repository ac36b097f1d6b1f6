# Quire. Two commands do everything, set-up included, on a machine with Python >= 3.11 (and its venv module), git and make:
#
#   make demo     the main job: a cluster, real input, failures, recovery, and the Spark table of it
#   make test     what a change must pass (11 minutes on two cores)
#
# The others are for working on Quire; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
TOOLS := tools/environment
STAMPS := $(VENV)/stamps
BOOTSTRAPPED := $(STAMPS)/bootstrap
RUNTIME := $(STAMPS)/runtime
DEV := $(STAMPS)/dev

# Spark starts Python workers by name; they must be ours. Java is looked for where it usually is.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHONHASHSEED := 0
# The tests start hundreds of processes. Each compiles 500 modules (1 s instead of 0.2) where nothing may keep what was compiled.
unexport PYTHONDONTWRITEBYTECODE

FAST := not (interop or faults or spark or long or slow)
SPARK42 := contract stream_contract losses rows bad_records threads checkpoints frames stream answers
ARGS ?=

.PHONY: help demo test setup etcd fmt check static types lint package changelog full bench golden-rewrite interop faults spark spark42 docs proto lock clean java

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

demo: $(RUNTIME) java  ## the main job, narrated (ARGS="--input FILE" for your own lines)
	@$(WITH_JAVA) $(BIN)/python -m quire demo $(ARGS)

test: $(DEV) java static  ## everything a change must pass
	@$(BIN)/python bench/guard.py
	@$(WITH_JAVA) $(BIN)/python -m pytest -n 4 --no-loadscope-reorder -m "not slow" $(ARGS)

setup: $(DEV)  ## the environment in .venv, with all that development needs

etcd:  ## an etcd for the tests, built with Go (minutes); without one they are skipped, loudly
	@tools/etcd-peer build

check: $(DEV) static  ## lint, types, imports and the fast tests, under two minutes
	@$(BIN)/python -m pytest -q -m "$(FAST)" $(ARGS)

static: $(DEV)  ## lint, format, types, import contracts and the packages
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types lint package

types: $(DEV)
	@$(BIN)/mypy --no-error-summary

lint: $(DEV)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make fmt'" >&2; exit 1; }
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache >$(STAMPS)/imports.txt || { cat $(STAMPS)/imports.txt; exit 1; }

package: $(DEV)  ## both wheels and source distributions in out/dist, built from this tree and checked
	@$(TOOLS) package

changelog: $(DEV)  ## move the files of changes/ into CHANGELOG.md, under today's date and the version
	@$(BIN)/towncrier build --yes

fmt: $(DEV)  ## format, and fix what lint can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

full: $(DEV) java static  ## the full rounds of every test; results are committed under docs/proof
	@$(WITH_JAVA) QUIRE_FULL=1 $(BIN)/python -m pytest --timeout=7200 $(ARGS)

bench: $(DEV)  ## every benchmark beside its peer; results under bench/results
	@$(BIN)/python bench/run.py $(ARGS)

interop: $(DEV)  ## only the tests against real Java peers
	@$(BIN)/python -m pytest -m interop $(ARGS)

faults: $(DEV)  ## only the tests that kill, stop and cut off processes
	@$(BIN)/python -m pytest -m faults $(ARGS)

spark: $(DEV) java  ## only the Spark tests
	@$(WITH_JAVA) $(BIN)/python -m pytest -m spark $(ARGS)

spark42: $(BOOTSTRAPPED) java  ## what we rely on in Spark, and no row lost or doubled, on the oldest supported version
	@$(TOOLS) isolated spark42
	@$(WITH_JAVA) export PYSPARK_PYTHON=$(CURDIR)/out/spark42/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/out/spark42/bin/python && \
	  out/spark42/bin/python -m pytest $(SPARK42:%=tests/spark/test_spark_%.py) $(ARGS)

golden-rewrite: $(DEV)  ## write the golden transcripts anew; commit only what you can explain
	@QUIRE_GOLDEN_REWRITE=1 $(BIN)/python -m pytest -q tests/golden tests/replay $(ARGS)

docs: $(DEV)  ## the generated parts of the documents
	@$(BIN)/python tools/generate_docs.py

proto: $(BOOTSTRAPPED)  ## regenerate src/quire/wire/proto from its .proto files, with the compiler of requirements/proto.txt
	@$(TOOLS) isolated proto
	@cd src && for file in quire/wire/proto/*.proto; do \
	  ../out/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. "$$file"; done

lock: $(BOOTSTRAPPED)  ## compile requirements/*.in anew (UPGRADE=1 takes newer versions)
	@$(TOOLS) lock

clean:  ## everything that can be made again
	rm -rf $(VENV) out build src/*.egg-info src/quire_testing/build src/quire_testing/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# ------------------------------------------------------------------------------------------------ set-up
WITH_JAVA = java=$$($(TOOLS) find-java) && export JAVA_HOME=$$(dirname $$(dirname $$(readlink -f $$java))) &&

java:
	@$(TOOLS) java

$(BOOTSTRAPPED): requirements/bootstrap.txt
	@$(TOOLS) venv $@

$(RUNTIME): requirements/runtime.txt pyproject.toml $(BOOTSTRAPPED)
	@$(TOOLS) install requirements/runtime.txt $@

$(DEV): requirements/dev.txt pyproject.toml $(BOOTSTRAPPED)
	@$(TOOLS) install requirements/dev.txt $@
	@touch $(RUNTIME)
