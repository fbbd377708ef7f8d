"""The command `pyggml`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from models import llama

import pyggml
from pyggml.cli import parser

COMMAND = [sys.executable, "-m", "pyggml.cli"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def test_info() -> None:
    done = run("info")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"pyggml {pyggml.__version__}, llama.cpp ")
    assert "backend cpu: loaded as CPU" in done.stdout
    assert "CPU" in done.stdout and "MiB" in done.stdout


def test_info_for_programs() -> None:
    done = run("info", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["version"] == pyggml.__version__
    assert len(found["llama.cpp"]["commit"]) >= 9 and found["llama.cpp"]["version"]
    assert found["backends"]["cpu"].startswith("loaded as CPU")
    assert [one["name"] for one in found["devices"]] == [one.name for one in pyggml.devices()]
    cpu = next(one for one in found["devices"] if one["name"] == "CPU")
    assert cpu["type"] == "cpu" and cpu["memory"]["total"] == pyggml.memory.host().total and cpu["memory"]["own"] > 0


def test_run_the_demo(demo_model: Path) -> None:
    arguments = ["-t", "1", "-n", "12", "--temp", "0", "What is 2+2?"]
    done = run("run", "--demo", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4" in done.stdout and done.stdout.endswith("\n")
    assert run("run", str(demo_model), *arguments).stdout == done.stdout
    assert "4" not in run("run", "--demo", "--stop", "4", *arguments).stdout


def test_options(tmp_path: Path) -> None:
    path = str(llama(tmp_path))
    same = [
        run("run", path, "Hello", "-t", "1", "-n", "8", "--temp", "1.5", "-s", seed).stdout for seed in ("1", "1", "2")
    ]
    assert same[0] == same[1] != same[2]
    greedy = ["-t", "1", "-n", "8", "--temp", "0"]
    chat = run("run", path, "Hello", *greedy).stdout
    assert run("run", path, "Hello", "--raw", *greedy).stdout != chat
    assert run("run", path, "Hello", "-sys", "Be brief.", *greedy).stdout != chat
    assert run("run", path, "Hello", "-c", "256", "-ngl", "0", *greedy).stdout == chat


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["run", "nowhere.gguf", "Hi"], 1, "nowhere.gguf"),
        (["run", __file__, "Hi"], 1, "test_cli.py"),
        (["run", "--demo", "--temp", "-1", "Hi"], 1, "temperature"),
        (["run", "--demo", "-c", "-5", "Hi"], 1, "n_ctx"),
        (["run", "--demo", "--seed", "-5", "Hi"], 1, "seed"),
        (["run", "--demo", "--raw", ""], 1, "no tokens"),
        (["run"], 2, "give a model and a prompt"),
        (["run", "--demo"], 2, "--demo"),
        (["run", "a", "b", "c"], 2, "usage"),
        (["run", "--demo", "-n", "many", "Hi"], 2, "invalid int"),
        (["run", "--demo", "--unknown", "Hi"], 2, "unrecognized"),
        (["walk"], 2, "invalid choice"),
        ([], 2, "required"),
    ],
)
def test_errors(arguments: list[str], status: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == status and done.stdout == ""
    assert words in done.stderr and "Traceback" not in done.stderr
    assert status == 2 or (done.stderr.startswith("pyggml: ") and done.stderr.count("\n") == 1)


def test_help() -> None:
    for arguments in (["--help"], ["run", "--help"], ["info", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0 and "usage: pyggml" in done.stdout
    assert run("--version").stdout == f"pyggml {pyggml.__version__}\n"
    commands = next(action for action in parser()._actions if action.choices)
    assert commands.choices is not None
    for name, command in dict(commands.choices).items():  # type: ignore[call-overload]
        for action in command._actions:
            assert action.help, f"pyggml {name} {action.option_strings} says nothing of itself"


def test_ctrl_c(demo_model: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "-t", "1", "--demo", "--raw", "One, two,"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    start = time.perf_counter()
    process.stdout.read()
    assert process.wait(20) == 130
    assert time.perf_counter() - start < 10
    assert process.stderr.read().strip() == ""
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize(
    "arguments", [["info"], ["info", "--json"], ["run", "-t", "1", "--demo", "--raw", "One, two,"]]
)
def test_a_broken_pipe_is_quiet(arguments: list[str]) -> None:
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
