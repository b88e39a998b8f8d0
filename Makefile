# Every target first creates the environment that it needs, once.
#
#   make demo     train a small model on this machine: queue, gang, compiled FSDP, trace, report
#   make test     unit tests, and the tests marked `smoke`: one real path of each slow family
#   make test-all     all tests: test, then the rest: TorchX's nightly release, kfp, slow and cluster in one run, kubelets
#   make check    format, lint, types, import rules, generated files, committed content, retired terms
#   make fix      apply automatic fixes
#   make manifests    write the CRDs and the API reference again, after a change of platform/muster/api/spec
#   make pod-fields   write the fields of a pod template again, after a newer Kubernetes was pinned for the tests
#   make cluster-up   a Kubernetes control plane with virtual nodes, until Ctrl-C; NODES=4 GPUS=8
#   make demo-cluster   two real nodes and the images, as root on Linux: installation, queues, jobs, a lost node, step by step
#   make dist     the wheel and the source distribution in dist/, the same for the same commit
#   make images   the images of the operator and of jobs; BASE=, IMAGE_TORCH=2.13|none, VERSION=, ARCHIVES=folder
#   make fuzz     the property tests with many examples, then with new random ones; MINUTES=5
#   make chaos    1,000 jobs on a real control plane with faults of every component; SEED=, JOBS=, NODES=, MINUTES=
#   make bench    the benchmarks of docs/reference/performance.md
#   make frameworks   unmodified scripts of Lightning, Accelerate, Transformers and DeepSpeed, and TorchTitan, stopped and resumed
#   make kfp      pipelines of Kubeflow: local runs, the released component, a run on a real control plane
#   make matrix   the marked tests with every supported torch and TorchX (20 GB of disk)
#   make lock     write constraints/ after a change of dependencies; UPGRADE=1 takes the newest of everything

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TORCH ?= 2.13
TORCHX ?= 0.7.0
MINUTES ?= 5
JOBS ?= 1000
NODES ?= 4
PLANES ?= 3
GPUS ?= 8
IMAGE_TORCH ?= $(TORCH)
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
TORCHES ?= 2.11 2.12 2.13 2.14 2.15
TORCHXES ?= 0.7.0 nightly

CODE := platform/muster platform/torchx_plugins components/muster_components operators/muster_operator
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/muster
# Compiled kernels outlive a test run: the second run compiles nothing.
export TORCHINDUCTOR_CACHE_DIR ?= $(CACHE)/inductor
# So do the bytecode of Python and pytest's rewritten tests: daemons, shims and workers start by the hundred.
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Property tests: `make unit` runs them with few examples, `make fuzz` with many.
PROPERTIES := -m "hypothesis and not slow and not cluster" -n auto --maxprocesses 8 --dist worksteal --ignore=tests/cluster tests

# What SMOKE=no adds to a selection of tests.
UNSMOKED = $(if $(filter no,$(SMOKE)), and not smoke)

section = @printf '\n\033[1m== %s\033[0m\n' "$(1)"
# RUNNER=tools.rerun: what fails is run once more, as .ci/run has it.
RUNNER ?= pytest
pytest = $(1)/bin/python -m $(RUNNER) --failed-first $(PYTEST)

.NOTPARALLEL:
.PHONY: help demo test test-all rest smoke check check-quick fix manifests pod-fields fuzz chaos bench matrix lock clean setup unit slow integration cluster kubelets frameworks kfp cluster-up demo-cluster images dist matrix-torch-% matrix-torchx-%

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@tools/environment.sh .venv base torchx-$(TORCHX) torch-$(TORCH)

demo: setup
	@python tools/compiler.py
	@bash examples/01-first-job/run.sh

# Quick tests first; within each target, those that failed in the last run.
test: unit smoke

test-all: test rest

# What `make test` leaves out. SMOKE=no leaves the tests marked `smoke` out of any target.
rest: SMOKE := no
rest: matrix-torchx-nightly kfp integration kubelets

unit: setup
	$(call section,unit tests)
	@time $(call pytest,.venv) -m "not slow and not cluster" -n auto --maxprocesses 8 --dist worksteal --durations=10 --ignore=tests/cluster tests

# Those on a control plane share one, on one worker. Its programs are built first (minutes, once) and no others.
smoke: setup
	$(call section,one real path of each slow family)
	@[ "$${MUSTER_SKIP_CLUSTER:-}" = 1 ] || python -m tests.cluster.controlplane binaries --current
	@time $(call pytest,.venv) -m smoke -n 3 --dist loadgroup --durations=10 \
	  $$(grep -rl --include='test_*.py' 'mark\.smoke' tests)

# Two at a time, since most of them wait for processes of their own, and those of a trainer are several already.
slow: setup
	$(call section,slow tests: real processes and compilation)
	@$(call pytest,.venv) -m "slow and not cluster and not frameworks$(UNSMOKED)" -n 2 --dist worksteal --durations=10 --ignore=tests/cluster tests

# `slow` and `cluster` in one run: tests on clusters mostly wait, those of the trainer compute. What takes longest begins
# first.
integration: setup
	$(call section,slow tests and tests on real control planes)
	@[ "$${MUSTER_SKIP_CLUSTER:-}" = 1 ] || python -m tests.cluster.controlplane binaries
	@$(call pytest,.venv) -m "(slow or cluster) and not frameworks$(UNSMOKED)" -n $$(($(PLANES) + 2)) --dist loadfile --no-loadscope-reorder \
	  --durations=10 tests/examples tests/cluster tests/helm $$(grep -rl --include='test_*.py' 'mark\.slow' tests)

