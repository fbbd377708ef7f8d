"""LoRA adapters: small changes to a model's weights, loaded beside it."""

from __future__ import annotations

import os

from . import checks, errors, log
from ._native import ffi, lib, reason
from .lifecycle import opening
from .model import Model
from .resource import Resource


class LoraAdapter(Resource):
    """A LoRA adapter, loaded for one model. Closing it takes it out of the contexts that use it."""

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model must be a Model, not {type(model).__name__}")
        model.handle  # noqa: B018  (a closed object says that first)
        encoded = checks.check_file(path)
        self.path = os.path.abspath(os.fspath(path))
        log.sync_level()
        out = ffi.new("struct llama_adapter_lora **")
        try:
            with opening(f"LoraAdapter({self.path!r}), loading"), model._lock:
                if status := lib.pyggml_lora_load(model.handle, encoded, out):
                    kind = errors.OutOfMemoryError if status == lib.PYGGML_NO_MEMORY else errors.ModelLoadError
                    raise kind(f"{self.path}: {reason()}")
                self._adopt(out[0], model)
        except BaseException:
            if self._adopted:  # Ctrl+C may come at any line
                self.close()
            elif out[0]:
                lib.llama_adapter_lora_free(out[0])
            raise

    def __repr__(self) -> str:
        return f"LoraAdapter({self.__dict__.get('path')!r})"

    def _free(self, handle: object) -> None:
        from .context import Context

        assert self._parent is not None
        for sibling in list(self._parent._children):
            if isinstance(sibling, Context):
                sibling._forget_lora(self)
        lib.llama_adapter_lora_free(handle)
