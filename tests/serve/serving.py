"""Real servers for the tests: a process each, spoken to over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import models
from engines import MODELS, wait_until

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}


def tiny() -> Path:
    return models.llama(MODELS)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-m", "pyggml.serve.cli", *map(str, words)]


def run(*words: str | Path, timeout: float = 20, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one that is to end by itself."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, env={**CLEAN, **env})


class Server:
    """A running pyggml-serve; `url` is where it listens, `get` and `post` are httpx's."""

    def __init__(self, model: Path | None, *words: str | Path, log: Path, **env: str) -> None:
        given = ["-m", model] if model else ["--demo"]
        if "--host" not in words:
            given += ["--port", "0"]
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command(*given, "--threads", "1", *words),
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**CLEAN, "OMP_WAIT_POLICY": "passive", **env},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "listening on " in line, self.text()
        self.url = line.split("listening on ")[1].strip()
        self.client = httpx.Client(base_url=self.url.replace("unix://", "http://"), timeout=30, trust_env=False)
        self.get, self.post = self.client.get, self.client.post

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if kind is None:
            assert "Traceback" not in self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ready(self) -> Server:
        wait_until(lambda: self.get("/health").status_code == 200, 30)
        return self

    def busy(self) -> int:
        return sum(slot["is_processing"] for slot in self.get("/slots").json())

    def sleeping(self) -> bool:
        return bool(self.get("/is_sleeping").json()["is_sleeping"])

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)


@contextmanager
def generating(server: Server, tokens: int = 100_000) -> Iterator[Iterator[str]]:
    """Lines of a stream that goes on and on."""
    body: dict[str, Any] = {"prompt": "one", "n_predict": tokens, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/completion", json=body) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        yield lines
