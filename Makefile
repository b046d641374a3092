# sa1bpack: from a fresh clone, `make pack` sets everything up, packs, and verifies.

PYTHON     ?= python3
TARS       ?= tests/samples/sa_000000.tar
OUTPUT        ?= packed
COLD       ?= cold-packs
PACK_FLAGS ?=
TEST_FLAGS ?=

# Recipes read these from the environment, so that no character in them ends a quotation. TARS may
# be several words, so the shell splits it, with its quotes.
export COLD OUTPUT TARS PYTHON

# A mistyped variable would leave the one that was meant at its default, and pack the sample tar.
KNOWN := CI PYTHON TARS OUTPUT COLD PACK_FLAGS TEST_FLAGS VENV BIN PIP FRAMEWORKS RAY
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
ifneq ($(filter-out $(KNOWN),$(GIVEN)),)
$(error $(filter-out $(KNOWN),$(GIVEN)): no such variable; there are TARS (tars or folders to pack), \
OUTPUT, PACK_FLAGS, TEST_FLAGS, COLD and PYTHON, see `make help`)
endif
# Also in the environment, where TAR may be the program of that name for others.
ifneq ($(if $(filter pack,$(MAKECMDGOALS)),$(filter %.tar %.tar.gz %.tgz,$(TAR))$(wildcard $(addsuffix /.,$(TAR)))),)
$(error TAR=$(TAR) is not read: give TARS, the tars or folders to pack)
endif

# The default folder is that of the sample tar's pack, which other tars would be added to.
ifneq ($(if $(filter pack,$(MAKECMDGOALS)),$(filter command environment,$(firstword $(origin TARS)))),)
ifeq ($(origin OUTPUT),file)
$(error give OUTPUT, the folder of the pack, as well as TARS)
endif
endif

VENV := .venv
BIN  := $(VENV)/bin
# Every version comes from constraints.txt. pip shows large downloads, on a terminal. What setuptools
# says of every editable installation concerns nobody here.
# pip compiles one module after another; compileall does it on all processors, and leaves out the
# tests of packages, and says nothing of files that are no Python of this version. Our own modules as
# well: where the shell forbids to keep bytecode, every process would compile them again.
BARS := $(shell test -t 2 && echo --progress-bar on)
PIP  := PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip \
        --disable-pip-version-check install --quiet --no-compile $(BARS) \
        --constraint constraints.txt --build-constraint constraints.txt
COMPILE := $(BIN)/python -m compileall -q -q -j 0 -x '/tests?/' $(VENV)/lib \
           sa1bpack scripts tests/helpers || true

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup pack verify test test-alone frameworks ray test-install dist torture lint bench-decode bench-pack \
        bench-load bench-cold bench-slow peers docs docs-serve clean

help:
	@echo "make pack     set up, pack TARS into OUTPUT, and verify the result"
	@echo "make verify   verify OUTPUT"
	@echo "make test     set up and run the tests"
	@echo "make test-alone"
	@echo "              run every file of tests in a process of its own"
	@echo "make frameworks"
	@echo "              test with torchvision, transformers and torchdata, in"
	@echo "              $(VENV)-frameworks"
	@echo "make ray      test the commands on a Ray cluster of several nodes, in $(VENV)-ray"
	@echo "make test-install"
	@echo "              install wheel and sdist into empty environments, and use them there"
	@echo "make dist     build wheel and sdist into dist"
	@echo "make torture  run the reliability tests in full (docs/reliability.md)"
	@echo "make setup    only set up: $(VENV) with pinned dependencies (restores PIL if needed)"
	@echo "make bench-decode | bench-pack | bench-load | bench-cold | bench-slow"
	@echo "              measure JPEG decoding, packing, loading from memory, from the disk, and from"
	@echo "              one that answers late"
	@echo "make peers    set up the other loaders that load.py and cold.py compare with"
	@echo "make docs     build the documentation into site; make docs-serve shows it while you write"
	@echo "make lint     check the style of the code, and the types that users see"
	@echo "make clean    remove $(VENV) and caches, but no packs"
	@echo
	@echo "TARS=$$TARS"
	@echo "              tars or folders to pack; quote globs and spaces: TARS=\"'/my data/sa_*.tar'\""
	@echo "OUTPUT=$$OUTPUT    folder of the pack"
	@echo "COLD=$$COLD   folder of the packs of bench-cold and bench-slow, which are kept: 10 GB, on the"
	@echo "              disk to measure; other loaders take 30 GB more while they run"
	@echo "PACK_FLAGS=   more options, e.g. PACK_FLAGS='--workers 16'; see $(BIN)/sa1bpack pack --help"
	@echo "TEST_FLAGS=   options for pytest, e.g. TEST_FLAGS='-k masks'"
	@echo "PYTHON=$$PYTHON    Python for the set-up, 3.11 to 3.14; for the peers 3.12 or newer"

