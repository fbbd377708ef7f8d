"""fetch.py: the pinned source and the series, tried on a small upstream of our own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from vendored import LANDMARK, PATCHES, SOURCE, VENDOR, Vendored, write


@pytest.fixture
def vendored(tmp_path: Path) -> Vendored:
    return Vendored(tmp_path / "vendor" / "llama.cpp")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    write(
        tmp_path / "llama.cpp",
        {**SOURCE, "build/huge.o": "object\n", "build-cuda/x.cpp": "generated\n", "m.gguf": "model\n"},
    )
    return tmp_path / "llama.cpp"


# -- fetch ---------------------------------------------------------------------------------------------------------------


def test_fetch_patches_and_leaves_out(vendored: Vendored) -> None:
    vendored.fetch()
    assert "line five\n" in (vendored.tree / LANDMARK).read_text()
    assert "return 1;" in (vendored.tree / "src/llama.cpp").read_text()
    assert not (vendored.tree / "docs").exists() and not (vendored.tree / "pyproject.toml").exists()


def test_a_second_fetch_touches_nothing_and_needs_nothing(vendored: Vendored) -> None:
    vendored.fetch()
    before = vendored.times()
    shutil.rmtree(vendored.archive.parent)
    assert vendored.fetch(PATH="/nonexistent") == ""
    assert vendored.times() == before


def test_a_changed_series_touches_only_its_files(vendored: Vendored) -> None:
    vendored.fetch()
    before = vendored.times()
    vendored.edit("patches/0002-llama.patch", "+    return 1;", "+    return 2;")
    vendored.fetch()
    after = vendored.times()
    assert {name for name in after if after[name] != before[name]} == {"src/llama.cpp", ".pyggml-stamp"}
    assert "return 2;" in (vendored.tree / "src/llama.cpp").read_text()


def test_a_patch_taken_out_of_the_series_is_undone(vendored: Vendored) -> None:
    vendored.fetch()
    (vendored.place / "patches/series").write_text("0001-registry.patch\n")
    vendored.fetch()
    assert (vendored.tree / "src/llama.cpp").read_text() == SOURCE["src/llama.cpp"]


def test_edits_that_are_in_no_patch_are_not_overwritten(vendored: Vendored) -> None:
    vendored.fetch()
    vendored.edit("upstream/src/llama.cpp", "return 1;", "return 42;")
    assert vendored.fetch() == ""
    vendored.edit("patches/0001-registry.patch", "+line five", "+line 5.0")
    message = vendored.refused()
    assert "src/llama.cpp" in message and "--refresh" in message
    assert "return 42;" in (vendored.tree / "src/llama.cpp").read_text()
    shutil.rmtree(vendored.tree)
    vendored.fetch()
    assert "return 1;" in (vendored.tree / "src/llama.cpp").read_text()


def test_without_the_archive_pip_brings_it(vendored: Vendored, tmp_path: Path) -> None:
    index = tmp_path / "index"
    vendored.archive.parent.rename(index)
    vendored.fetch(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert vendored.archive.is_file() and "line five\n" in (vendored.tree / LANDMARK).read_text()


def test_what_pip_brings_is_checked(vendored: Vendored, tmp_path: Path) -> None:
    index = tmp_path / "index"
    vendored.archive.parent.rename(index)
    vendored.edit("UPSTREAM.toml", 'sha256 = "', f'sha256 = "{"0" * 64}"\n_real = "')
    message = vendored.refused(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert "HASHES" in message.upper() and not vendored.tree.exists()


def test_a_damaged_archive_is_not_used_but_fetched_again(vendored: Vendored, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(vendored.archive.parent, index)
    good = vendored.archive.read_bytes()
    vendored.archive.write_bytes(good[:-100])
    message = vendored.refused()
    assert f"{vendored.archive} is not the archive" in message and not vendored.tree.exists()
    vendored.fetch(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert vendored.archive.read_bytes() == good


def test_without_network_the_message_names_the_remedies(vendored: Vendored) -> None:
    vendored.archive.unlink()
    message = vendored.refused()
    assert "could not be fetched" in message and "fake-llama==1.0" in message
    for remedy in ("package index", "PYGGML_LLAMA_CPP_DIR", "commit abcdef123", str(vendored.archive.parent)):
        assert remedy in message


def test_a_patch_that_does_not_apply_is_named_with_its_file(vendored: Vendored) -> None:
    vendored.edit("patches/0002-llama.patch", "-    return 0;", "-    return 7;")
    message = vendored.refused()
    assert "0002-llama.patch does not apply" in message and "src/llama.cpp" in message
    assert not vendored.tree.exists()


def test_a_series_that_names_what_is_not_there(vendored: Vendored) -> None:
    (vendored.place / "patches/0002-llama.patch").unlink()
    assert "do not exist: 0002-llama.patch" in vendored.refused()


def test_without_git_the_message_says_so(vendored: Vendored) -> None:
    assert "git is needed" in vendored.refused(PATH="/nonexistent")


@pytest.mark.parametrize("told", [False, True])
def test_below_another_repository_nothing_is_skipped(vendored: Vendored, told: bool) -> None:
    """git takes the paths of a patch as those of the repository around it, and silently skips what is not in it."""
    around = vendored.place.parent
    subprocess.run(["git", "init", "--quiet", str(around)], check=True)
    names = {
        "GIT_DIR": str(around / ".git"),
        "GIT_WORK_TREE": str(around),
        "GIT_INDEX_FILE": str(around / ".git/index"),
    }
    vendored.fetch(TMPDIR=str(around), GIT_PREFIX="llama.cpp/", **(names if told else {}))
    assert "line five\n" in (vendored.tree / LANDMARK).read_text()
    assert "pinned source" in vendored.fetch("--check", TMPDIR=str(around), **(names if told else {}))


def test_killed_half_way_it_starts_again(vendored: Vendored) -> None:
    """Neither the new tree nor, the series taken back, the old one is believed to be there."""
    vendored.fetch()
    old = (vendored.place / "patches/0001-registry.patch").read_text()
    vendored.edit("patches/0001-registry.patch", "+line five", "+line 5.0")
    vendored.edit("patches/0002-llama.patch", "+    return 1;", "+    return 2;")
    code = (
        "import os, shutil, fetch\ncopy = shutil.copyfile\n"
        "def copy_and_die(*paths):\n    copy(*paths)\n    os._exit(9)\n"
        "shutil.copyfile = copy_and_die\nfetch.fetch()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=vendored.place, env=vendored.environment())
    assert done.returncode == 9
    assert "line 5.0" in (vendored.tree / LANDMARK).read_text()
    write(vendored.place / "patches", {**PATCHES, "0001-registry.patch": old})
    vendored.fetch()
    assert "pinned source" in vendored.fetch("--check")


# -- a checkout of one's own ---------------------------------------------------------------------------------------------


def test_a_checkout_is_copied_and_not_changed(vendored: Vendored, checkout: Path) -> None:
    vendored.archive.unlink()
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    vendored.fetch(PYGGML_LLAMA_CPP_DIR=str(checkout))
    assert "line five\n" in (vendored.tree / LANDMARK).read_text()
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
    there = {str(path.relative_to(vendored.tree)) for path in vendored.tree.rglob("*") if path.is_file()}
    assert there == {*SOURCE, ".pyggml-stamp"} - {"docs/left-out.md"}


def test_what_changes_in_a_checkout_arrives(vendored: Vendored, checkout: Path) -> None:
    vendored.fetch(PYGGML_LLAMA_CPP_DIR=str(checkout))
    before = vendored.times()
    (checkout / "src/other.cpp").write_text("edited\n")
    vendored.fetch(PYGGML_LLAMA_CPP_DIR=str(checkout))
    assert (vendored.tree / "src/other.cpp").read_text() == "edited\n"
    assert vendored.times()[LANDMARK] == before[LANDMARK]
    vendored.fetch()  # and without it, the pinned source is back
    assert (vendored.tree / "src/other.cpp").read_text() == SOURCE["src/other.cpp"]


@pytest.mark.parametrize("kind", ["empty", "missing"])
def test_a_wrong_checkout_is_refused(vendored: Vendored, tmp_path: Path, kind: str) -> None:
    wrong = tmp_path / kind
    if kind == "empty":
        wrong.mkdir()
    message = vendored.refused(PYGGML_LLAMA_CPP_DIR=str(wrong))
    assert str(wrong) in message and ("not a llama.cpp checkout" if kind == "empty" else "does not exist") in message


# -- check and refresh -----------------------------------------------------------------------------------------------------


def test_check_names_an_edited_file(vendored: Vendored) -> None:
    vendored.fetch()
    assert "pinned source + 2 patches" in vendored.fetch("--check")
    vendored.edit("upstream/src/other.cpp", "other", "edited")
    assert "src/other.cpp" in vendored.refused("--check")


def test_refresh_takes_edits_into_the_patch_that_owns_the_file(vendored: Vendored) -> None:
    vendored.fetch()
    vendored.edit("upstream/src/llama.cpp", "return 1;", "return 42;")
    assert "0002-llama.patch: 1 files, 2 changed lines" in vendored.fetch("--refresh")
    assert "pinned source" in vendored.fetch("--check")
    assert "return 42;" in (vendored.tree / "src/llama.cpp").read_text()
    patch = (vendored.place / "patches/0002-llama.patch").read_text()
    assert patch.startswith("Why: a test, too.\n") and "+    return 42;" in patch
    before = {path: path.read_bytes() for path in (vendored.place / "patches").iterdir()}
    vendored.fetch("--refresh")
    assert {path: path.read_bytes() for path in (vendored.place / "patches").iterdir()} == before


def test_refresh_names_what_belongs_to_no_patch(vendored: Vendored) -> None:
    vendored.fetch()
    vendored.edit("upstream/src/other.cpp", "other", "edited")
    message = vendored.refused("--refresh")
    assert "belong to no patch" in message and "src/other.cpp" in message
    # and what it says to do about it works
    with (vendored.place / "patches/0002-llama.patch").open("a") as patch:
        patch.write("+++ b/src/other.cpp\n")
    vendored.fetch("--refresh")
    assert "pinned source" in vendored.fetch("--check")
    assert "+edited" in (vendored.place / "patches/0002-llama.patch").read_text()


def test_refresh_wants_new_files_in_the_overlay(vendored: Vendored) -> None:
    vendored.fetch()
    write(vendored.tree, {"src/new.cpp": "new\n"})
    message = vendored.refused("--refresh")
    assert "overlay" in message and "src/new.cpp" in message


def test_refresh_leaves_no_empty_patch(vendored: Vendored) -> None:
    vendored.fetch()
    write(vendored.tree, {"src/llama.cpp": SOURCE["src/llama.cpp"]})
    assert "nothing is left of 0002-llama.patch" in vendored.refused("--refresh")


def test_refresh_wants_a_file_in_one_patch(vendored: Vendored) -> None:
    vendored.fetch()
    with (vendored.place / "patches/0002-llama.patch").open("a") as patch:
        patch.write(f"+++ b/{LANDMARK}\n")
    message = vendored.refused("--refresh")
    assert LANDMARK in message and "0001-registry.patch" in message and "0002-llama.patch" in message


@pytest.mark.parametrize("kind", ["directory", "wheel"])
def test_check_of_another_upstream_lists_what_does_not_fit(vendored: Vendored, tmp_path: Path, kind: str) -> None:
    drifted = SOURCE[LANDMARK].replace("line 31\n", "line thirty-one\n")
    other = {**SOURCE, LANDMARK: "new first line\n" + drifted}
    if kind == "directory":
        path = tmp_path / "other"
        write(path, other)
    else:
        path = tmp_path / "other-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in other.items():
                wheel.writestr(f"other/source/{name}", text)
    told = vendored.refused("--check", "--upstream", str(path))
    assert "0001-registry.patch: 1 hunks do not apply" in told and "+one more" in told and "line five" not in told
    assert "0002-llama.patch: applies" in told
    del other["src/llama.cpp"]
    if kind == "directory":
        (path / "src/llama.cpp").unlink()
        assert "src/llama.cpp: No such file" in vendored.refused("--check", "--upstream", str(path))
        write(path, SOURCE)
        assert vendored.fetch("--check", "--upstream", str(path)).count(": applies") == 2


def test_upstream_that_is_none_is_refused(vendored: Vendored, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("nothing.py", "")
    assert "carries no llama.cpp" in vendored.refused("--check", "--upstream", str(tmp_path / "empty.whl"))
    assert "does not exist" in vendored.refused("--check", "--upstream", str(tmp_path / "missing"))


# -- the real one ----------------------------------------------------------------------------------------------------------


def test_the_tree_that_was_built_is_the_pin_and_the_series() -> None:
    done = subprocess.run(
        [sys.executable, str(VENDOR / "fetch.py"), "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
