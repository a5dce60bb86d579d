# Two commands: `make demo` and `make test`. Each sets up .venv by itself.
#
# On Linux without a GPU, PyPI's torch brings gigabytes of CUDA along; the CPU wheel is smaller:
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
# Python compiles a module when it is first imported; most of what is installed never is. Hundreds of processes import the
# same ones, so the result is kept, whatever the environment says: `import torch` takes 1.0 s of CPU with it, else 2.0.
export PYTHONDONTWRITEBYTECODE :=
PIP = $(BIN)/python -m pip install --no-compile --disable-pip-version-check $(PIP_ARGS)
LOCKED = $(PIP) --no-deps --require-hashes
UV ?= uv
READY := .venv/.ready
# Where Chromium is, Playwright (165 MB) comes too and the page is looked at in it; where npm is, the page is built again.
BROWSER := $(if $(shell command -v chromium 2> /dev/null),page-test)
DEV := .venv/.ready-dev$(BROWSER:%=-%)
NODE := $(if $(shell command -v npm 2> /dev/null),web/node_modules/.package-lock.json)
LOCKS := pyproject.toml constraints.txt $(wildcard requirements/*.txt)

.PHONY: demo test test-all test-page docs check format lock bench bench-gpu release clean
.DELETE_ON_ERROR:

# A demo that was interrupted goes on; one that is complete begins anew.
demo: $(READY)
	@[ -e out/demo/run.json ] && [ ! -e out/demo/curves.png ] || rm -rf out/demo
	$(BIN)/glassformer train runs/demo.toml --out out/demo $$([ -e out/demo ] && echo --resume)
	@echo; echo "It has read the Python documentation. Three short pieces that it wrote itself:"; echo
	$(BIN)/glassformer generate out/demo --max-new 150 --temperature 0.7 --seed 3 --samples 3
	@echo; echo "The curves are in out/demo/curves.png. Now on your own text, any file or folder:"
	@echo "  $(BIN)/glassformer train --data.train YOUR_FILE --out out/mine"

# Two processes of one thread, a file in one of them, so that what a file sets up is set up once; where a test is about
# threads it sets their number. test-all computes on all cores.
test: $(DEV) $(NODE)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadgroup --no-loadscope-reorder

test-all: $(DEV) $(NODE)
	$(BIN)/python -m pytest

# The page alone: its server, its build against its sources, and a real browser. On Debian: apt-get install chromium
# fonts-dejavu npm; what is missing is skipped by name.
test-page: $(DEV) $(NODE)
	$(BIN)/python -m pytest tests/page -rs

# The site, every number on it computed anew; `glassformer docs` opens it.
docs: $(DEV)
	rm -rf src/glassformer/site
	$(BIN)/python -m sphinx -W --keep-going -q -E -j auto -d out/doctrees docs src/glassformer/site

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The first table of docs/performance.md beside its peers, on an idle machine about an hour (its other sections say their
# commands): make bench NANOGPT=FOLDER
# (a checkout of nanoGPT); FOLDER keeps the models that generation is measured on. A row that misses its aim is told
# at the end, after all have run.
FOLDER ?= out/bench
PEER := $(if $(NANOGPT),--nanogpt $(NANOGPT))
BENCHES := "shakespeare.py $(PEER)" "train.py $(PEER) --shape 124m" "train.py $(PEER) --shape 10m" \
	"train.py --shape 124m --curves 50" "generate.py --folder $(FOLDER)" "load.py --folder $(FOLDER)"

bench: $(DEV)
	@missed=0; for one in $(BENCHES); do echo "benchmarks/$$one"; $(BIN)/python benchmarks/$$one || missed=1; done; exit $$missed

bench-gpu: $(DEV)
	$(BIN)/python benchmarks/gpu.py $(PEER)

# An sdist and a wheel for this machine in dist/, each checked in a clean environment, and the notes.
release: $(DEV)
	$(BIN)/python tools/release.py --pip-args "$(PIP_ARGS)"

clean:
	rm -rf .venv out

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Glassformer needs Python 3.11 or newer: make demo PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

# What compiles comes first, since nothing is built in pip's isolation, where it would take whatever is newest. torch alone
# has no hash here (constraints.txt says why); all that it needs besides CUDA is there before it.
define install
	@echo "1 of 4: what builds the package, a C compiler among it"
	$(LOCKED) -r requirements/build.txt
	@echo "2 of 4: the packages of requirements/, by hash"
	$(LOCKED) --no-build-isolation $(1:%=-r requirements/%.txt)
	@echo "3 of 4: PyTorch, the largest of all"
	$(PIP) -c constraints.txt torch
	@echo "4 of 4: Glassformer; its kernels are compiled, unless they were before"
	$(PIP) --no-deps --no-build-isolation -e .
endef

$(READY): .venv/bin/python $(LOCKS)
	@echo "Installing PyTorch and the kernels into .venv, once: some minutes."
	$(call install,plot)
	@touch $@

$(DEV): .venv/bin/python $(LOCKS)
	@echo "Installing what the tests need into .venv, once: some minutes."
	$(call install,dev $(BROWSER))
	@touch $@ $(READY)

# Writes requirements/ from pyproject.toml by uv (pip install uv). Versions stay as they are: make lock UPGRADE=--upgrade, or
# UPGRADE='-P NAME' for one package.
lock:
	$(UV) pip compile -q $(UPGRADE) pyproject.toml -c constraints.txt --extra dev -o requirements/dev.txt
	for extra in plot serve page-test; do \
		$(UV) pip compile -q $(UPGRADE) pyproject.toml -c constraints.txt -c requirements/dev.txt --extra $$extra -o requirements/$$extra.txt || exit; \
	done
	$(UV) pip compile -q $(UPGRADE) -c requirements/dev.txt --group build -o requirements/build.txt

# Where npm cannot reach its registry, one line says so, and the tests that need these packages are skipped by name. Any
# other failure is a failure.
web/node_modules/.package-lock.json: web/package-lock.json
	@cd web && { npm ci --no-audit --no-fund --loglevel=error 2> npm.log || \
		if grep -qE "ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED" npm.log; then \
			echo "npm has no network: the page is NOT compared with its sources; run make test again with one."; \
		else cat npm.log; echo "npm ci failed in web/ (above); mend it, or leave the page's tests out: make test NODE="; exit 1; fi; }