# ---------------------------------------------------------------------------- set-up, only if needed

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "sa1bpack needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`." \
	       "Choose another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "set-up: environment in $(VENV), `$(PYTHON) --version`"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot create environments (Debian: apt install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup_pillow.py | $(VENV)/.created
	@echo "set-up: dependencies, as pinned in constraints.txt: 0.4 GB, or with PyTorch for CUDA some 3 GB"
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt pip
	@$(PIP) --editable .
	@$(COMPILE)
	@$(BIN)/python scripts/setup_pillow.py --fresh
	@touch $@

# After an update, those kernels are compiled again that it changes.
$(VENV)/.kernels: scripts/compile_kernels.py $(shell grep -rl --include='*.py' njit sa1bpack) | $(VENV)/.ready
	@$(BIN)/python scripts/compile_kernels.py
	@touch $@

# An extra without the package itself, which stays importable meanwhile.
EXTRA := 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
         print(*project["optional-dependencies"][sys.argv[1]], sep="\n")'

$(VENV)/.ready-%: $(VENV)/.ready
	@echo "set-up: dependencies of '$*'"
	@$(BIN)/python -c $(EXTRA) $* > $(VENV)/requirements-$*.txt
	@$(PIP) --requirement $(VENV)/requirements-$*.txt
	@$(COMPILE)
	@touch $@

# The last line runs every time, in a fraction of a second: any package that requires pillow would
# have installed it over pillow-simd.
setup: $(VENV)/.ready $(VENV)/.kernels
	@$(CHECK_PYTHON)
	@$(BIN)/python scripts/setup_pillow.py

# An environment keeps the Python that created it: say so if PYTHON asks for another.
RELEASE := -c 'import sys; print("{}.{}".format(*sys.version_info))'
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
CHECK_PYTHON = here=$$($(BIN)/python $(RELEASE)); asked=$$($(PYTHON) $(RELEASE)); \
  test "$$here" = "$$asked" || \
  echo "$(VENV) has Python $$here, PYTHON=$$PYTHON is not used; run make clean to change it" >&2
endif

# --------------------------------------------------------------------------------------------- work

# set -f: sa1bpack expands globs itself; 1000 tars can exceed the limit of a shell.
pack: setup
	@set -f; $(BIN)/sa1bpack pack $(TARS) --output "$$OUTPUT" $(PACK_FLAGS)
	@$(if $(findstring --dry-run,$(PACK_FLAGS)),,$(BIN)/sa1bpack verify "$$OUTPUT")
	@echo "to use the command sa1bpack and the package: . $(BIN)/activate"

verify: setup
	@$(BIN)/sa1bpack verify "$$OUTPUT"

# In one process more than there are processors, because many tests wait for others that they start;
# TEST_FLAGS='-n 0' runs all tests in one. Each process begins with a part of the files, so that a
# pack or a kernel which they share is made once, and takes tests of others when it has none left.
TEST_PROCESSES := $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))
# Kernels are compiled beside the installation of what the tests need. Where the tests themselves cannot
# be compiled before, each process does it.
test:
	@$(MAKE) --no-print-directory --jobs 2 setup $(VENV)/.ready-test
	@$(BIN)/python scripts/compile_tests.py || true
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --maxprocesses 8 --dist worksteal $(TEST_FLAGS)

# One file of tests after another, each in a process of its own: none may rely on another.
# pytest exits with 5 if a file has nothing to run here.
test-alone: setup $(VENV)/.ready-test
	@failed=; for file in `find tests -name 'test_*.py' | sort`; do \
	  $(BIN)/python -m pytest -q --no-header $(TEST_FLAGS) $$file || test $$? = 5 || failed="$$failed $$file"; \
	done; test -z "$$failed" || { echo "failed alone:$$failed" >&2; exit 1; }

# torchvision brings Pillow, so these have an environment of their own.
FRAMEWORKS := $(VENV)-frameworks/bin/python

