# make demo: trains a real model here.  make test: all set-up, then the tests.
# make thorough: before a release, every test there is, those of tests/thorough.py too.
# make quick: what to run while working: lint, types, contracts, and the tests next to what has changed.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin
# Those of whole runs wait most of the time, for a cluster: on 2 cores there may be four (see tests/conftest.py).
# A process of tests that crashes ends them: pytest-xdist 3.8 would hang at the end if it were replaced.
PYTEST = $(RUN)/python -m pytest --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 --instafail

# A release of another's package breaks no test before somebody asks for it, by "make versions".
INSTALL = $(RUN)/python -m pip install --no-compile --quiet --disable-pip-version-check
VERSIONS = tests/versions.txt
EXTRAS = torch,tensorflow,adapters,tables,delta,hive,iceberg,safetensors,onnx,kubernetes,s3,yarn,trackers,metrics,serving,examples,bench,test

# Every process of a test would compile all that it imports, and pip has compiled nothing.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-kubernetes thorough quick check versions man bench clean

demo: $(VENV)/.demo
	$(RUN)/elasticflow train examples/digits/digits.py --workers 2 --servers 2 --epochs 30

test: $(VENV)/.test check
	$(PYTEST) -n 3 -m "not whole"
	$(PYTEST) -n 4 -m "whole and not thorough"

# Not part of `test`: the first time it builds a Kubernetes, which takes some nine minutes.
test-kubernetes: $(VENV)/.test
	PYTHON=$(RUN)/python .ci/kubernetes
	ELASTICFLOW_REQUIRE_KUBERNETES=1 $(RUN)/python -m pytest tests/kubernetes

thorough: test
	$(PYTEST) -n 4 -m "whole and thorough"

quick: $(VENV)/.test check
	$(RUN)/python -m tests.touched

check: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	PYTHONPATH=.:kubernetes:ps:slurm:yarn $(RUN)/lint-imports --no-logo

# The newest of every package, which the tests are then to be run with. For one Python: others take what they find.
versions: $(VENV)/bin/python
	$(INSTALL) --upgrade --upgrade-strategy eager -e '.[$(EXTRAS)]'
	$(RUN)/python -m pip list --format=freeze --exclude-editable --exclude pip | \
	  sed "s/$$/; python_version == '$$($(RUN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')'/" > $(VERSIONS)

man: $(VENV)/.test
	$(RUN)/python -m elasticflow.cli.manual > docs/elasticflow.1

bench: $(VENV)/.test
	$(RUN)/python -m benchmarks overhead scaling start kill join seal dense shared update overlap sparse

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("ElasticFlow needs Python 3.10 or newer, this is %s" % sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python setup.py $(VERSIONS) $(wildcard ps/elasticflow_ps/*.[ch] elasticflow/wire/*.c)
	$(INSTALL) --constraint $(VERSIONS) -e '.[torch,examples]'
	touch $@

$(VENV)/.test: $(VENV)/bin/python setup.py $(VERSIONS) $(wildcard ps/elasticflow_ps/*.[ch] elasticflow/wire/*.c)
	$(INSTALL) --constraint $(VERSIONS) -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info ps/elasticflow_ps/_native*.so elasticflow/wire/_native*.so
