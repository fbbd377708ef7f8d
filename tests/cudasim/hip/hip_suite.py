"""Build ggml-hip, host code only, and a driver for it, on the simulated HIP: what tests/cuda/cuda_build.py does for CUDA."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "cuda"))
import cuda_build
import cudasim
import headers

Unavailable = cuda_build.Unavailable
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@dataclass(frozen=True, slots=True)
class HipSuite:
    """What was built."""

    backend: Path
    cycle: Path
    cudasim: Path


def built(directory: Path) -> HipSuite:
    """What :func:`build` left in a directory."""
    return HipSuite(directory / "libpyggml-hip.so", directory / "cycle", cudasim.build())


def build(directory: Path = ROOT / "build" / "hip", tree: Path | None = None) -> HipSuite:
    """Build what has changed; ``tree`` is a patched llama.cpp instead of vendor/llama.cpp/upstream.

    Raises ``Unavailable`` with the reason where a piece cannot be had.
    """
    simulated = cudasim.build()
    include = headers.hip_include(simulated / "headers")
    if include is None:
        raise Unavailable("the HIP headers (Debian's libamdhip64-dev) cannot be had")
    if tree is None:
        cuda_build.run([sys.executable, cuda_build.VENDOR / "fetch.py"], "bringing the source of llama.cpp")
        tree = cuda_build.VENDOR / "upstream"
    configure: list[str | Path] = ["cmake", "-S", HERE, "-B", directory, "-G", "Ninja"]
    configure.append(f"-DCMAKE_CXX_COMPILER={cuda_build.clang()}")
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    values = {
        "LLAMA_CPP_DIR": tree,
        "OVERLAY_DIR": cuda_build.VENDOR / "overlay",
        "PYGGML_LIB_DIR": cuda_build.libraries(),
        "HIP_INCLUDE_DIR": include,
        "CUDASIM_DIR": simulated,
        "CUDASIM_SOURCE_DIR": HERE.parent,
    }
    cuda_build.run([*configure, *(f"-D{name}={value}" for name, value in values.items())], "configuring the HIP suite")
    cuda_build.run(["ninja", "-C", directory, "-j", "2"], "building the HIP suite")
    return built(directory)


if __name__ == "__main__":
    print(build())
