"""The licences of everything that is compiled in are found, and none is forgotten."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, UPSTREAM

# What is compiled in, by default or with an option. A file there that speaks of a licence has its text in the wheel.
COMPILED = [
    *("common", "ggml/include", "ggml/src", "ggml/src/ggml-cpu", "ggml/src/ggml-cuda", "ggml/src/ggml-vulkan"),
    *("include", "src", "tools/mtmd", "tools/server", "vendor"),
]
NOTICE = re.compile(
    r"copyright|spdx-|licen[sc]ed? |public domain|unlicense|borrowed from|adapted from http|ported from", re.I
)
# These speak of a licence and are no other work: the ggml authors' own notice, and Arm's for a library that is not built in.
OWN = {f"ggml/include/ggml-{name}.h" for name in ("cann", "sycl")} | {
    f"ggml/src/ggml-cpu/kleidiai/{name}" for name in ("kernels.h", "kernels.cpp", "kleidiai.h", "kleidiai.cpp")
}
# The same notice stands in another file.
SAME = {
    "ggml/src/ggml-cuda/rope.cu": "ggml/src/ggml-cpu/ops.cpp",
    "vendor/hash/sha1/sha1.c": "vendor/hash/sha1/sha1.h",
    "vendor/nlohmann/json.hpp": "licenses/LICENSE-jsonhpp",
    "vendor/nlohmann/json_fwd.hpp": "licenses/LICENSE-jsonhpp",
}


@pytest.fixture(scope="module")
def licenses() -> Any:
    sys.path.insert(0, str(ROOT / "vendor" / "llama.cpp"))
    try:
        import licenses
    finally:
        sys.path.remove(str(ROOT / "vendor" / "llama.cpp"))
    return licenses


def test_no_licence_is_forgotten(licenses: Any) -> None:
    taken = {work.file for work in [*licenses.WORKS, *licenses.ADAPTED]}
    directories = {str(Path(one).parent) for one in taken if Path(one).name.startswith("LICENSE") and "/" in one}
    speaking = set()
    for directory in COMPILED:
        for path in (UPSTREAM / directory).glob("*" if directory in ("ggml/src", "tools/mtmd") else "**/*"):
            code = path.suffix in {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".comp", ".glsl"}
            if code and NOTICE.search(path.read_text()):
                speaking.add(str(path.relative_to(UPSTREAM)))
    assert speaking >= {"vendor/stb/stb_image.h", "common/base64.hpp", "ggml/src/ggml-cpu/llamafile/sgemm.cpp"}
    left = {SAME.get(one, one) for one in speaking} - taken - OWN
    assert not {one for one in left if str(Path(one).parent) not in directories}


def test_every_bundled_library_has_its_licence(licenses: Any) -> None:
    taken = {work.file for work in licenses.WORKS}
    for library in [*(UPSTREAM / "vendor").glob("*/"), *(UPSTREAM / "vendor/hash").glob("*/")]:
        name = str(library.relative_to(UPSTREAM))
        assert name == "vendor/nlohmann" or any(one.startswith(f"{name}/") for one in taken), name


def test_a_licence_that_is_not_found_is_an_error(
    licenses: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "upstream"
    for work in [*licenses.WORKS, *licenses.ADAPTED]:
        (tree / work.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(UPSTREAM / work.file, tree / work.file)
    monkeypatch.setattr(licenses, "TREE", tree)
    licenses.write(tmp_path / "texts")
    assert len(list((tmp_path / "texts").iterdir())) == len(licenses.WORKS) + 1
    (tree / "vendor/miniaudio/miniaudio.h").write_text("rewritten\n")
    with pytest.raises(licenses.LicenseError, match=r"miniaudio is not in .*miniaudio\.h"):
        licenses.write(tmp_path / "texts")
    (tree / "LICENSE").unlink()
    with pytest.raises(licenses.LicenseError, match="does not exist"):
        licenses.write(tmp_path / "texts")