# Each worker has its own control plane and runs whole files, since the tests of some files share another one. Missing
# programs are built before the tests (minutes, once). MUSTER_SKIP_CLUSTER=1 skips these tests.
cluster: setup
	$(call section,tests on $(PLANES) real control planes)
	@[ "$${MUSTER_SKIP_CLUSTER:-}" = 1 ] || python -m tests.cluster.controlplane binaries
	@$(call pytest,.venv) -m "cluster$(UNSMOKED)" -n $(PLANES) --dist loadfile --no-loadscope-reorder --durations=10 \
	  tests/cluster tests/helm

# One after the other: a machine has one cluster with real nodes at a time.
kubelets: setup
	$(call section,tests of the images and on real nodes)
	@$(call pytest,.venv) -m cluster --durations=10 tests/images tests/kubelets

# An environment of its own, with the training frameworks beside torch.
frameworks:
	$(call section,scripts of training frameworks)
	@tools/environment.sh .cache/frameworks base torchx-$(TORCHX) torch-$(TORCH) frameworks
	@PATH=$(CURDIR)/.cache/frameworks/bin:$$PATH $(call pytest,.cache/frameworks) -m frameworks -n 2 tests/examples tests/launch tests/titan

# An environment of its own, with kfp and without TorchX and torch; jobs of the example train with the Python of .venv.
kfp: setup
	$(call section,pipelines of Kubeflow)
	@tools/environment.sh .cache/kfp kfp
	@[ "$${MUSTER_SKIP_CLUSTER:-}" = 1 ] || python -m tests.cluster.controlplane binaries
	@$(call pytest,.cache/kfp) -m kfp tests/kfp tests/cluster/users/test_kfp.py

cluster-up: setup
	@exec python -m tests.cluster.controlplane up --nodes $(NODES) --gpus $(GPUS)

# Prints what is missing if this machine cannot run kubelets.
demo-cluster: setup
	@exec python -m tests.kubelets day

# Needs neither torch nor the environment of this project, only Python and buildah, podman or docker.
images:
	@python3 tools/images.py --tag $(VERSION) --torch $(IMAGE_TORCH) $(if $(BASE),--base $(BASE)) $(if $(ARCHIVES),--archives $(ARCHIVES))

dist: setup
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} python -m hatchling build -d dist

check: check-quick
	$(call section,types)
	@mypy $(CODE) tools tests
	$(call section,generated files)
	@python tools/manifests.py --check

# What takes seconds: also a hook before each commit (.pre-commit-config.yaml).
check-quick: setup
	$(call section,format)
	@ruff format --check .
	$(call section,lint)
	@ruff check .
	$(call section,import rules)
	@lint-imports --no-logo --cache-dir .cache/import-linter
	$(call section,committed content)
	@python tools/committed.py
	$(call section,retired terms)
	@python tools/terms.py
	$(call section,version)
	@python tools/version.py --check

# First the format, which shortens lines that the lint would report.
fix: setup
	@ruff format .
	@ruff check --fix .
	@ruff format .

manifests: setup
	@python tools/manifests.py

pod-fields: setup
	@python -m tools.pod_fields

# Ends with the first failure, which hypothesis keeps and repeats first the next time.
fuzz: setup
	$(call section,property tests with many examples)
	@MUSTER_HYPOTHESIS=deep $(call pytest,.venv) -q $(PROPERTIES)
	$(call section,property tests with new examples for $(MINUTES) minutes)
	@end=$$((SECONDS + 60 * $(MINUTES))); while [ $$SECONDS -lt $$end ]; do \
	  MUSTER_HYPOTHESIS=fuzz $(call pytest,.venv) -q $(PROPERTIES); done

# The seed, which is printed, determines jobs and faults; the report and the history stay in a folder.
chaos: NODES = 200
chaos: setup
	$(call section,$(JOBS) jobs on $(NODES) nodes with faults for $(MINUTES) minutes)
	@python -m tests.cluster.chaos $(if $(SEED),--seed $(SEED)) --jobs $(JOBS) --nodes $(NODES) --minutes $(MINUTES)

bench: setup
	$(call section,planner)
	@python benchmarks/planner.py --nodes 10000 --gangs 2000 --queues 200 --json
	@python benchmarks/planner.py --sweep
	@python benchmarks/planner.py --case crowd
	@python benchmarks/planner.py --case fill
	$(call section,traces)
	@python benchmarks/tracing.py

matrix: $(TORCHXES:%=matrix-torchx-%) $(TORCHES:%=matrix-torch-%) frameworks

# The tests of the trainer, and those marked `matrix`.
matrix-torch-%:
	$(call section,torch $*)
	@tools/environment.sh .cache/torch-$* base torchx-$(TORCHX) torch-$*
	@PATH=$(CURDIR)/.cache/torch-$*/bin:$$PATH $(call pytest,.cache/torch-$*) -m "matrix and not cluster" tests

# Without torch: what submits a job must not need it.
matrix-torchx-%:
	$(call section,TorchX $*)
	@tools/environment.sh .cache/torchx-$* base torchx-$*
	@PATH=$(CURDIR)/.cache/torchx-$*/bin:$$PATH $(call pytest,.cache/torchx-$*) -n 2 --dist worksteal tests/torchx tests/test_repository.py

lock: setup
	@python tools/lock.py .cache/uv/bin/uv $(if $(UPGRADE),--upgrade)

clean:
	rm -rf .venv .cache