frameworks:
	@test -x $(FRAMEWORKS) || $(PYTHON) -m venv $(VENV)-frameworks
	@$(FRAMEWORKS) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --editable '.[test,frameworks]'
	@$(FRAMEWORKS) -m pytest tests/adapters tests/raw/test_streaming.py tests/pixels/test_other_formats.py \
	  'tests/test_docs.py::test_python_of_the_documents_runs[docs/recipes.md]' $(TEST_FLAGS)

# ray is large, and needed only where a cluster works, so it has an environment of its own, too.
RAY := $(VENV)-ray/bin/python

ray:
	@test -x $(RAY) || $(PYTHON) -m venv $(VENV)-ray
	@$(RAY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --editable '.[test,pillow,ray]'
	@$(RAY) -m pytest tests/test_ray_cluster.py tests/test_engines.py tests/packing/test_engines.py \
	  tests/packing/test_ray.py $(TEST_FLAGS)

# Wheel and sdist, each into an empty environment, and used outside the clone.
test-install: setup
	@$(BIN)/python scripts/check_install.py

dist: setup
	@$(BIN)/python scripts/check_install.py --build dist

# The figures of docs/reliability.md. These tests take minutes: only longer silence means a hang.
torture: setup $(VENV)/.ready-test
	@$(MAKE) --no-print-directory $(VENV)/.ready-fuzz 2>&1 || \
	  echo "atheris cannot be installed here: no coverage-guided fuzzing" >&2
	@$(BIN)/python -m pytest tests/torture tests/adapters/test_driving.py tests/fuzz tests/benchmarks tests/transforms/triton --torture -o faulthandler_timeout=1800 $(TEST_FLAGS)
	@$(BIN)/python -m pytest tests -m long --torture -o faulthandler_timeout=1800 $(TEST_FLAGS) \
	  --ignore tests/torture --ignore tests/adapters/test_driving.py --ignore tests/benchmarks \
	  --ignore tests/transforms/triton

bench-decode: setup
	@set -f; $(BIN)/python benchmarks/decode.py $(TARS)

bench-pack: setup
	@set -f; $(BIN)/python benchmarks/pack.py $(TARS)

# Other loaders need their own environment (they bring Pillow, and older versions of much else).
PEERS := $(VENV)-peers/bin/python

peers:
	@test -x $(PEERS) || $(PYTHON) -m venv $(VENV)-peers
	@$(PEERS) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
	  echo "the other loaders need Python 3.12 or newer: remove $(VENV)-peers, and choose one:" \
	       "make peers PYTHON=python3.13" >&2; exit 1; }
	@$(PEERS) -m pip install --requirement benchmarks/requirements-peers.txt
	@$(PEERS) -m pip install --no-deps --requirement benchmarks/requirements-mosaic.txt
	@$(PEERS) -m pip install --requirement benchmarks/requirements-ffcv.txt \
	  || echo "FFCV cannot be installed here: see benchmarks/requirements-ffcv.txt" >&2

bench-load: setup
	@test -x $(PEERS) || echo "no other loaders: make peers installs them (several GB)" >&2
	@set -f; $(BIN)/python benchmarks/load.py $(TARS) $(if $(wildcard $(PEERS)),--peers $(PEERS))

bench-cold: setup
	@test -x $(PEERS) || echo "no other loaders: make peers installs them (several GB)" >&2
	@set -f; $(BIN)/python benchmarks/cold.py $(TARS) --folder "$$COLD" \
	  $(if $(wildcard $(PEERS)),--peers $(PEERS))

bench-slow: setup
	@set -f; $(BIN)/python benchmarks/slow.py $(TARS) --folder "$$COLD"

lint: setup $(VENV)/.ready-lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# The site imports sa1bpack to describe it, from $(VENV); what builds it is in a layer above.
DOCS := $(VENV)-docs/bin

$(VENV)-docs/.ready: pyproject.toml constraints.txt | $(VENV)/.ready
	@echo "set-up: what builds the documentation, in $(VENV)-docs"
	@test -x $(DOCS)/python || $(BIN)/python -m venv $(VENV)-docs
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "`$(DOCS)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/sa1bpack.pth"
	@$(DOCS)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --requirement scripts/site/requirements.txt
	@touch $@

docs: setup $(VENV)-docs/.ready
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(DOCS)/python -m mkdocs build --quiet
	@echo "site/index.html"

docs-serve: setup $(VENV)-docs/.ready
	@PYTHONPATH=. $(DOCS)/python -m mkdocs serve

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .ruff_cache .mypy_cache sa1bpack.egg-info build
	find sa1bpack tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
