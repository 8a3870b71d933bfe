# make demo   the main job: train, lose a node, come back from memory (local cluster; pip packages only)
# make test   installs what the tests need (as root: Slurm, munge and PMIx from Debian) and runs all but the fault suite
# make check   the tests that start no process, in about a minute
# make test-faults   the fault suite: breaks jobs on a real Slurm in every way of docs/internals/faults.md; needs root
# make provision-test   a bare Debian becomes a node, with its power cut at every step; needs root and Debian's registry
# make test-oldest   the tests that need no Slurm, on Python 3.11 with torch 2.6 in .venv-oldest; PyPI's torch brings 6 GB
#                    of CUDA libraries. OLDEST_PYTHON=/path/to/python3.11 names the interpreter.
# make test-python PYTHON=/path/to/python3 CUDA=1   the same on another Python, with the pinned torch, in .venv-3.12 or so
# make frameworks  DeepSpeed, torchtitan, Megatron-core, litData, hydra and ParallelCluster in .venv/frameworks; `make test`
#                    then has one test of each framework, a worker killed and a node lost in one run
# make test-frameworks   the same, and all of the adapters' tests and examples
# make test-debian SUITE=trixie   the tests on Slurm and the fault suite on another Debian, in build/debian-SUITE: trixie has
#                    Slurm 24.11 and Python 3.13, testing and sid Slurm 26.05 and Python 3.14; needs root and Debian's registry
# make simulate N=1000000 SEED=0   bad days of simulated jobs, on all cores; a table, and each failure explained
# make lint   ruff, mypy and, where it is installed, shellcheck
# make lock   the versions and hashes of what root installs on nodes, anew: lifecycle/requirements.lock
# make bench  the benchmarks; each prints a table. PEERS_PYTHON names the interpreter of an environment with ft_launcher
#             and torchft: see benchmarks/recovery_peers.py
# make chaos ROUNDS=50 SEED=1   random faults into jobs on a real Slurm, a verdict for each round; needs root
# make release   the sdist and, from it, the wheel into dist/, checked; tags the commit with the version
# make docs   docs/reference: every key of the job file and of the site's settings, from the models
# make bench-faults  what each fault of docs/internals/faults.md costs, on a real Slurm; needs root
#
# PYTEST_FLAGS adds flags to either suite; with -m it also chooses anew what runs.
#
# PyTorch. The constraints pin torch; which build pip finds is up to its indexes. Where that build would bring CUDA packages
# to a machine without an NVIDIA driver, the CPU build is taken if the indexes have it; else make prints the download's size
# and goes on. Choose with one of
#   make demo PIP_FLAGS="--extra-index-url URL"   URL = PyTorch's index of CPU builds, or your own
#   make demo CUDA=1                              the CUDA build, without looking for another
#   make demo SITE_TORCH=1                        use the torch of $(PYTHON) (a module, a container): nothing is fetched
#   make demo TORCH=torch==2.9.1                  another version

.DELETE_ON_ERROR:
.PHONY: check release demo test fuzz test-faults test-oldest test-python frameworks test-frameworks test-debian provision-test chaos lint lock bench bench-faults docs clean simulate
SHELL := /bin/bash

# A system interpreter where there is one: ordinary users' jobs cannot run one that lies under another user's home.
usable = $(shell for p in /usr/bin/python3 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PYTHON ?= $(usable)
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)
PIP = $(BIN)/python -m pip --disable-pip-version-check install -qq $(PIP_FLAGS)
# Most tests wait for processes to start, to die, to be noticed: four at a time serve two cores well. Those of the fault
# suite and of fuzz compute more.
BY_FILE := --dist loadfile --no-loadscope-reorder
PARALLEL := -n 4 $(BY_FILE)
CONSTRAINTS = -c $(VENV)/constraints.txt
# Where the environment forbids bytecode, each process of pytest would rewrite the assertions of all tests.
export PYTHONDONTWRITEBYTECODE :=
# Jobs on the test's Slurm start hundreds of Pythons, many as users that may not write beside the sources.
COMPILE = $(BIN)/python -m compileall -q holdfast slurm lifecycle ckpt launcher

# Prints the size of what pip would download, from its report.
define DOWNLOAD_SIZE
import json, sys, urllib.request
try:
    urls = [each["download_info"]["url"] for each in json.load(open(sys.argv[1]))["install"]]
    heads = (urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).headers for url in urls)
    print(f"{sum(int(head['Content-Length']) for head in heads) / 1e6:,.1f} MB")
except (OSError, TypeError, ValueError):
    print("several gigabytes (the server tells no size)")
