"""Objects end in any order, at any time, by any thread, and in silence. docs/lifetimes.md says what; this shows it."""

from __future__ import annotations

import gc
import inspect
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from models import llama, lora
from support import run_python

import pyggml

GREEDY = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(files: Path) -> Iterator[pyggml.Model]:
    with pyggml.Model(llama(files)) as model:
        yield model


def opened(model: pyggml.Model) -> pyggml.Context:
    return model.context(n_ctx=256, n_threads=1)


# -- closing ---------------------------------------------------------------------------------------------------------------

# arguments for what cannot be called without
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "decode": ([5],), "generate": ("x",), "embed": ("x",), "copy": (0, 0), "load_state": (b"",), "set_lora": ({},), "lora": ("nowhere",),
    "apply_chat_template": ([],), "accept": (5,), "tokenize": ("x",), "piece": (5,), "detokenize": ([5],), "is_eog": (5,),
}  # fmt: skip
EXEMPT = {"close", "closed", "holds_devices"}  # what a closed object can be asked, too


def uses(one: object) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every public method and property of an object."""
    for name, member in inspect.getmembers_static(type(one)):
        if name in EXEMPT or (name.startswith("_") and name not in ("__enter__", "__len__")):
            continue
        if isinstance(member, property):
            yield name, lambda name=name: getattr(one, name)
        elif inspect.isfunction(member):
            yield name, lambda name=name: getattr(one, name)(*ARGUMENTS.get(name, ()))


def everything(files: Path) -> list[Any]:
    model = pyggml.Model(llama(files))
    context = opened(model)
    context.decode([5])
    return [model, model.vocab, context, pyggml.Sampler(model), model.lora(lora(files))]


def test_every_use_of_a_closed_object_says_so(files: Path) -> None:
    objects = everything(files)
    objects[0].close()
    seen = 0
    for one in objects:
        if isinstance(one, pyggml.Vocab):
            assert len(list(uses(one))) > 5
        else:
            assert one.closed
            one.close()
            repr(one)
        for name, use in uses(one):
            if (type(one), name) == (pyggml.Sampler, "sample"):
                use = lambda one=one: one.sample(objects[2])  # noqa: E731
            with pytest.raises(pyggml.ClosedError, match="is closed"):
                use()
                pytest.fail(f"{type(one).__name__}.{name} works on a closed object")
            seen += 1
    assert seen > 50


def test_children_go_first_and_close_can_be_called_again(files: Path) -> None:
    model, _, context, sampler, adapter = everything(files)
    context.set_lora([adapter])
    model.close()
    assert context.closed and sampler.closed and adapter.closed
    for one in (adapter, sampler, context, model, model):
        one.close()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
def test_any_order_of_dropping(files: Path, order: tuple[int, ...]) -> None:
    found = everything(files)
    del found[1]
    found[1].set_lora([found[3]])
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: said.append(str(message))  # a record would keep the object
        held: list[Any] = [found[i] for i in order]
        found.clear()
        while held:
            del held[0]
            gc.collect()
    assert sorted(re.split(r"\W", one)[0] for one in said) == ["Context", "LoraAdapter", "Model", "Sampler"]


def test_with_does_not_hide_the_users_error(model: pyggml.Model) -> None:
    with pytest.raises(ZeroDivisionError), opened(model) as context:
        context.decode([5])
        view = context.logits(copy=False)
        raise ZeroDivisionError
    assert view.shape == (1024,) and not context.closed
    del view
    context.close()
    with pytest.raises(pyggml.ClosedError), context:
        pass


def test_a_cycle_is_collected(model: pyggml.Model) -> None:
    context = opened(model)
    context.myself = context  # type: ignore[attr-defined]
    with pytest.warns(ResourceWarning, match="never closed"):
        del context
        gc.collect()


def test_a_generation_that_is_dropped_needs_no_close(model: pyggml.Model) -> None:
    with opened(model) as context:
        context.generate("x", **GREEDY)
        running = context.generate("x", **GREEDY)
        next(running)
        del running
        gc.collect()
        running = context.generate("x", **GREEDY)
        next(running)
    with pytest.raises(pyggml.ClosedError):
        list(running)
    running.close()


def test_handles_are_typed(model: pyggml.Model) -> None:
    with opened(model) as context:
        assert pyggml.lib.llama_n_ctx(context.handle) == 256
        with pytest.raises(TypeError):
            pyggml.lib.llama_n_ctx(model.handle)
        with pytest.raises(AttributeError):
            context.handle = None  # type: ignore[misc]


# -- threads ---------------------------------------------------------------------------------------------------------------


def in_threads(*calls: Callable[[], object]) -> list[BaseException]:
    problems: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    return problems


def test_many_threads_on_one_model(model: pyggml.Model) -> None:
    answers: list[str] = []

    def use() -> None:
        for _ in range(3):
            with opened(model) as context:
                answers.append("".join(context.generate("Once upon a time", **GREEDY)))

    assert in_threads(*[use] * 6) == []
    assert len(answers) == 18 and len(set(answers)) == 1


def test_two_threads_on_one_context_take_turns(model: pyggml.Model) -> None:
    with model.context(n_ctx=2048, n_seq_max=2, n_threads=1) as context:
        expected = []
        for seq_id in (0, 1):
            context.decode([100 + seq_id] * 20, seq_id=seq_id)
            expected.append(int(context.logits().argmax()))
        context.clear()
        together = threading.Lock()  # calls that belong together are the user's to hold together

        def use(seq_id: int) -> None:
            for _ in range(60):
                with together:
                    context.remove(seq_id)
                    context.decode([100 + seq_id] * 20, seq_id=seq_id)
                    assert int(context.logits().argmax()) == expected[seq_id]
                context.length(seq_id)
                context.save_state(seq_id)

        assert in_threads(lambda: use(0), lambda: use(1)) == []


def test_close_while_other_threads_work(files: Path) -> None:
    for closed_by_model in (True, False):
        model = pyggml.Model(llama(files))
        context = opened(model)
        started = threading.Barrier(4)

        def generate(context: pyggml.Context = context, started: threading.Barrier = started) -> None:
            started.wait()
            while True:
                list(context.generate([5, 6], max_tokens=100, temperature=0.0))

        def tokenize(model: pyggml.Model = model, started: threading.Barrier = started) -> None:
            started.wait()
            while True:
                model.vocab.tokenize("some words " * 50)
                model.apply_chat_template([{"role": "user", "content": "x"}])

        def make(model: pyggml.Model = model, started: threading.Barrier = started) -> None:
            started.wait()
            while True:
                opened(model).close()
                pyggml.Sampler(model, grammar='root ::= "a"').close()

        first: Any = model if closed_by_model else context

        def close(first: Any = first, model: pyggml.Model = model, started: threading.Barrier = started) -> None:
            started.wait()
            first.close()
            model.close()

        problems = in_threads(generate, tokenize, make, close)
        assert [type(one) for one in problems] == [pyggml.ClosedError] * 3, problems


def test_close_is_not_starved(files: Path) -> None:
    """A thread that calls without a pause does not keep the lock from the one that closes."""
    model = pyggml.Model(llama(files))
    context = model.context(n_ctx=2048, n_threads=1)
    running = context.generate([5, 6], max_tokens=2000, temperature=0.0)
    started = threading.Event()

    def generate() -> None:
        for _ in running:
            started.set()

    def close() -> None:
        started.wait()
        context.close()

    problems = in_threads(generate, close)
    assert [type(one) for one in problems] == [pyggml.ClosedError]
    assert len(running.tokens) < 1500
    model.close()


# -- the end of the interpreter --------------------------------------------------------------------------------------------

SETUP = """
import gc, os, sys, threading, time, pyggml
model = pyggml.Model(sys.argv[1])
context = model.context(n_ctx=2048, n_threads=1)
"""
ENDS = {
    "nothing closed": ("", 2),
    "model closed": ("model.close()", 0),
    "context closed": ("context.close()", 1),
    "deleted": ("del model, context", 2),
    "a view lives": ("context.decode([5]); view = context.logits(copy=False)", 2),
    "a generation is open": ("running = context.generate('x'); next(running)", 2),
    "a generation has not begun": ("running = context.generate('x')", 2),
    "sampler and adapter": ("sampler = pyggml.Sampler(model); adapter = model.lora(sys.argv[2]); context.set_lora([adapter])", 4),
    "a cycle": ("context.me = context; model.context_ = context; del model, context", 2),
    "an exception": ("sys.exit(0)", 2),
    "closed at exit": ("import atexit; atexit.register(lambda: model.close())", 0),
    "a daemon generates": ("""
