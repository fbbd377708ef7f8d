"""Finds CUDA's headers (an installed toolkit's, else NVIDIA's header wheels) and HIP's (Debian's package).

``python headers.py DIRECTORY`` prints the include directory; wheels are unpacked below DIRECTORY, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: The wheels that carry headers and no libraries worth mentioning (under 6 MB in all), of one CUDA release.
WHEELS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85")


def toolkit() -> Path | None:
    """The root of an installed toolkit of CUDA 13, or None."""
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and "CUDART_VERSION  13" in _read(Path(root) / "include" / "cuda_runtime_api.h"):
            return Path(root)
    return None


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def cuda_root(directory: Path, *, use_toolkit: bool = True) -> Path:
    """A directory with ``include/`` in it, as ``clang --cuda-path`` and ``-DCUDA_INCLUDE_DIR`` want it."""
    found = toolkit() if use_toolkit else None
    if found:
        return found
    root = directory / "cuda-13.0"
    if (root / "include" / "crt").is_dir():
        return root
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        wheels = Path(scratch) / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", str(wheels), *WHEELS], check=True)
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch)
        unpacked = next(Path(scratch).glob("nvidia/cu13"))
        # clang asks for these before it believes in an installation; a host-only compile reads neither.
        (unpacked / "bin").mkdir(exist_ok=True)
        (unpacked / "nvvm" / "libdevice").mkdir(parents=True, exist_ok=True)
        (unpacked / "nvvm" / "libdevice" / "libdevice.10.bc").touch()
        shutil.rmtree(root, ignore_errors=True)
        unpacked.rename(root)
    return root


def hip_include(directory: Path) -> Path | None:
    """Debian's HIP headers, unpacked and not installed; None where apt-get or the package is not to be had."""
    include = directory / "hip" / "usr" / "include"
    if (include / "hip" / "hip_runtime.h").is_file():
        return include
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        quiet = {"cwd": scratch, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        download = ["apt-get", "download", "libamdhip64-dev"]
        # A fresh container has no package lists yet.
        if subprocess.run(download, **quiet).returncode:  # type: ignore[call-overload]
            subprocess.run(["apt-get", "update"], **quiet)  # type: ignore[call-overload]
            subprocess.run(download, **quiet)  # type: ignore[call-overload]
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(directory / "hip")], check=True)
    return include if (include / "hip" / "hip_runtime.h").is_file() else None


if __name__ == "__main__":
    print(cuda_root(Path(sys.argv[1])) / "include")
