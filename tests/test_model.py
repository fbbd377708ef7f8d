"""Models: what they are, progress, chat templates, wrong arguments."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from models import bert, llama, mamba, rerank

import pyggml

USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[pyggml.Model]:
    with pyggml.Model(llama(tmp_path), vocab_only=True) as model:
        yield model


def test_what_it_is(demo_model: Path) -> None:
    with pyggml.Model(demo_model) as model:
        assert model.n_embd == 576 and model.n_layer == 30 and model.n_vocab == len(model.vocab) == 49152
        assert model.n_ctx_train == 8192 and 134e6 < model.n_params < 136e6
        assert 0 < model.size < demo_model.stat().st_size
        assert model.has_decoder and not model.has_encoder and not model.is_recurrent and model.n_swa == 0
        assert "llama" in model.description and model.path == str(demo_model)
        assert model.metadata["general.architecture"] == "llama"
        assert model.metadata["llama.embedding_length"] == "576"
        assert repr(model) == f"Model({str(demo_model)!r})"


def test_other_kinds(tmp_path: Path) -> None:
    with (
        pyggml.Model(mamba(tmp_path)) as recurrent,
        pyggml.Model(bert(tmp_path)) as encoder,
        pyggml.Model(rerank(tmp_path)) as ranker,
    ):
        assert recurrent.is_recurrent and not encoder.is_recurrent
        assert encoder.n_ctx_train == 512 and ranker.n_classes == 1


def test_progress_rises_to_one(demo_model: Path) -> None:
    seen: list[float] = []
    pyggml.Model(demo_model, progress=seen.append).close()
    assert len(seen) > 3 and seen == sorted(seen) and 0 <= seen[0] < 1 and seen[-1] == 1.0


def test_progress_ends_the_load(demo_model: Path) -> None:
    with pytest.raises(pyggml.LoadCancelledError, match=r"\.gguf"):
        pyggml.Model(demo_model, progress=lambda done: done < 0.5)

    def fails(done: float) -> None:
        if done > 0.3:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        pyggml.Model(demo_model, progress=fails)
    pyggml.Model(demo_model).close()
    pyggml.backend_free()  # nothing is left in use


def test_ctrl_c_ends_a_load(demo_model: Path) -> None:
    code = """
import os, signal, sys, pyggml
calls = []
def progress(done):
    calls.append(done)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
try:
    pyggml.Model(sys.argv[1], progress=progress)
except KeyboardInterrupt:
    print("interrupted", calls[-1] < 1)
print(len(pyggml.backend_free().devices) > 0)
pyggml.Model(sys.argv[1]).close()
"""
    command = [sys.executable, "-c", code, str(demo_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True\nTrue\n", "")


def test_ctrl_c_while_lines_are_logged(demo_model: Path) -> None:
    """A signal that comes while C logs to Python must not be lost."""
    code = """
import logging, os, signal, sys, pyggml
class Handler(logging.Handler):
    def emit(self, record):
        global count
        count += 1
        if count == 20:
            signal.raise_signal(signal.SIGINT)
count = 0
logging.getLogger("pyggml").addHandler(Handler())
logging.getLogger("pyggml").setLevel(logging.DEBUG)
try:
    pyggml.Model(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code, str(demo_model)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


WRONG = [
    ({"n_gpu_layers": -2}, ValueError), ({"n_gpu_layers": 2**31}, ValueError), ({"n_gpu_layers": "all"}, TypeError),
    ({"n_gpu_layers": True}, TypeError), ({"main_gpu": -1}, ValueError), ({"main_gpu": 2**63}, ValueError), ({"main_gpu": None}, TypeError),
    ({"split_mode": "rows"}, ValueError), ({"split_mode": 1}, TypeError), ({"load_mode": "fast"}, ValueError),
    ({"load_mode": None}, TypeError),
    ({"vocab_only": 1}, TypeError), ({"check_tensors": "no"}, TypeError), ({"progress": 5}, TypeError),
    ({"tensor_split": "1,1"}, TypeError),
    ({"tensor_split": 5}, TypeError), ({"tensor_split": []}, ValueError), ({"tensor_split": [0.0]}, ValueError),
    ({"tensor_split": [-1]}, ValueError),
    ({"tensor_split": [math.nan]}, ValueError), ({"tensor_split": [1] * 1000}, ValueError), ({"tensor_split": ["1"]}, TypeError),
    ({"devices": "CPU"}, TypeError), ({"devices": 5}, TypeError), ({"devices": [5]}, TypeError), ({"devices": ["CUDA99"]}, ValueError),
    ({"gpu_layers": 5}, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error"), WRONG, ids=lambda one: str(one)[:30])
def test_wrong_options(tmp_path: Path, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options)).rstrip("s") + r"|CUDA99"):
        pyggml.Model(llama(tmp_path), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 5, b"model.gguf", ["model.gguf"], 1.5])