def generate():
    while True:
        list(context.generate('x', temperature=0.0))
threading.Thread(target=generate, daemon=True).start(); time.sleep(0.3)""", 2),
    "a daemon decodes": ("threading.Thread(target=lambda: context.decode([5] * 2000), daemon=True).start(); time.sleep(0.01)", 2),
    "a daemon loads": ("""
def load():
    while True:
        pyggml.Model(sys.argv[1], progress=lambda _: None).close()
threading.Thread(target=load, daemon=True).start(); time.sleep(0.1)""", 2),
    "a daemon makes contexts": ("""
def make():
    while True:
        model.context(n_ctx=256).close()
threading.Thread(target=make, daemon=True).start(); time.sleep(0.1)""", 2),
    "a daemon logs": ("""
import logging
logging.getLogger("pyggml").setLevel(logging.DEBUG)
def load():
    while True:
        pyggml.Model(sys.argv[1]).close()
threading.Thread(target=load, daemon=True).start(); time.sleep(0.1)""", 2),
    "backends freed": ("pyggml.backend_free(force=True)", 0),
    "backends freed and used again": ("pyggml.backend_free(force=True); model = pyggml.Model(sys.argv[1])", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("mode", ["plain", "warnings", "dev", "errors"])
def test_the_end_of_the_interpreter(files: Path, name: str, mode: str) -> None:
    if mode == "dev" and "daemon" in name:
        pytest.skip("once with all warnings is enough")
    code, forgotten = ENDS[name]
    options = {
        "plain": [],
        "warnings": ["-W", "always::ResourceWarning"],
        "dev": ["-X", "dev"],
        "errors": ["-W", "error::ResourceWarning"],
    }
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        *options[mode],
        "-c",
        SETUP + code,
        str(llama(files)),
        str(lora(files)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    if mode == "plain":
        assert done.stderr == ""
    elif mode != "errors":
        # a daemon may have had something open, too
        said = done.stderr.count(".gguf') was never closed")
        assert said == forgotten or ("daemon" in name and said == forgotten + 1), done.stderr
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    else:
        assert ("ResourceWarning" in done.stderr) == bool(forgotten)


# -- fork ------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "pass"])
def test_fork(files: Path, leave: str) -> None:
    code = (
        SETUP
        + """