endef
export DOWNLOAD_SIZE

AZURITE := azurite@3.35.0   # Microsoft's emulator of Azure Blob Storage

demo: $(VENV)/.installed
	@$(BIN)/python examples/gpt_stdlib/demo.py

# What starts no process, each test within a limit of its own; property tests with fewer examples than in `make test`.
check: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n 4 --dist worksteal --hypothesis-profile check --timeout 10 \
		-m 'not processes and not slurm and not faults and not provision' --no-processes $(PYTEST_FLAGS)

test: $(VENV)/.installed-dev
	@tests/install_slurm.sh
	@$(COMPILE)
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not faults and not provision' $(PYTEST_FLAGS)

test-faults: $(VENV)/.installed-dev
	@tests/install_slurm.sh
	@$(COMPILE)
	@$(BIN)/python -m pytest -n 3 $(BY_FILE) -m faults $(PYTEST_FLAGS)

fuzz: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n 3 $(BY_FILE) --hypothesis-profile fuzz -m 'hypothesis and not slurm and not faults' \
		--timeout 1800 $(PYTEST_FLAGS)

N ?= 100000
simulate: $(VENV)/.installed-dev
	@$(BIN)/python -m simulation $(N) --seed $(or $(SEED),0)

provision-test: $(VENV)/.installed-dev
	@command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap
	@$(BIN)/python -m pytest -m provision $(PYTEST_FLAGS) tests/test_lifecycle/root

