# SPDX-License-Identifier: Apache-2.0
# make demo and make test do all their set-up themselves; see tools/bootstrap.sh.

VENV   ?= .venv
PY     := $(VENV)/bin/python
SCALE  ?= 1
# Processes that run tests; auto is what tests/conftest.py makes of the number of cores.
WORKERS ?= auto
PYTEST := $(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal

# Tests start hundreds of Python processes: without bytecode on disk each of them compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test drills setup-demo setup-dev lint docs test-cuda test-torch test-shell ptf p4 p4-tna p4-tna-dump generate vectors wheel clean

help:            ## show this list
	@grep -hE '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup-demo:
	@tools/bootstrap.sh demo $(VENV)

setup-dev:
	@tools/bootstrap.sh dev $(VENV)

demo: setup-demo ## four torch workers train through the switch, then in fp32, over links of 200 Mbit/s; a minute
	@$(VENV)/bin/hopsum demo $(ARGS)

check: setup-dev lint  ## lint, types, import rules, unit tests: two minutes
	@echo "==> unit tests" && $(PYTEST) -q -m "not system" $(ARGS)

test: setup-dev lint docs  ## lint, types, import rules, docs, all tests (bmv2 and p4c where installed)
	@echo "==> tests (some minutes)" && TEST_SCALE=$(SCALE) $(PYTEST) --durations 20 --durations-min 10 $(ARGS)

drills: setup-dev ## break every part of a real system on purpose, and check replicas, mass and leftovers (TARGET=bmv2; SCALE=0.3)
	@DRILL_SCALE=$(SCALE) DRILL_TARGET=$(TARGET) $(PY) -m pytest --numprocesses 0 -q tests/system/drills $(ARGS)

lint: setup-dev  ## ruff, mypy strict, import rules
	@echo "==> ruff"            && $(VENV)/bin/ruff check .
	@echo "==> mypy --strict"   && $(VENV)/bin/mypy
	@echo "==> import rules"    && $(VENV)/bin/lint-imports

docs: setup-dev  ## HTML documentation, warnings are errors
	@echo "==> sphinx"          && $(VENV)/bin/sphinx-build -q -W --keep-going -b html docs docs/_build/html

# A GPU is no reason to train on the CPU again, which every machine does.
CUDA_TESTS := tests/host/torch_codec/test_cuda.py $(addprefix tests/host/torch_device/,test_cuda.py test_ranks.py) \
	--deselect='tests/host/torch_device/test_ranks.py::test_every_way_of_training[gloo-cpu]'
test-cuda: setup-dev ## on a machine with a CUDA GPU: the codec's benchmark, into gpu-bench.json, and the tests that other machines skip
	@$(PY) -m hopsum_evaluation.torch.bench --device cuda > gpu-bench.json && cat gpu-bench.json
	@$(PY) -m pytest -q -rs --numprocesses 0 $(CUDA_TESTS) $(ARGS)

TORCH_TESTS := $(addprefix tests/host/,torch torch_codec torch_device local_group) tests/evaluation/training/test_accuracy_models.py
TORCH_VENV   = $(VENV)-torch-$(TORCH)$(if $(PYTHON),-$(notdir $(PYTHON)))
test-torch:      ## the torch tests on another version, in an environment of its own (TORCH=2.8.0; PYTHON=python3.13 for another Python)
	@test -n "$(TORCH)" || { echo "make test-torch needs a version: TORCH=2.8.0" >&2; exit 2; }
	@tools/bootstrap.sh dev $(TORCH_VENV) $(TORCH)
	@$(TORCH_VENV)/bin/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal $(TORCH_TESTS) $(ARGS)

SHELL_TESTS := tests/controlplane/test_shell.py tests/switch/server/test_shell.py tests/system/ptf/test_own_program.py \
    tests/frame/test_guides.py tests/frame/test_tutorial_own_p4.py
OLDEST_TESTS := tests/host/rpc tests/switch/server
test-shell:      ## the tests of p4runtime-shell, which pins old packages, and of the oldest grpcio and protobuf, in an environment of its own
	@tools/bootstrap.sh shell $(VENV)-shell
	@$(VENV)-shell/bin/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal -m shell $(SHELL_TESTS) $(ARGS)
	@$(VENV)-shell/bin/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal $(OLDEST_TESTS) $(ARGS)

ptf: setup-dev   ## the data-plane cases, with their table (TARGET=native, bmv2, tna, tofino_model or tofino2_model; default: all)
	@$(PY) ptf_tests/run $(if $(TARGET),--target $(TARGET)) $(ARGS)

p4: setup-dev    ## recompile p4/ with p4c (needs p4c-bm2-ss) and rewrite the manifest
	@$(PY) tools/compile_p4.py

p4-tna: setup-dev ## recompile p4/tna for Tofino 1 and 2 (needs p4c-barefoot, minutes) and rewrite its manifest
	@$(PY) tools/compile_tna.py

p4-tna-dump: setup-dev ## write again what p4c-barefoot's front end makes of p4/tna, which tests execute (a minute)
	@$(PY) tools/dump_tna.py

generate: setup-dev ## rewrite what is generated: Python and Wireshark's dissector from p4/shared, parts of docs/protocol.md
	@$(PY) tools/generate_wire.py && $(PY) tools/generate_dissector.py
	@$(PY) -m tests.system.model --write

vectors: setup-dev ## record every case on bmv2 again (needs root and simple_switch_grpc)
	@$(PY) tools/record_vectors.py

wheel: setup-dev ## build the wheel into dist/
	@$(PY) -m build --wheel --no-isolation

clean:           ## remove the environment and everything generated outside git
	rm -rf $(VENV) $(VENV)-torch-* $(VENV)-shell* dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
