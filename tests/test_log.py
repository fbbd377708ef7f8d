"""Log lines reach `logging`; nothing is printed unasked."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest
from models import llama
from support import run_python

import pyggml


def test_nothing_is_printed(demo_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(demo_model.read_bytes()[:100_000])
    code = """
import sys, pyggml
pyggml.devices()
with pyggml.Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
    list(context.generate("Once", max_tokens=3))
    model.apply_chat_template([{"role": "user", "content": "x"}])
    for call in (lambda: model.apply_chat_template([{}]), lambda: context.generate("x", grammar="root"),
                 lambda: model.apply_chat_template([], template="{% if"), lambda: context.decode([5] * 1000),
                 lambda: pyggml.Model(sys.argv[2]), lambda: pyggml.Model("nowhere"), lambda: context.load_state(b"x"),
                 lambda: model.lora(sys.argv[1])):
        try:
            call()
        except (pyggml.PyggmlError, ValueError):
            pass
        else:
            sys.exit("no error")
pyggml.backend_free()
"""
    done: subprocess.CompletedProcess[str] = run_python(code, str(demo_model), str(broken))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_levels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = llama(tmp_path)
    counts = {}
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.CRITICAL):
        caplog.clear()
        with caplog.at_level(level, "pyggml.native"), pyggml.Model(path) as model, model.context(n_ctx=4096):
            records = [one for one in caplog.records if one.name == "pyggml.native"]
        assert all(one.levelno >= level for one in records)
        counts[level] = len(records)
        lines = [one.getMessage() for one in records]
        assert not any(line.endswith("\n") for line in lines)
        if level == logging.DEBUG:
            assert {one.levelno for one in records} >= {logging.DEBUG, logging.INFO, logging.WARNING}
        if level == logging.WARNING:
            assert any("training context overflow" in line for line in lines)
    assert counts[logging.DEBUG] > counts[logging.INFO] > counts[logging.WARNING] > counts[logging.CRITICAL] == 0


def test_lines_below_the_level_do_not_reach_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(pyggml.log.logger, "log", lambda level, *_: seen.append(level))
    pyggml.log.logger.setLevel(logging.WARNING)
    try:
        with pyggml.Model(llama(tmp_path)):
            assert not [level for level in seen if level < logging.WARNING]
        pyggml.log.logger.setLevel(logging.DEBUG)
        pyggml.log.sync_level()
        with pyggml.Model(llama(tmp_path)):
            assert logging.DEBUG in seen
    finally:
        pyggml.log.logger.setLevel(logging.NOTSET)
        pyggml.log.sync_level()


def test_thousands_of_lines_from_several_threads_do_not_deadlock(demo_model: Path) -> None:
    code = """
import logging, sys, threading, pyggml
class Count(logging.Handler):
    lines = 0
    def emit(self, record):
        Count.lines += 1
logging.getLogger("pyggml").addHandler(Count())
logging.getLogger("pyggml").setLevel(logging.DEBUG)
def use():
    for _ in range(3):
        with pyggml.Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
            context.decode([5])
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(Count.lines)
"""
    done: subprocess.CompletedProcess[str] = run_python(code, str(demo_model))
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 3000


def test_a_handler_that_fails_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    code = """
import logging, sys, pyggml
class Bad(logging.Handler):
    def emit(self, record):
        raise ZeroDivisionError("in the handler")
logging.getLogger("pyggml").addHandler(Bad())
with pyggml.Model(sys.argv[1]) as model, model.context(n_ctx=4096):
    print("loaded")
"""
    done: subprocess.CompletedProcess[str] = run_python(code, str(llama(tmp_path)))
    assert (done.returncode, done.stdout) == (0, "loaded\n")
    assert "ZeroDivisionError: in the handler" in done.stderr
