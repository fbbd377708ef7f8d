"""Resets that fail, cards that are lost, memory that is not there. Run by `test_python.py`."""

from __future__ import annotations

import ctypes
from ctypes import c_int

from inside import MODEL, answer, assert_clean, assert_released, core, on_cards, report, run, used

import pyggml
from pyggml import OutOfMemoryError, PyggmlError, Verdict


def failing_reset(names: list[str] | None) -> None:
    answer(devices=["CUDA0"])
    freed = pyggml.backend_free(devices=names)
    one = on_cards(freed)["CUDA0"]
    assert (one.verdict, one.context_active) == (Verdict.RESIDUAL, True) and one.error != 0 and not freed.released
    assert f"error {one.error}" in str(freed)
    assert report()["contexts"] == 1
    answer(devices=["CUDA0"])  # it can be used further
    assert_released(pyggml.backend_free(devices=names))
    assert_clean()


def lost_device() -> None:
    answer()
    core.cudasim_lose_device(c_int(0))
    freed = pyggml.backend_free()
    lost, other = on_cards(freed)["CUDA0"], on_cards(freed)["CUDA1"]
    assert lost.verdict is Verdict.RESIDUAL and lost.error != 0 and not freed.released
    assert other.verdict is Verdict.RELEASED and used(1) == 0
    try:
        answer(devices=["CUDA0"])
    except PyggmlError:
        pass
    else:
        raise AssertionError("a model on a lost card")
    answer(devices=["CUDA1"])  # the other one goes on
    freed = pyggml.backend_free()
    assert on_cards(freed)["CUDA0"].verdict is Verdict.RESIDUAL, "it is still not known what it holds"
    assert on_cards(freed)["CUDA1"].verdict is Verdict.RELEASED and used(1) == 0


def out_of_memory(count: int) -> None:
    """Each allocation fails once: an error at every stage, and a clean release after it."""
    stages: dict[str, set[str]] = {}
    for n in range(1, count + 1):
        core.cudasim_fail_alloc(ctypes.c_long(n))
        stage = "load"
        try:
            with pyggml.Model(MODEL, devices=["CUDA0"], load_mode="none") as model:
                stage = "context"
                with model.context(n_ctx=512) as context:
                    stage = "decode"
                    context.decode(list(range(20, 320)))
                    stage = "none"
        except PyggmlError as error:
            stages.setdefault(stage, set()).add(type(error).__name__)
        core.cudasim_fail_alloc(ctypes.c_long(0))
        assert_released(pyggml.backend_free())
        assert_clean()
        if stage == "none" and n > 12:
            break
    assert set(stages) == {"load", "context", "decode"}, stages
    assert stages["load"] <= {"OutOfMemoryError", "ModelLoadError"}, stages
    assert stages["context"] == stages["decode"] == {OutOfMemoryError.__name__}, stages
    answer()
    assert_released(pyggml.backend_free())


def no_room(size: int) -> None:
    """The card has no room for a context of CUDA's, or none for the weights."""
    try:
        answer(devices=["CUDA0"])
    except (OutOfMemoryError, pyggml.ModelLoadError) as error:
        assert "memory" in str(error), error
    else:
        raise AssertionError(f"a model on a card of {size} MiB")
    assert_released(pyggml.backend_free())
    assert_clean()


if __name__ == "__main__":
    run(globals())