import warnings
warnings.simplefilter("always", ResourceWarning)
sampler, adapter, vocab = pyggml.Sampler(model), model.lora(sys.argv[2]), model.vocab
expected = "".join(context.generate([5, 6], max_tokens=8, temperature=0.0))
busy = threading.Thread(target=lambda: context.decode([7] * 1500))
busy.start()
time.sleep(0.02)  # the thread holds the context's lock over the fork
child = os.fork()
if child == 0:
    calls = [lambda: context.decode([5]), lambda: context.logits(), lambda: context.n_ctx, lambda: context.clear(), lambda: context.abort(),
             lambda: context.length(), lambda: context.generate("x"), lambda: context.save_state(), lambda: context.set_lora({}),
             lambda: model.metadata, lambda: model.n_embd, lambda: model.context(), lambda: model.lora("x"), lambda: model.chat_template,
             lambda: model.apply_chat_template([]), lambda: vocab.tokenize("x"), lambda: len(vocab), lambda: sampler.sample(context),
             lambda: sampler.accept(5), lambda: sampler.reset(), lambda: adapter.handle, lambda: pyggml.Sampler(model),
             lambda: pyggml.Model(sys.argv[1]), lambda: pyggml.devices(), lambda: pyggml.memory.devices(), lambda: pyggml.backend_free(),
             lambda: pyggml.backend_free(force=True), lambda: context.__enter__()]
    for number, call in enumerate(calls):
        try:
            call()
        except pyggml.ForkedError:
            continue
        print(f"call {number} works in a fork")
    context.close()
    del model, context, sampler, adapter, vocab
    gc.collect()
    LEAVE
