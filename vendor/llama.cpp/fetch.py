#!/usr/bin/env python3
"""Bring the pinned llama.cpp source to upstream/ and apply our patch series to it.

    fetch.py                     fetch and patch, if that is not done already (what the build calls)
    fetch.py --check             prove that pristine source + series == the tree in upstream/
    fetch.py --check --upstream PATH
                                 try the series on another upstream (directory, sdist or wheel) and list what does not apply
    fetch.py --refresh           regenerate the patches from an edited upstream/
    fetch.py --pristine DIR      write the source without any patch to DIR

The source is looked for, in this order: the llama.cpp checkout named by PYGGML_LLAMA_CPP_DIR (copied, never changed), an
already patched tree in upstream/ (as our source distribution carries it), the archive in cache/, and the package index that
pip is configured for. Only the standard library, pip and git are needed, the last two only where something is to be done.
"""

from __future__ import annotations

import argparse
import fcntl
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from source import HERE, FetchError, checkout, pin, pristine, unpack

TREE = HERE / "upstream"
PATCHES = HERE / "patches"
STAMP = ".pyggml-stamp"


def series() -> list[Path]:
    """The patches in the order in which they apply."""
    lines = (PATCHES / "series").read_text().splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    missing = [name for name in names if not (PATCHES / name).is_file()]
    if missing:
        raise FetchError(f"patches/series names files that do not exist: {', '.join(missing)}")
    return [PATCHES / name for name in names]


def stamp() -> str:
    """What the patched tree was made from: the pin or checkout, and every byte of the series."""
    digest = hashlib.sha256((HERE / "UPSTREAM.toml").read_bytes())
    digest.update(os.environ.get("PYGGML_LLAMA_CPP_DIR", "").encode())
    for patch in series():
        digest.update(patch.name.encode() + b"\0" + patch.read_bytes())
    return digest.hexdigest()


# -- the series --------------------------------------------------------------------------------------------------------


