"""A vendor directory with our fetch.py and a small llama.cpp, to try out what happens to it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from support import ROOT

VENDOR = ROOT / "vendor" / "llama.cpp"
LANDMARK = "ggml/src/ggml-backend-reg.cpp"
SOURCE = {
    LANDMARK: "".join(f"line {i}\n" for i in range(40)),
    "src/llama.cpp": "int main() {\n    return 0;\n}\n",
    "src/other.cpp": "other\n",
    "docs/left-out.md": "not brought\n",
}
# pip reads a package's metadata before it hands the archive over; this answers without any tool
PACKAGE = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": (
        "import pathlib\n"
        "def prepare_metadata_for_build_wheel(directory, settings=None):\n"
        "    place = pathlib.Path(directory, 'fake_llama-1.0.dist-info'); place.mkdir()\n"
        "    (place / 'METADATA').write_text('Metadata-Version: 2.1\\nName: fake-llama\\nVersion: 1.0\\n')\n"
        "    return place.name\n"
    ),
    "PKG-INFO": "Metadata-Version: 2.1\nName: fake-llama\nVersion: 1.0\n",
}
PATCHES = {
    "0001-registry.patch": (
        f"Why: a test.\n\ndiff --git a/{LANDMARK} b/{LANDMARK}\n--- a/{LANDMARK}\n+++ b/{LANDMARK}\n"
        "@@ -5,3 +5,3 @@\n line 4\n-line 5\n+line five\n line 6\n"
        "@@ -31,3 +31,4 @@\n line 30\n line 31\n+one more\n line 32\n"
    ),
    "0002-llama.patch": (
        "Why: a test, too.\n\ndiff --git a/src/llama.cpp b/src/llama.cpp\n--- a/src/llama.cpp\n+++ b/src/llama.cpp\n"
        "@@ -1,3 +1,3 @@\n int main() {\n-    return 0;\n+    return 1;\n }\n"
    ),
}


def write(place: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


class Vendored:
    """A vendor directory with our fetch.py and a small llama.cpp."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tree = place / "upstream"
        self.archive = place / "cache" / "fake_llama-1.0.tar.gz"
        self.archive.parent.mkdir(parents=True)
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, text in [*PACKAGE.items(), *((f"vendor/llama.cpp/{k}", v) for k, v in SOURCE.items())]:
                info = tarfile.TarInfo(f"fake_llama-1.0/{name}")
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
        for name in ("fetch.py", "source.py"):
            shutil.copy(VENDOR / name, place / name)
        write(place / "patches", {**PATCHES, "series": "".join(f"{name}\n" for name in PATCHES)})
        (place / "UPSTREAM.toml").write_text(
            '[source]\npackage = "fake-llama"\nversion = "1.0"\nsubdirectory = "vendor/llama.cpp"\n'
            f'sha256 = "{hashlib.sha256(self.archive.read_bytes()).hexdigest()}"\n'
            '[upstream]\nversion = "0.1"\ncommit = "abcdef123"\n[exclude]\npaths = ["docs", ".git"]\n'
        )

    def environment(self, **more: str) -> dict[str, str]:
        """No package index can be reached, whatever this machine's pip is configured for."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "GIT_", "PYGGML_"))}
        nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
        return {**clean, **nowhere, **more}

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.place / "fetch.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment(**more), timeout=60)

    def fetch(self, *arguments: str, **more: str) -> str:
        done = self.run(*arguments, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def refused(self, *arguments: str, **more: str) -> str:
        """The message of a call that fails, which is for people: no traceback."""
        done = self.run(*arguments, **more)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.place / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def times(self) -> dict[str, int]:
        return {str(p.relative_to(self.tree)): p.stat().st_mtime_ns for p in self.tree.rglob("*") if p.is_file()}
