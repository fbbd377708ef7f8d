"""The pinned llama.cpp without our patches, built to compare with, and the Python package that comes with it."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from support import ROOT, SAFE

PLACE = ROOT / "build" / "upstream"
VENDOR = ROOT / "vendor" / "llama.cpp"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",  # as our development build has it: the same instructions, the same sums
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "GIT_EXE": "OFF",  # it would find our commits and, with each, compile again
}


@functools.cache
def build(*targets: str) -> Path:
    """Build targets of the unpatched source, as far as they have changed; returns the directory of programs and libraries."""
    tree, binary, stamp = PLACE / "source", PLACE / "build", PLACE / "stamp"
    PLACE.mkdir(parents=True, exist_ok=True)
    pin = (VENDOR / "UPSTREAM.toml").read_bytes() + os.environ.get("PYGGML_LLAMA_CPP_DIR", "").encode()
    wanted = hashlib.sha256(pin).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(tree, ignore_errors=True)
        _run(sys.executable, str(VENDOR / "fetch.py"), "--pristine", str(tree))
        # left out by UPSTREAM.toml, and configured together with the examples
        (tree / "pocs").mkdir()
        (tree / "pocs" / "CMakeLists.txt").touch()
        stamp.write_text(wanted)
    # pytest holds back what is printed; whoever waits some minutes may know what for
    print(
        f"\nbuilding unpatched llama.cpp ({', '.join(targets)}; see {PLACE / 'log'}) ...",
        file=sys.__stderr__,
        flush=True,
    )
    defines = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    _run("cmake", "-G", "Ninja", "-S", str(tree), "-B", str(binary), *defines)
    _run("cmake", "--build", str(binary), "--target", *targets)
    return binary / "bin"


def _run(*command: str) -> None:
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": tools, "CCACHE_BASEDIR": str(PLACE)}
    with (PLACE / "log").open("w") as log:
        done = subprocess.run(
            [shutil.which(command[0], path=tools) or command[0], *command[1:]],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{(PLACE / 'log').read_text()[-4000:]}")


@functools.cache
def python_package() -> tuple[Path, dict[str, str]]:
    """`llama_cpp` of the pinned source distribution over the unpatched libraries: where it lies, and what it must be told."""
    libraries = build("llama", "llama-simple")
    place = PLACE / "python"
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(_archive()) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if name.startswith("llama_cpp/") and name.endswith(".py"):
                member.name = name
                tar.extract(member, place, **SAFE)
    (place / "llama_cpp" / "lib").symlink_to(libraries)
    return place, {"LLAMA_CPP_LIB_PATH": str(libraries)}


def _archive() -> Path:
    sys.path.insert(0, str(VENDOR))
    try:
        import source
    finally:
        sys.path.remove(str(VENDOR))
    found: Any = source.archive()
    return Path(found)
