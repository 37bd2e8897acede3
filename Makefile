# Needs GNU make and Python 3.11 or newer; everything else goes into $(VENV).
PYTHON ?= python3
VENV := .venv
WORKERS ?= 2
# -qq leaves errors only; `make test PIP_QUIET=` shows what pip does.
PIP_QUIET := -qq
PIP_INSTALL = $(VENV)/bin/python -m pip install $(PIP_QUIET) --disable-pip-version-check -c constraints.txt

COMMA := ,

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo demo-federation check test test-slow test-portable test-federation test-gpu docs lint format dist test-dist clean

help: ## Print this list.
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PYTHON=$(PYTHON)  VENV=$(VENV)  WORKERS=$(WORKERS)"

# One thread: the batches are small, and two threads only wait for each other where the machine is busy. At this learning
# rate DualFed's contrast needs its gradients clipped.
demo: $(VENV)/.installed-data ## Install partwise and compare the papers' six methods with three others on real data, in runs/demo.
	$(VENV)/bin/partwise compare local fedavg fedper fed3p2p fedtc dualfed fedfcd vanilla anti --data digits \
		--clients 20 --partition dir:0.1 --rounds 40 --lr 0.05 --batch 16 --clip-norm 5 \
		--eval-every 10 --threads 1 --seeds 0 --out runs/demo --overwrite

demo-federation: $(VENV)/.installed-federation ## Train over three silos on this machine, with TLS and keys, in runs/federation.
	$(VENV)/bin/python examples/federation.py runs/federation

# Each worker computes on one thread: more would fight for the cores, and sums would depend on how many there are.
check test: export OMP_NUM_THREADS := 1
check test: export MKL_NUM_THREADS := 1
check test: export OPENBLAS_NUM_THREADS := 1
check test: export NUMEXPR_NUM_THREADS := 1
PYTEST = $(VENV)/bin/python -m pytest
FIRST_TIER := not gpu and not slow and not federation

check: lint ## Check style and types, then run most unit tests and a parity case for each engine: under a minute.
	$(PYTEST) -n $(WORKERS) --dist worksteal -m check tests/unit tests/parity/test_engines.py tests/parity/test_workers.py

# One file starts no worker processes: they would load torch for longer than most files run.
test: $(if $(T),$(VENV)/.installed-dev,lint) ## Check style and types, then run the tests that need no GPU, but for a slower tier; T=FILE: that file alone.
	$(PYTEST) $(if $(T),$(T),-n $(WORKERS) --dist worksteal) -m "$(FIRST_TIER)"

test-slow: export OMP_NUM_THREADS := 1
test-slow: export MKL_NUM_THREADS := 1
test-slow: $(VENV)/.installed-dev ## The laws once more where they take long: other networks, every method in workers.
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "slow and not gpu and not federation"

# In what CPUs differ: how torch, MKL and oneDNN compute there, and on how many threads.
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 TEST_THREADS=2
NUMBERS := tests/oracles tests/parity tests/laws/baselines
NUMBERS += tests/laws/test_five_papers.py tests/laws/test_identities.py tests/laws/test_moments.py

# Threads that wait leave the cores to others.
test-portable: export OMP_NUM_THREADS := 1
test-portable: export OMP_WAIT_POLICY := PASSIVE
test-portable: $(VENV)/.installed-dev ## The tests that compare numbers ([portable] in tests/tiers.toml), as other CPUs compute.
	@for cpu in $(CPUS); do \
		echo "$$cpu" && env "$$cpu" $(PYTEST) -n $(WORKERS) --dist worksteal \
			-m portable $(NUMBERS) || exit 1; \
	done

test-federation: export OMP_NUM_THREADS := 1
test-federation: $(VENV)/.installed-dev ## Every method over Flower, on three real nodes with TLS; nodes and servers that are killed.
	$(PYTEST) -m federation tests/federation

# No virtual environment: a GPU machine brings its own Python and torch. Its versions are not those of
# constraints.txt, so warnings are shown there but do not fail a test.
test-gpu: export OMP_NUM_THREADS := 1
test-gpu: ## Run the GPU tests with the Python at hand (PYTHON=...); installs nothing.
	$(PYTHON) -m pytest -W default -m gpu tests/gpu

# Not --quiet: it hides warnings from --strict, which passes then. mkdocs-material is maintained until May 2027 and says
# so at every build; Zensical, its successor, reads mkdocs.yml too.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.installed-dev ## Build the site from docs/ into build/site; a link that leads nowhere fails.
	$(VENV)/bin/python -m mkdocs build --strict

lint: $(VENV)/.installed-dev ## Check style (ruff) and types (mypy).
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy partwise

format: $(VENV)/.installed-dev ## Sort the imports, mend what ruff can mend, and format the code.
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# Without build isolation, so that the build uses the pinned setuptools; the wheel is made from the source archive.
dist: $(VENV)/bin/python ## Build the wheel and the source archive into dist.
	@rm -rf dist
	@$(PIP_INSTALL) build setuptools
	$(VENV)/bin/python -m build --no-isolation

# Away from the sources, which Python would import otherwise.
test-dist: dist ## Install the wheel into an empty environment, and run the demo for a few rounds.
	@rm -rf build/empty && $(PYTHON) -m venv build/empty
	@build/empty/bin/python -m pip install $(PIP_QUIET) --disable-pip-version-check -c constraints.txt \
		"$$(echo $(CURDIR)/dist/*.whl)[data]"
	cd build/empty && bin/partwise compare local fedavg fedper --data digits --clients 20 --partition dir:0.1 \
		--rounds 4 --lr 0.05 --batch 16 --threads 1 --out demo

clean: ## Remove the virtual environment, caches and build folders; keeps runs/ and data/.
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	rm -rf build dist partwise.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say what $(VENV) holds; they are older than pyproject.toml or constraints.txt when it has to be renewed.
# `dev` contains every extra that the tests need, `data` too, so its stamp stands for both.
$(VENV)/.installed-data: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,data)
	@touch $(VENV)/.installed-data

$(VENV)/.installed-federation: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,data$(COMMA)tables$(COMMA)flower)
	@touch $(VENV)/.installed-data $(VENV)/.installed-federation

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,dev)
	@touch $(VENV)/.installed-data $(VENV)/.installed-federation $(VENV)/.installed-dev

# setuptools comes first and without build isolation, so that the build uses the pinned version too.
define install
@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || \
	{ echo "error: $(VENV) has no pip: remove $(VENV) and run make again" >&2; exit 1; }
@echo "Installing partwise[$(1)] into $(VENV) (minutes the first time) ..."
@$(PIP_INSTALL) setuptools
@$(PIP_INSTALL) --no-build-isolation -e '.[$(1)]'
endef

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "error: no '$(PYTHON)' here: install Python 3.11 or newer, or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11: name a newer one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) cannot make virtual environments (no venv or ensurepip): on Debian and Ubuntu" \
			"install the package python3-venv, or name another Python with make PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
