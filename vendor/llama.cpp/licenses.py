#!/usr/bin/env python3
"""Collect the licences of everything that is compiled in.

    licenses.py DIR              write one text per work to DIR, taken from the source in upstream/

The texts are those of the pinned source itself: licence files, and the comments of single-file libraries. One that is not
found is an error, so that no build leaves one out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parent / "upstream"


@dataclass(frozen=True, slots=True)
class Work:
    """Something of others: its text is a whole file, or what stands in it between two expressions, both included."""

    name: str
    file: str
    begin: str = ""
    end: str = r"\Z"


WORKS = [
    Work("llama.cpp-and-ggml", "LICENSE"),
    Work("nlohmann-json", "licenses/LICENSE-jsonhpp"),
    Work("cpp-httplib", "vendor/cpp-httplib/LICENSE"),
    Work("xxhash", "vendor/hash/xxhash/LICENSE"),
    Work("sha256", "vendor/hash/sha256/LICENSE"),
    Work("sha1", "vendor/hash/sha1/sha1.h", r"SHA-1 in C", r"Public Domain"),
    Work("rotate-bits", "vendor/hash/rotate-bits/LICENSE.md"),
    Work("stb_image", "vendor/stb/stb_image.h", r"This software is available under 2 licenses"),
    Work("miniaudio", "vendor/miniaudio/miniaudio.h", r"This software is available as a choice"),
    Work("subprocess.h", "vendor/sheredom/subprocess.h", r"This is free and unencumbered", r"unlicense\.org.*"),
    Work("base64", "common/base64.hpp", r"This is free and unencumbered", r"unlicense\.org.*"),
    Work("llamafile-sgemm", "ggml/src/ggml-cpu/llamafile/sgemm.cpp", r"Copyright \d+ Mozilla", r"\n// SOFTWARE\."),
    Work("yarn", "ggml/src/ggml-cpu/ops.cpp", r"YaRN algorithm based on", r"MIT licensed\..*"),
]

# Adapted code whose origin the source names without a licence text of its own: its words are passed on.
ADAPTED = [
    Work("byte pair encoding", "src/llama-vocab.cpp", r"adapted from \S+ggllm", r".*"),
    Work("DRY sampler", "src/llama-sampler.cpp", r"Ported from Koboldcpp", r".*"),
    Work("Z-algorithm", "src/llama-sampler.cpp", r"The code below is adapted from the public domain", r"https://.*"),
    Work("vector exp", "ggml/src/ggml-cpu/vec.h", r"adapted from arm limited optimized routine", r".*"),
    Work("image resampling", "tools/mtmd/mtmd-image.cpp", r"Adapted from \S+Resample\.c", r".*"),
    Work("Unicode data", "src/unicode-data.cpp", r"generated with scripts/gen-unicode-data", r".*"),
]


class LicenseError(Exception):
    """A licence text is not where it was."""


def text(work: Work) -> str:
    """The licence of one work, as the source states it; what comes out of a comment, without its marks."""
    path = TREE / work.file
    if not path.is_file():
        raise LicenseError(f"the licence of {work.name} is not there: {path} does not exist")
    content = path.read_text(encoding="utf-8")
    if not work.begin:
        return content
    found = re.search(f"(?:{work.begin})(?s:.*?)(?:{work.end})", content)
    if not found:
        raise LicenseError(f"the licence of {work.name} is not in {path} any more")
    lines = [re.sub(r"^\s*(//|\*/|/\*|\*)?\s?", "", line) for line in found[0].splitlines()]
    return "\n".join(lines).strip() + "\n"


def write(directory: Path) -> None:
    """Write every text to `directory`."""
    texts = {work.name: text(work) for work in WORKS}
    origins = [f"{work.name} ({work.file}):\n    {text(work).strip()}\n" for work in ADAPTED]
    texts["adapted-code"] = "llama.cpp names these origins of code that it adapted:\n\n" + "\n".join(origins)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (directory / f"{name}.txt").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        write(Path(sys.argv[1]))
    except LicenseError as error:
        sys.exit(f"licenses.py: {error}")
