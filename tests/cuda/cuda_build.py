#!/usr/bin/env python3
"""Build the real CUDA backend for the simulated CUDA: host code only, so that no toolkit and no card is needed.

    cuda_build.py [--library-dir DIR] [--directory DIR]

It takes clang 20 or newer (22 is what it is tried with; on Debian it is installed if it can be), CMake, ninja, the headers of
CUDA (see tests/cudasim/headers.py) and the libraries of an earlier build of pyggml. A second run compiles what has changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENDOR = ROOT / "vendor" / "llama.cpp"
BUILD = ROOT / "build" / "cuda"
CLANG = ("22", "23", "21", "20")

sys.path.insert(0, str(HERE.parent / "cudasim"))
import cudasim  # noqa: E402
import headers  # noqa: E402


class Unavailable(Exception):
    """A piece that cannot be had on this machine; the message says which."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What was built: programs, and one directory for each flavour of the backend."""

    directory: Path
    cudasim: Path

    def program(self, name: str) -> Path:
        return self.directory / name

    def backend(self, flavour: str) -> Path:
        """`plain`, `nodelete` (linked with -z nodelete), `no-vmm` or `unpatched`."""
        return self.directory / flavour / "libpyggml-cuda.so"


def run(command: list[str | Path], what: str) -> None:
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{what} failed\n{done.stdout[-6000:]}")


def clang() -> str:
    """A clang that knows CUDA 13, installed from Debian if there is none."""
    for version in CLANG:
        if found := shutil.which(f"clang++-{version}"):
            return found
    if shutil.which("apt-get") and os.geteuid() == 0:
        # a new machine has no lists of packages yet
        subprocess.run(["apt-get", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for version in CLANG:
            install = ["apt-get", "install", "-y", "--no-install-recommends", f"clang-{version}"]
            if not subprocess.run(install, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
                return f"/usr/bin/clang++-{version}"
    raise Unavailable("clang 20 or newer is not installed and apt-get cannot install it")


def libraries() -> Path:
    """Where an earlier build left libpyggml-base.so, libpyggml.so and libpyggml-llama.so."""
    places = [ROOT / "build" / "dev" / "bin", ROOT / "pyggml" / "lib"]
    for place in places:
        if all((place / name).is_file() for name in ("libpyggml-base.so", "libpyggml.so", "libpyggml-llama.so")):
            return place
    raise Unavailable(f"pyggml is not built: no libraries in {' or '.join(map(str, places))}")


def copy_changed(source: Path, target: Path) -> None:
    """Copy; a file that is the same keeps its time, so that nothing is compiled again for it."""
    if not target.is_file() or target.read_bytes() != source.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def unpatched_tree(tree: Path, target: Path) -> None:
    """The CUDA sources of `tree` with the patches of the CUDA backend taken out again."""
    scratch = target.with_name("reversing")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(tree / "ggml" / "src" / "ggml-cuda", scratch / "ggml" / "src" / "ggml-cuda")
    names = (VENDOR / "patches" / "series").read_text().split()
    ours = [name for name in names if "-cuda-" in name]
    if not ours:
        raise Unavailable("patches/series has no patch of the CUDA backend")
    for name in reversed(ours):
        run(["patch", "-R", "-p1", "-s", "-d", scratch, "-i", VENDOR / "patches" / name], f"taking {name} out again")
    for source in scratch.rglob("*"):
        if source.is_file():
            copy_changed(source, target / source.relative_to(scratch))
    shutil.rmtree(scratch)


def built(directory: Path) -> Suite:
    """What an earlier `build` left in `directory`."""
    return Suite(directory, cudasim.build())


def build(
    library_dir: Path | None = None, directory: Path = BUILD, tree: Path | None = None, opt: str = "-O0"
) -> Suite:
    """Build everything the suite needs (incremental) and say where it is."""
    compiler = clang()
    library_dir = library_dir or libraries()
    if tree is None:
        run([sys.executable, VENDOR / "fetch.py"], "bringing the source of llama.cpp")
        tree = VENDOR / "upstream"
    simulated = cudasim.build()
    unpatched_tree(tree, directory / "unpatched-source")
    configure: list[str | Path] = [
        "cmake",
        "-S",
        HERE,
        "-B",
        directory,
        "-G",
        "Ninja",
        f"-DCMAKE_CXX_COMPILER={compiler}",
    ]
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    values = {
        "LLAMA_CPP_DIR": tree,
        "UNPATCHED_DIR": directory / "unpatched-source",
        "OVERLAY_DIR": VENDOR / "overlay",
        "PYGGML_LIB_DIR": library_dir,
        "CUDA_ROOT": headers.cuda_root(directory / "headers"),
        "CUDASIM_DIR": simulated,
        "CUDASIM_INCLUDE_DIR": HERE.parent / "cudasim" / "include",
        "MEASURED_OPT": opt,
    }
    run([*configure, *(f"-D{name}={value}" for name, value in values.items())], "configuring the CUDA suite")
    run(["ninja", "-C", directory, "-j", os.environ.get("PYGGML_JOBS", "2")], "building the CUDA suite")
    return Suite(directory, simulated)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library-dir", type=Path, help="where libpyggml-base.so and the others are")
    parser.add_argument("--directory", type=Path, default=BUILD)
    parser.add_argument("--tree", type=Path, help="a patched llama.cpp instead of vendor/llama.cpp/upstream")
    parser.add_argument("--opt", default="-O0", help="optimization of the patched files (-O2 to measure)")
    options = parser.parse_args()
    try:
        suite = build(options.library_dir, options.directory, options.tree, options.opt)
    except (Unavailable, RuntimeError) as error:
        print(f"cuda_build.py: {error}", file=sys.stderr)
        return 1
    print(suite.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
