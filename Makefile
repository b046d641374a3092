# sa1bpack: from a fresh clone, `make pack` sets everything up, packs, and verifies.

PYTHON     ?= python3
TARS       ?= tests/samples/sa_000000.tar
OUT        ?= packed
PACK_FLAGS ?=
TEST_FLAGS ?=

# Recipes read these from the environment, so that no character in them ends a quotation. TARS is
# several words, so it is text of the shell, quotes and all.
export OUT TARS PYTHON

VENV := .venv
BIN  := $(VENV)/bin
# Every version comes from constraints.txt. pip shows its downloads, except in automatic builds.
PIP  := $(BIN)/python -m pip --disable-pip-version-check install $(if $(CI),--quiet) \
        --constraint constraints.txt --build-constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup pack verify test torture lint bench-decode bench-pack bench-load peers clean

help:
	@echo "make pack     set up, pack TARS into OUT, and verify the result"
	@echo "make verify   verify OUT"
	@echo "make test     set up and run the tests"
	@echo "make torture  the tests of reliability in full (docs/reliability.md)"
	@echo "make setup    only set up: $(VENV) with pinned dependencies (repairs PIL if need be)"
	@echo "make bench-decode | bench-pack | bench-load"
	@echo "              measure JPEG decoding, packing, loading"
	@echo "make peers    set up the other loaders that bench-load compares with"
	@echo "make lint     check the code's style"
	@echo "make clean    remove $(VENV) and caches; packs stay"
	@echo
	@echo "TARS=$$TARS"
	@echo "              tars or folders to pack; quote globs and spaces: TARS=\"'/my data/sa_*.tar'\""
	@echo "OUT=$$OUT    folder that the pack goes to"
	@echo "PACK_FLAGS=   more options, e.g. PACK_FLAGS='--workers 16'; see $(BIN)/sa1bpack pack --help"
	@echo "TEST_FLAGS=   options of pytest, e.g. TEST_FLAGS='-k masks'"
	@echo "PYTHON=$$PYTHON    the Python to set up with, 3.11 or newer"

# ---------------------------------------------------------------------------- set-up, only if needed

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "sa1bpack needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`." \
	       "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "set-up: environment in $(VENV), `$(PYTHON) --version`"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make environments (Debian: apt install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup_pillow.py | $(VENV)/.created
	@echo "set-up: dependencies, as pinned in constraints.txt (PyTorch is the large one)"
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt pip
	@$(PIP) --editable .
	@$(BIN)/python scripts/setup_pillow.py --fresh
	@touch $@

$(VENV)/.ready-%: $(VENV)/.ready
	@echo "set-up: what '$*' needs"
	@$(PIP) --editable '.[$*]'
	@touch $@

# The last line runs every time, in a fraction of a second: any package that requires pillow would
# have put it over pillow-simd.
setup: $(VENV)/.ready
	@$(CHECK_PYTHON)
	@$(BIN)/python scripts/setup_pillow.py

# An environment stays with the Python that made it; a PYTHON that was asked for is not just ignored.
RELEASE := -c 'import sys; print("{}.{}".format(*sys.version_info))'
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
CHECK_PYTHON = here=$$($(BIN)/python $(RELEASE)); asked=$$($(PYTHON) $(RELEASE)); \
  test "$$here" = "$$asked" || \
  echo "existing $(VENV) is Python $$here, PYTHON=$$PYTHON is not used; make clean to change" >&2
endif

# --------------------------------------------------------------------------------------------- work

# set -f: sa1bpack expands the globs itself; a shell has a limit, and 1000 tars can exceed it.
pack: setup
	@set -f; $(BIN)/sa1bpack pack $(TARS) --out "$$OUT" $(PACK_FLAGS)
	@$(BIN)/sa1bpack verify "$$OUT"

verify: setup
	@$(BIN)/sa1bpack verify "$$OUT"

test: setup $(VENV)/.ready-test
	@$(BIN)/python -m pytest $(TEST_FLAGS)

# What docs/reliability.md reports. Its tests take minutes: only a longer silence means that one hangs.
torture: setup $(VENV)/.ready-test
	@$(MAKE) --no-print-directory $(VENV)/.ready-fuzz 2>&1 || \
	  echo "atheris does not install here: no coverage-guided fuzzing" >&2
	@$(BIN)/python -m pytest tests/torture --torture -o faulthandler_timeout=1800 $(TEST_FLAGS)

bench-decode: setup
	@set -f; $(BIN)/python benchmarks/decode.py $(TARS)

bench-pack: setup
	@set -f; $(BIN)/python benchmarks/pack.py $(TARS)

# Other loaders need an environment of their own (they bring Pillow, and older versions of much).
PEERS := $(VENV)-peers/bin/python

peers:
	@test -x $(PEERS) || $(PYTHON) -m venv $(VENV)-peers
	@$(PEERS) -m pip install --requirement benchmarks/requirements-peers.txt
	@$(PEERS) -m pip install --requirement benchmarks/requirements-ffcv.txt \
	  || echo "FFCV does not install here: see benchmarks/requirements-ffcv.txt" >&2

bench-load: setup
	@test -x $(PEERS) || echo "without other loaders; make peers installs them (several GB)" >&2
	@set -f; $(BIN)/python benchmarks/load.py $(TARS) $(if $(wildcard $(PEERS)),--peers $(PEERS))

lint: setup $(VENV)/.ready-lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .ruff_cache sa1bpack.egg-info build
	find sa1bpack tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