def git(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # below another repository, or told of one, git would take paths as that repository's and silently skip them
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    try:
        return subprocess.run(["git", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise FetchError("git is needed to apply the patches to llama.cpp, and is not installed") from None


def touched(patch: Path) -> list[str]:
    """The files that a patch changes."""
    return [line[6:].strip() for line in patch.read_text().splitlines() if line.startswith("+++ b/")]


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def apply(patch: Path, tree: Path) -> None:
    """Apply one patch, and make sure that it changed what it says."""
    before = {name: content(tree / name) for name in touched(patch)}
    done = git("apply", "--whitespace=nowarn", str(patch), cwd=tree)
    reason = done.stderr.strip()
    if not done.returncode:
        unchanged = [name for name, was in before.items() if content(tree / name) == was]
        reason = f"these files did not change: {', '.join(unchanged)}" if unchanged else ""
    if done.returncode or reason:
        raise FetchError(
            f"{patch.name} does not apply to this llama.cpp\n{reason}\n"
            f"The series is made for commit {pin()['upstream']['commit']}; for another one, fetch.py --check --upstream "
            "lists what does not fit."
        )


def patched(target: Path) -> None:
    """Write the source with the series applied to `target`."""
    pristine(target)
    for patch in series():
        apply(patch, target)


# -- trees -------------------------------------------------------------------------------------------------------------


def files(tree: Path) -> Iterator[str]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.name != STAMP:
            yield str(path.relative_to(tree))


def differences(left: Path, right: Path) -> list[str]:
    """The files that are not the same in both."""

    def same(name: str) -> bool:
        pair = left / name, right / name
        return all(one.is_file() for one in pair) and filecmp.cmp(*pair, shallow=False)

    return [name for name in sorted({*files(left), *files(right)}) if not same(name)]


def sync(source: Path, target: Path) -> None:
    """Make `target` equal to `source`; a file that is the same already keeps its time, so that nothing is compiled again for it."""
    target.mkdir(exist_ok=True)
    # until all is there the tree is no tree: who is killed here finds it done again the next time
    (target / STAMP).unlink(missing_ok=True)
    for name in differences(source, target):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
        else:
            (target / name).unlink()


# -- commands ----------------------------------------------------------------------------------------------------------


def fetch() -> None:
    """Make upstream/ the patched source, if it is not."""
    lock = os.open(HERE, os.O_RDONLY)  # closed, and with it released, at exit
    fcntl.flock(lock, fcntl.LOCK_EX)
    # what a checkout holds may have changed since; no stamp could tell
    if checkout() is None and (TREE / STAMP).is_file() and (TREE / STAMP).read_text() == stamp():
        return
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory, "upstream")
        patched(fresh)
        keep_edits(fresh)
        sync(fresh, TREE)
    (TREE / STAMP).write_text(stamp())
    print(f"llama.cpp {pin()['upstream']['version']} is in {TREE}, {len(series())} patches applied", file=sys.stderr)


def keep_edits(fresh: Path) -> None:
    """Refuse to overwrite what somebody changed in the tree after it was made, and did not take into a patch."""
    if not (TREE / STAMP).is_file():
        return
    made = (TREE / STAMP).stat().st_mtime_ns
    edited = [
        name for name in differences(fresh, TREE) if (TREE / name).is_file() and (TREE / name).stat().st_mtime_ns > made
    ]
    if edited:
        raise FetchError(
            f"the series has changed, and so were these files in {TREE}; fetch.py --refresh takes the edits into the "
            f"patches, deleting the directory drops them:\n  " + "\n  ".join(edited)
        )


def check() -> None:
    """Prove that the tree is what the pin and the series make."""
    with tempfile.TemporaryDirectory() as directory:
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
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "upstream")
        unpack(source.resolve(), tree)
        for patch in series():
            done = git("apply", "--whitespace=nowarn", "--reject", str(patch), cwd=tree)
            rejects = sorted(tree.rglob("*.rej"))
            hunks = sum(reject.read_text().count("\n@@ ") for reject in rejects)
            missing = [line for line in done.stderr.splitlines() if "No such file" in line]
            # a patch that git cannot even read must not pass for one that applies
            lost = hunks + len(missing) or int(done.returncode != 0)
            print(f"{patch.name}: {f'{lost} hunks do not apply' if lost else 'applies'}")
            for reject in rejects:
                print("    " + str(reject.relative_to(tree).with_suffix("")))
                print("\n".join("        " + line for line in reject.read_text().splitlines()[1:]))
                reject.unlink()
            for line in missing or ([] if hunks else done.stderr.splitlines()):
                print("    " + line)
            failed += lost
    return failed


def owners() -> dict[str, Path]:
    """Which patch each changed file belongs to: one, so that a difference tells where it goes."""
    owner: dict[str, Path] = {}
    for patch in series():
        for name in touched(patch):
            if owner.setdefault(name, patch) != patch:
                raise FetchError(
                    f"{name} is changed by {owner[name].name} and by {patch.name}; a file belongs to one patch"
                )
    return owner


def refresh() -> None:
    """Regenerate every patch from the edited tree."""
    owner = owners()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        pristine(root / "a")
        changed = differences(root / "a", TREE)
        new = [name for name in changed if not ((root / "a" / name).is_file() and (TREE / name).is_file())]
        if new:
            raise FetchError("a patch only changes files, new ones go to overlay/:\n  " + "\n  ".join(new))
        strangers = [name for name in changed if name not in owner]
        if strangers:
            raise FetchError(
                "these files were edited and belong to no patch; add a line '+++ b/FILE' for each to the patch it goes to:\n  "
                + "\n  ".join(strangers)
            )
        bodies = {patch: "".join(diff(root, name) for name in changed if owner[name] == patch) for patch in series()}
        empty = [patch.name for patch, body in bodies.items() if not body]
        if empty:
            raise FetchError(f"nothing is left of {', '.join(empty)}; take it out of patches/series")
    for patch, body in bodies.items():
        head = patch.read_text().split("diff --git ")[0].split("+++ b/")[0].rstrip("\n")
        patch.write_text(head + "\n\n" + body)
        count = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in body.splitlines() if line)
        print(f"{patch.name}: {body.count('diff --git ')} files, {count} changed lines")
    (TREE / STAMP).write_text(stamp())


def diff(root: Path, name: str) -> str:
    """What was changed in one file, the pristine one of which lies in `root`/a."""
    edited = root / "b" / name
    edited.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TREE / name, edited)
    done = git("diff", "--no-index", "--no-color", "--no-prefix", "--unified=1", f"a/{name}", f"b/{name}", cwd=root)
    return "".join(line + "\n" for line in done.stdout.splitlines() if not line.startswith("index "))


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