def test_wrong_types_of_path(path: object) -> None:
    with pytest.raises(TypeError):
        pyggml.Model(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_paths_that_cannot_be(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        pyggml.Model(path)


# -- chat templates --------------------------------------------------------------------------------------------------------


def test_the_models_own_template(demo_model: Path) -> None:
    with pyggml.Model(demo_model, vocab_only=True) as model:
        assert model.chat_template is not None and "im_start" in model.chat_template
        text = model.apply_chat_template([{"role": "system", "content": "Be brief."}, *USER])
        assert (
            text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        assert not model.apply_chat_template(USER, add_generation_prompt=False).endswith("assistant\n")


def test_a_model_without_a_template_gets_chatml(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path, template=None), vocab_only=True) as model:
        assert model.chat_template is None
        assert model.apply_chat_template(USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_given_template(model: pyggml.Model) -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ mood }}"
    template += "{% if tools %}{{ tools | length }} tools{% endif %}"
    assert model.apply_chat_template(USER, template=template) == "[user] Hi"
    assert model.apply_chat_template(USER, template=template, mood="!") == "[user] Hi!"
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert model.apply_chat_template(USER, template=template, tools=tools) == "[user] Hi1 tools"
    assert model.apply_chat_template(USER) == model.apply_chat_template(USER), "the model's own stays"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert model.apply_chat_template(parts) == model.apply_chat_template(USER)
    text = "né 🦀 \0 end"
    assert text in model.apply_chat_template([{"role": "user", "content": text}])


DEEP = 60_000
BROKEN = {
    "syntax": "{% for x in %}",
    "unclosed": "{% if true %}",
    "raises": "{{ raise_exception('no') }}",
    "brackets": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
    "brackets in a short tag": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "signs": "{{ " + "-" * DEEP + "1 }}",
    "sum": "{{ 1" + " + 1" * DEEP + " }}",
    "attributes": "{{ a" + ".b" * DEEP + " }}",
    "blocks": "{% if true %}" * DEEP + "{% endif %}" * DEEP,
    "branches": "{% if false %}" + "{% elif false %}" * DEEP + "{% endif %}",
    "empty": "",
    "null": "a\0b",
    "surrogate": "\ud800",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_template(model: pyggml.Model, name: str) -> None:
    with pytest.raises(ValueError, match="template"):
        model.apply_chat_template(USER, template=BROKEN[name])


def test_a_broken_template_in_the_model(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path, template="{% for x in %}"), vocab_only=True) as model:
        for _ in range(2):
            with pytest.raises(ValueError, match=r"chat template is not valid: .*Unexpected"):
                model.apply_chat_template(USER)
        assert model.apply_chat_template(USER, template="{{ messages[0].content }}") == "Hi"


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("Hi", TypeError), (5, TypeError), (None, TypeError), (["Hi"], TypeError), ([None], TypeError),
        ([{"role": "user", "content": object()}], TypeError),
        ([{"content": "Hi"}], ValueError), ([{"role": "user"}], ValueError), ([{"role": 5, "content": "Hi"}], ValueError),
        ([{"role": "user", "content": 5}], ValueError), ([{"role": "user", "content": math.nan}], ValueError),
        ([{"role": "user", "content": "\ud800"}], ValueError), ([{"role": "user", "content": [{"type": "video"}]}], ValueError),
    ],
)  # fmt: skip
def test_wrong_messages(model: pyggml.Model, messages: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        model.apply_chat_template(messages)  # type: ignore[arg-type]


def test_wrong_tools_and_variables(model: pyggml.Model) -> None:
    endless: list[object] = []
    endless.append(endless)
    for options, error in (({"tools": "f"}, TypeError), ({"tools": [5]}, TypeError), ({"tools": [{}]}, ValueError),
    ({"x": object()}, TypeError),
                           ({"x": endless}, ValueError), ({"add_generation_prompt": 1}, TypeError), ({"enable_thinking": "no"}, TypeError),
                           ({"template": 5}, TypeError)):  # fmt: skip
        with pytest.raises(error):
            model.apply_chat_template(USER, **options)  # type: ignore[arg-type]


def test_templates_in_many_threads(model: pyggml.Model) -> None:
    results: list[str] = []

    def render(name: str) -> None:
        results.extend(model.apply_chat_template([{"role": "user", "content": name}]) for _ in range(50))

    threads = [threading.Thread(target=render, args=(str(number) * 20,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(results)) == [
        f"<|im_start|>user\n{str(n) * 20}<|im_end|>\n<|im_start|>assistant\n" for n in range(4)
    ]
    assert len(results) == 200
