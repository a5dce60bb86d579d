# Two commands: `make demo` and `make test`. Each sets up .venv by itself.
#
# On Linux without a GPU, PyPI's torch brings gigabytes of CUDA along; the CPU wheel is smaller:
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
# Where Chromium is, Playwright (165 MB) comes too and the page is looked at in it; where npm is, the page is built again.
EXTRAS := dev
ifneq ($(shell command -v chromium 2> /dev/null),)
EXTRAS := dev,page-test
endif
DEV := .venv/.ready-$(EXTRAS)
NODE := $(if $(shell command -v npm 2> /dev/null),web/node_modules/.package-lock.json)

.PHONY: demo test test-all test-page docs check format bench bench-gpu clean
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[docs]'
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

clean:
	rm -rf .venv out

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Glassformer needs Python 3.11 or newer: make demo PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

$(READY): .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing PyTorch and compiling the kernels into .venv, once: some minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[plot]'
	@touch $@

$(DEV): .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing what the tests need into .venv, once: some minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[$(EXTRAS)]'
	@touch $@ $(READY)

# Without its registry npm fails: what needs these packages is skipped then.
web/node_modules/.package-lock.json: web/package-lock.json
	-cd web && npm ci --no-audit --no-fund --loglevel=error