else:
    _, status = os.waitpid(child, 0)
    busy.join()
    assert status == 0, status
    assert "".join(context.generate([5, 6], max_tokens=8, temperature=0.0)) == expected
    model.close()
"""
    )
    done: subprocess.CompletedProcess[str] = run_python(
        code.replace("LEAVE", leave), str(llama(files)), str(lora(files)), timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_spawned_processes_work(files: Path) -> None:
    code = """
import multiprocessing, sys, pyggml
def answer(path):
    with pyggml.Model(path) as model, model.context(n_ctx=256, n_threads=1) as context:
        return "".join(context.generate([5, 6], max_tokens=8, temperature=0.0))
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(len({answer(sys.argv[1]), *pool.map(answer, [sys.argv[1]] * 2)}))
"""
    script = files / "spawn.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script), str(llama(files))], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# -- import ----------------------------------------------------------------------------------------------------------------


def test_import_is_lean() -> None:
    code = """
import sys, pyggml
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "libpyggml-cpu" in line or "libpyggml-cuda" in line]
print("numpy" in sys.modules, loaded, pyggml.lib.ggml_backend_reg_count(), pyggml.memory.devices())
"""
    done: subprocess.CompletedProcess[str] = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False [] 0 []\n", "")


# -- anything in any order -------------------------------------------------------------------------------------------------

RANDOM = """
import gc, random, sys, warnings
import pyggml
warnings.simplefilter("ignore", ResourceWarning)
allowed = (pyggml.PyggmlError, ValueError, BufferError)
seed, paths, adapter = int(sys.argv[1]), sys.argv[2:4], sys.argv[4]
rng = random.Random(seed)
models, contexts, samplers, adapters, running, views = [], [], [], [], [], []
every = [models, contexts, samplers, adapters, running, views]

def pick(several):
    return rng.choice(several) if several else None

def step():
    what = rng.randrange(20)
    model, context, sampler, lora = pick(models), pick(contexts), pick(samplers), pick(adapters)
    if what == 0 and len(models) < 4: models.append(pyggml.Model(rng.choice(paths)))
    elif what == 1 and model: contexts.append(model.context(n_ctx=256, n_threads=1, n_seq_max=rng.choice([1, 2])))
    elif what == 2 and model: samplers.append(pyggml.Sampler(model, grammar=rng.choice([None, 'root ::= [a-z]+'])))
    elif what == 3 and model: adapters.append(model.lora(adapter))
    elif what == 4 and context: context.decode([rng.randrange(1024) for _ in range(rng.randrange(1, 40))], seq_id=rng.randrange(2))
    elif what == 5 and context and sampler: sampler.sample(context)
    elif what == 6 and context: context.set_lora(rng.sample(adapters, min(len(adapters), rng.randrange(3))))
    elif what == 7 and context: views.append(context.logits(copy=False))
    elif what == 8 and context: running.append(context.generate([5, 6, 7], max_tokens=5, seq_id=rng.randrange(2)))
    elif what == 9 and running: next(pick(running), None)
    elif what == 10 and contexts: pick(contexts).load_state(pick(contexts).save_state())
    elif what == 11 and contexts: pick(contexts).load_state(pick(contexts).save_state(0), rng.randrange(2))
    elif what == 12 and context: context.remove(rng.randrange(2), rng.randrange(10))
    elif what == 13 and context: context.copy(rng.randrange(2), rng.randrange(2))
    elif what == 14: pyggml.backend_free(force=rng.random() < 0.2)
    elif what in (15, 16):
        one = pick(pick(every))
        if hasattr(one, "close"): one.close()
    elif what in (17, 18):
        several = pick(every)
        if several: del several[rng.randrange(len(several))]
    elif what == 19: gc.collect()

for _ in range(400):
    try:
        step()
    except allowed:
        pass
"""


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_never_crash(files: Path, seed: int) -> None:
    arguments = [str(seed), str(llama(files)), str(llama(files, seed=1)), str(lora(files))]
    done: subprocess.CompletedProcess[str] = run_python(RANDOM, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
