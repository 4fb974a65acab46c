# The two commands that a newcomer needs are `make demo` and `make test`; each sets everything up the first time.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo browser test test-slow test-damage test-ray check
.PHONY: bench bench-faults bench-fingerprints bench-precision bench-readers

setup: $(READY)

# torch comes first and alone: what comes after is then satisfied by it, whatever build the index would rather give.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(RUN)/noisescope demo

# As root with apt, Chromium is installed for the tests of the report; elsewhere a line says that they are skipped.
browser: $(READY)
	@$(RUN)/python tools/get_browser.py

test: browser
	@$(RUN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# One at a time: among these are the ones that measure speed.
test-slow: browser
	@$(RUN)/python -m pytest -m slow

# Every kind of file that is read, damaged in so many ways, other ones each time.
EXAMPLES ?= 2000
test-damage: $(READY)
	@$(RUN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal tests/hostile/test_damaged_files.py --examples $(EXAMPLES)

# On a real Ray cluster of several nodes, all on this machine.
test-ray: $(READY)
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray]' 'ray[default]'
	@$(RUN)/python -m pytest -m "slow or not slow" tests/sweep/test_ray.py tests/contracts/test_executor_contract.py

# In verl itself, which wants an older transformers: an environment of its own. Some of what verl needs to be imported
# it does not declare, and of what it declares a trainer on a CPU needs less.
VERL := .venv-verl
$(VERL)/.ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --quiet $$(grep '^torch==' constraints-verl.txt)
	$(VERL)/bin/python -m pip install --quiet --requirement constraints-verl.txt
	$(VERL)/bin/python -m pip install --quiet --no-deps verl==0.9.1 --editable .
	@touch $@

.PHONY: test-verl
test-verl: $(VERL)/.ready
	@$(VERL)/bin/python -m pytest -m verl tests/verl_runs
	@$(VERL)/bin/python -m pytest tests/integrations tests/verl/test_actor.py tests/inject/test_norm_weights.py tests/model/test_layout.py

check: browser
	$(RUN)/ruff format --check
	$(RUN)/ruff check
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --cov --cov-report=term

# `make bench PARTS="growth"` measures one part anew and keeps the others as the page has them.
bench: $(READY)
	@$(RUN)/python bench/page.py $(PARTS)

# Goes on where an earlier call ended; `make bench-faults CASES=100` is a first look, PROCESSES=16 shares the work.
CASES ?= 2000
PROCESSES ?= 1
bench-faults: $(READY)
	@mkdir -p build
	@$(RUN)/python bench/faults.py --cases $(CASES) --workers $(PROCESSES) --out build/faults.jsonl

# With a healthy system beside the faulty one; goes on as well.
bench-fingerprints: $(READY)
	@mkdir -p build
	@$(RUN)/python bench/fingerprints.py --workers $(PROCESSES) --out build/fingerprints.jsonl

# ModelOpt gets an environment of its own in build/precision; what was measured there is not measured again.
bench-precision: $(READY)
	@$(RUN)/python bench/precision.py --out docs/precision.md

# Each tool gets an environment of its own in build/readers.
bench-readers: $(READY)
	@$(RUN)/python bench/readers.py --out docs/precision.md
