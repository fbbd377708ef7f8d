"""The command line and the variables of pyggml-serve."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from serving import run, tiny

from pyggml.serve import flags


def test_flags_variables_and_what_goes_to_the_engine() -> None:
    env = {"LLAMA_ARG_HOST": "a,b.sock", "LLAMA_ARG_PORT": "1", "LLAMA_API_KEY": "env", "LLAMA_ARG_SLEEP_MODE": "free",
           "LLAMA_ARG_SLEEP_IDLE_SECONDS": "7", "LLAMA_ARG_CORS_CREDENTIALS": "false"}  # fmt: skip
    settings = flags.parse(["-m", "x", "--port", "9", "-c", "-1", "--api-key", "a,b", "--api_key", "c", "--jinja"], env)
    assert (settings.model, settings.hosts, settings.port) == ("x", ["a", "b.sock"], 9)
    assert settings.engine_args == ["-c", "-1", "--jinja"]
    assert settings.api_keys == ["a", "b", "c"]  # a flag goes before the variable
    assert (settings.sleep_mode, settings.sleep_idle_seconds, settings.cors_credentials) == ("free", 7.0, False)


def test_keys_are_not_shown() -> None:
    assert "s3cret" not in repr(flags.parse(["-m", "x", "--api-key", "s3cret"], {}))


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# comment\none\n\ntwo\n")
    assert flags.parse(["-m", "x", "--api-key-file", str(path)], {}).api_keys == ["one", "two"]
    path.write_text("# only a comment\n")
    with pytest.raises(flags.UsageError, match="has none"):
        flags.parse(["-m", "x", "--api-key-file", str(path)], {})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "one model"),
        (["-m", "x", "--demo"], "one model"),
        (["-m"], "value"),
        (["-m", "x", "--port", "70000"], "--port"),
        (["-m", "x", "--port", "nan"], "--port"),
        (["-m", "x", "--port", "1.5"], "whole"),
        (["-m", "x", "--sleep-idle-seconds", "0"], "more than 0"),
        (["-m", "x", "--sleep-mode", "restart"], "not there yet"),
        (["-m", "x", "--sleep-mode", "rst"], "not there yet"),
        (["-m", "x", "--sleep-mode", "deep"], "free, reset or auto"),
        (["-m", "x", "--timeout", "soon"], "--timeout"),
        (["-m", "x", "--api-key", ""], "empty"),
        (["-m", "x", "--api-key-file", "/no/such"], "cannot be read"),
        (["-hf", "some/repo"], "not downloaded yet"),
        (["--models-dir", "x"], "router"),
        (["-m", "x", "--tools", "all"], "tools"),
        (["-m", "x", "--ssl-key-file", "x"], "TLS"),
    ],
)
def test_what_is_wrong_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(flags.UsageError, match=why):
        flags.parse(words, {})


def test_help_names_every_flag() -> None:
    done = run("--help")
    assert done.returncode == 0 and not done.stderr
    for flag in flags.FLAGS:
        if flag.help:
            assert flag.names[-1] in done.stdout and flag.env in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["-m", "/no/such.gguf"], 1, "/no/such.gguf"),
        (["-m", __file__], 1, "GGUF"),
        (["--no-such-flag"], 2, "one model"),
        (["-m", "TINY", "--no-such-flag"], 2, "--no-such-flag"),
        (["-m", "TINY", "--log-file", "x"], 2, "--log-file"),
        (["-m", "TINY", "--host", "/no/such/dir/a.sock"], 1, "cannot listen"),
        (["-m", "TINY", "-c", "many"], 2, "-c"),
    ],
)
def test_what_cannot_start_says_why_in_a_line(words: list[str], status: int, why: str) -> None:
    done = run("--port", "0", *(str(tiny()) if one == "TINY" else one for one in words))
    assert done.returncode == status, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("pyggml-serve: ")]
    assert len(said) == 1 and why in said[0]
    assert "Traceback" not in done.stderr and "listening" not in done.stdout


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run("-m", tiny(), "--port", str(other.getsockname()[1]))
    assert done.returncode == 1 and "cannot listen" in done.stderr


def test_a_model_that_cannot_be_loaded_ends_the_process(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny().read_bytes()[:-4096])
    done = run("-m", broken, "--port", "0")
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pyggml-serve: ") and "broken.gguf" in last
    assert "Traceback" not in done.stderr