# pip downloads the CUDA packages of old releases to read what they require, and resolves for many minutes.
UV_PIP = .venv-oldest/bin/uv pip install -q --python .venv-oldest/bin/python $(PIP_FLAGS)
OLDEST_PYTHON ?= $(shell for p in python3.11 ~/.pyenv/versions/3.11.*/bin/python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
test-oldest:
	@test -n "$(OLDEST_PYTHON)" || { echo "make test-oldest: no Python 3.11 found: name one with OLDEST_PYTHON="; exit 2; }
	@$(MAKE) --no-print-directory VENV=.venv-oldest PYTHON=$(OLDEST_PYTHON) .venv-oldest/.created
	@.venv-oldest/bin/python -m pip --disable-pip-version-check install -qq $(PIP_FLAGS) uv
	@$(MAKE) --no-print-directory test-python VENV=.venv-oldest PYTHON=$(OLDEST_PYTHON) TORCH=torch==2.6.0 CUDA=1 PIP="$(UV_PIP)"

# A venv of its own for each Python, unless VENV names one.
PYTHONS_VENV = $(if $(filter-out .venv,$(VENV)),$(VENV),.venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
test-python:
	@test -n "$(PYTHON)" || { echo "make test-python: name the interpreter with PYTHON=/path/to/python3"; exit 2; }
	@$(MAKE) --no-print-directory VENV=$(PYTHONS_VENV) $(PYTHONS_VENV)/.installed-dev
	@$(PYTHONS_VENV)/bin/python -m pytest $(PARALLEL) -m 'not slurm and not faults and not provision' $(PYTEST_FLAGS)

frameworks: $(VENV)/.frameworks

test-frameworks: $(VENV)/.frameworks
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not slurm' $(PYTEST_FLAGS) tests/adapters

$(VENV)/.frameworks: $(VENV)/.installed-dev tests/adapters/frameworks.txt constraints.txt
	@echo "installing what tests/adapters/frameworks.txt names"
	@rm -rf $(VENV)/frameworks
	@$(PIP) --no-deps --target $(VENV)/frameworks $(CONSTRAINTS) -r tests/adapters/frameworks.txt
	@touch $@

SUITE ?= trixie
test-debian:
	@command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap
	@$(PYTHON) -m tests.debian_suite $(SUITE) "$(TORCH)" -m 'slurm or faults' $(PYTEST_FLAGS)

ROUNDS ?= 50
SEED ?= 1
chaos: $(VENV)/.installed-dev
	@tests/install_slurm.sh
	@$(COMPILE)
	@$(BIN)/python tests/chaos/campaign.py --rounds $(ROUNDS) --seed $(SEED) $(CHAOS_FLAGS)

release: $(VENV)/.installed-dev
	@version=$$($(BIN)/python -c 'import holdfast; print(holdfast.__version__)'); \
	[ -z "$$(git status --porcelain)" ] || { echo "make release: uncommitted changes: commit or stash them"; exit 2; }; \
	grep -q "^## \[*$$version\b" CHANGELOG.md || { echo "make release: CHANGELOG.md has no section $$version"; exit 2; }; \
	! git rev-parse -q --verify "v$$version" >/dev/null || { echo "make release: v$$version is tagged already"; exit 2; }; \
	rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation >build.log 2>&1 || \
		{ tail -20 build.log; exit 1; }; \
	$(BIN)/python -m twine check --strict dist/* && git tag -a "v$$version" -m "Holdfast $$version" && sha256sum dist/*

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then shellcheck .ci/run lifecycle/*.sh tests/*.sh sbatch_templates/*.sbatch; \
	else echo "lint: shellcheck is not installed: the shell scripts were not checked"; fi

# setuptools builds holdfast itself; the last two are for what a dead job has in memory. on_create.sh repeats boto3's lines.
lock: $(VENV)/.installed-dev
	@$(PIP) uv
	@printf '%s\n' pyyaml pydantic typer rich jinja2 prometheus-client urllib3 nvidia-ml-py setuptools xxhash boto3 | \
		$(BIN)/uv pip compile -q --universal --generate-hashes \
		--no-header --no-annotate --python-version 3.11 -o lifecycle/requirements.lock -

bench: $(VENV)/.installed-dev
	@$(PIP) $(CONSTRAINTS) -e '.[bench]' || echo "bench: without s3torchconnector and nanio, which do not install here"
	@$(BIN)/holdfast ckpt bench
	@$(BIN)/python benchmarks/load.py
	@$(BIN)/python benchmarks/recovery.py
	@$(BIN)/python benchmarks/recovery_peers.py $(if $(PEERS_PYTHON),--python $(PEERS_PYTHON))
	@$(BIN)/python benchmarks/recovery_phases.py --nodes 3 4
	@$(BIN)/python benchmarks/redundancy.py
	@$(BIN)/python benchmarks/reshard.py
	@$(BIN)/python benchmarks/resize.py
	@$(BIN)/python benchmarks/elastic_throughput.py
	@$(BIN)/python benchmarks/supervisor.py
	@if [ "$$(id -u)" = 0 ] && command -v slurmctld >/dev/null; then $(BIN)/python benchmarks/hooks.py; \
	else echo "bench: what the hooks cost was not measured: needs root and Slurm"; fi

docs: $(VENV)/.installed
	@$(BIN)/python -m launcher.cli.reference docs/reference
	@$(BIN)/python -m simulation.state_machine docs/internals/state_machine.md

bench-faults: $(VENV)/.installed-dev
	@tests/install_slurm.sh
	@$(COMPILE)
	@$(BIN)/python benchmarks/faults.py $(BENCH_FLAGS)

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "make: no python3 >= 3.11 with venv found: apt install python3-venv, or make PYTHON=/path/to/python3"; exit 2; }
	@echo "making $(VENV) from $(PYTHON)"
	@$(PYTHON) -m venv $(if $(SITE_TORCH),--system-site-packages) $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.created constraints.txt
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
ifdef SITE_TORCH
	@$(BIN)/python -c 'import torch; print("using the site torch", torch.__version__)'
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $(VENV)/constraints.txt
else
	@echo "$(TORCH)" >> $(VENV)/constraints.txt
	@torch="$(TORCH)"; \
	if [ -z "$(CUDA)" ] && ! command -v nvidia-smi >/dev/null && \
			$(PIP) --dry-run --ignore-installed --report $(VENV)/torch.json "$(TORCH)" && \
			grep -q '"name": "nvidia-' $(VENV)/torch.json; then \
		if $(PIP) --dry-run --ignore-installed "$(TORCH)+cpu" >/dev/null 2>&1; then torch="$(TORCH)+cpu"; else \
			echo "make: no NVIDIA driver here, and no CPU build of $(TORCH) in pip's indexes: pip downloads the CUDA build,"; \
			echo "make: $$($(BIN)/python -c "$$DOWNLOAD_SIZE" $(VENV)/torch.json). It runs on the CPU too. For a CPU build: PIP_FLAGS='--extra-index-url URL'"; \
		fi; fi; \
	echo "installing $$torch"; \
	$(PIP) "$$torch"
endif
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml holdfast/__init__.py
	@echo "installing holdfast and its dependencies"
	@$(PIP) $(CONSTRAINTS) -e '.[mpi]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) $(CONSTRAINTS) -e '.[dev]'
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite $(AZURITE) || echo "make: npm could not install $(AZURITE): the tests of az:// will be skipped"; \
	else echo "make: no npm: the tests of az:// will be skipped"; fi
	@touch $@

clean:
	rm -rf $(VENV) .venv-oldest .venv-3.* runs build build.log dist *.egg-info
