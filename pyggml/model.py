"""Models: weights of a GGUF file on the devices, and what can be asked of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import errors, log
from ._native import ffi, lib, reason, text
from .backend import chosen_devices
from .lifecycle import opening
from .resource import Resource
from .vocab import Vocab

if TYPE_CHECKING:
    from .context import Context

_SPLIT_MODES = ("none", "layer", "row", "tensor")
_LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io")

_PATH_ERRORS = {
    lib.PYGGML_GGUF_MISSING: errors.ModelFileNotFoundError,
    lib.PYGGML_GGUF_DIRECTORY: errors.ModelFileIsADirectoryError,
    lib.PYGGML_GGUF_PERMISSION: errors.ModelFilePermissionError,
}


def check_file(path: str | os.PathLike[str]) -> bytes:
    """Refuse a file that the loader cannot take, before it tries. Returns the path for C."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path must be str or os.PathLike[str], not {type(path).__name__}")
    encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("a path cannot contain a null character")
    message = ffi.new("char[]", 1024)
    code = lib.pyggml_gguf_check(encoded, message, len(message))
    if code:
        raise _PATH_ERRORS.get(code, errors.ModelLoadError)(f"{name}: {text(message)}")
    return encoded


@dataclass(frozen=True, slots=True)
class _Facts:
    """What does not change while a model lives, read once: no lock is needed for it."""

    n_ctx_train: int
    n_embd: int
    n_classes: int
    n_layer: int
    n_params: int
    size: int
    has_encoder: bool
    has_decoder: bool
    description: str

    @classmethod
    def of(cls, handle: Any) -> _Facts:
        return cls(
            n_ctx_train=lib.llama_model_n_ctx_train(handle),
            n_embd=lib.llama_model_n_embd_out(handle),
            n_classes=lib.llama_model_n_cls_out(handle),
            n_layer=lib.llama_model_n_layer(handle),
            n_params=lib.llama_model_n_params(handle),
            size=lib.llama_model_size(handle),
            has_encoder=lib.llama_model_has_encoder(handle),
            has_decoder=lib.llama_model_has_decoder(handle),
            description=_string(partial(lib.llama_model_desc, handle)),
        )


class Model(Resource):
    """A model file that is loaded: its weights, its vocabulary and its chat template.

    `path` is a GGUF file (of a split model the first). `n_gpu_layers` -1 puts every layer on the devices, 0 none. `devices` are names as
    in `pyggml.devices()`; without them all GPUs are used. `split_mode` is none, layer, row or tensor; `tensor_split` the share
    of each device. `load_mode` is auto, none, mmap, mlock, mmap_mlock or direct_io. `progress` is called with 0.0 to 1.0 by the
    loading thread; if it returns False the load ends with LoadCancelledError. Loading brings freed backends back.

    A model can be used by several threads and contexts at once. `close()` closes its contexts and adapters first.
    Raises ModelLoadError, which names the path and the reason; OutOfMemoryError; ValueError for an unknown name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = -1,
        devices: Sequence[str] | None = None,
        split_mode: str = "layer",
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        load_mode: str = "auto",
        vocab_only: bool = False,
        check_tensors: bool = False,
        progress: Callable[[float], bool | None] | None = None,
    ) -> None:
        encoded = check_file(path)
        self.path = os.path.abspath(os.fspath(path))
        log.sync_level()
        keep: list[Any] = []  # C memory that the parameters point to
        params = ffi.new("struct llama_model_params *", lib.llama_model_default_params())
        params.n_gpu_layers = n_gpu_layers
        params.split_mode = _one_of("split_mode", split_mode, _SPLIT_MODES, "LLAMA_SPLIT_MODE_")
        params.load_mode = _one_of("load_mode", load_mode, _LOAD_MODES, "LLAMA_LOAD_MODE_")
        params.main_gpu = main_gpu
        params.vocab_only = vocab_only
        params.check_tensors = check_tensors
        if tensor_split is not None:
            if len(tensor_split) > lib.llama_max_devices():
                raise ValueError(
                    f"tensor_split has {len(tensor_split)} entries, at most {lib.llama_max_devices()} are possible"
                )
            keep.append(ffi.new("float[]", lib.llama_max_devices()))
            keep[-1][0 : len(tensor_split)] = list(tensor_split)
            params.tensor_split = keep[-1]
        watcher = _Progress(progress)  # also without a callback: it is where Ctrl+C ends a load
        keep.append(ffi.new_handle(watcher))
        params.progress_callback = lib.pyggml_py_progress
        params.progress_callback_user_data = keep[-1]
        out = ffi.new("struct llama_model **")
        with opening(f"Model({self.path!r}), loading"):
            if devices is not None:
                keep.append(chosen_devices(devices))
                params.devices = keep[-1]
            status = lib.pyggml_model_load(encoded, params, out)
        if watcher.error is not None:
            raise watcher.error
        if status == lib.PYGGML_CANCELLED:
            raise errors.LoadCancelledError(f"{self.path}: the load was cancelled")
        if status == lib.PYGGML_NO_MEMORY:
            raise errors.OutOfMemoryError(f"{self.path}: {reason()}")
        if status:
            raise errors.ModelLoadError(f"{self.path}: {reason()}")
        super().__init__(out[0])
        self.device_names = None if devices is None else set(devices)
        self._facts = _Facts.of(out[0])
        self.vocab = Vocab(self)
        self._chat: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__.get('path')!r})"

    def _free(self, handle: Any) -> None:
        if self._chat is not None:
            lib.pyggml_chat_free(self._chat)
        lib.llama_model_free(handle)

    def context(self, **options: Any) -> Context:
        """A `Context` of this model; the options are those of `Context`."""
        from .context import Context

        return Context(self, **options)

    # -- what it is ------------------------------------------------------------------------------------------------------

    @property
    def _known(self) -> _Facts:
        self.handle  # noqa: B018  (raises for a closed model)
        return self._facts

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that it was trained with."""
        return self._known.n_ctx_train

    @property
    def n_embd(self) -> int:
        """Length of an embedding."""
        return self._known.n_embd

    @property
    def n_classes(self) -> int:
        """Length of what a reranker or classifier gives."""
        return self._known.n_classes

    @property
    def n_layer(self) -> int:
        return self._known.n_layer

    @property
    def n_params(self) -> int:
        return self._known.n_params

    @property
    def size(self) -> int:
        """Bytes of all its tensors."""
        return self._known.size

    @property
    def has_encoder(self) -> bool:
        return self._known.has_encoder

    @property
    def has_decoder(self) -> bool:
        return self._known.has_decoder

    @property
    def description(self) -> str:
        """Kind, size and quantisation, in llama.cpp's words."""
        return self._known.description

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file; arrays are left out, other values come as text."""
        result = {}
        with self._lock:
            handle = self.handle
            for index in range(lib.llama_model_meta_count(handle)):
                key = _string(partial(lib.llama_model_meta_key_by_index, handle, index))
                result[key] = _string(partial(lib.llama_model_meta_val_str_by_index, handle, index))
        return result

    # -- chat template ---------------------------------------------------------------------------------------------------

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template in the file (Jinja), or None."""
        with self._lock:
            source = lib.llama_model_chat_template(self.handle, ffi.NULL)
            return text(source) if source else None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool = True,
        template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation, as llama-server would render it.

        `messages` and `tools` are in OpenAI's form; `template` (Jinja) replaces the model's own; `kwargs` become variables of the
        template. A model without a template gets ChatML. Raises ValueError for what the template does not take.
        """
        try:
            request = {"messages": list(messages), "add_generation_prompt": add_generation_prompt,
                       "enable_thinking": enable_thinking, "kwargs": kwargs}  # fmt: skip
            if tools:
                request["tools"] = list(tools)
            encoded = json.dumps(request).encode()
        except (TypeError, ValueError) as error:
            raise TypeError(f"messages, tools and template variables must be JSON values: {error}") from None
        prompt = ffi.new("char **")
        with self._lock:
            chat = self._chat if template is None else None
            if chat is None:
                out = ffi.new("struct pyggml_chat **")
                source = ffi.NULL if template is None else template.encode()
                if lib.pyggml_chat_new(self.handle, source, out):
                    raise ValueError(f"the chat template is not valid: {reason()}")
                chat = out[0]
            try:
                if lib.pyggml_chat_render(chat, encoded, prompt):
                    raise ValueError(f"the chat template cannot render these messages: {reason()}")
                return text(prompt[0])
            finally:
                if template is None:
                    self._chat = chat
                else:
                    lib.pyggml_chat_free(chat)

    def lora(self, path: str | os.PathLike[str]) -> LoraAdapter:
        """Load a LoRA adapter for this model; `Context.set_lora()` makes use of it."""
        return LoraAdapter(self, path)


class LoraAdapter(Resource):
    """A LoRA adapter, loaded for one model. Closing it takes it out of the contexts that use it."""

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model must be a Model, not {type(model).__name__}")
        self.path = os.path.abspath(os.fspath(path))
        encoded = check_file(path)
        out = ffi.new("struct llama_adapter_lora **")
        handle = model.handle
        with opening(f"LoraAdapter({self.path!r}), loading"):
            status = lib.pyggml_lora_load(handle, encoded, out)
        if status:
            raise errors.ModelLoadError(f"{self.path}: {reason()}")
        super().__init__(out[0], model)

    def __repr__(self) -> str:
        return f"LoraAdapter({self.__dict__.get('path')!r})"

    def _free(self, handle: Any) -> None:
        from .context import Context

        assert self._parent is not None
        for sibling in list(self._parent._children):
            if isinstance(sibling, Context) and not sibling.closed:
                sibling._forget_lora(self)
        lib.llama_adapter_lora_free(handle)


class _Progress:
    """Carries the progress callback through C, and its exception back."""

    def __init__(self, callback: Callable[[float], bool | None] | None) -> None:
        self.callback = callback
        self.error: BaseException | None = None


def _keep_error(kind: Any, error: BaseException, trace: Any) -> None:
    data = trace.tb_frame.f_locals.get("user_data") if trace is not None else None
    if data:
        ffi.from_handle(data).error = error


@ffi.def_extern(error=False, onerror=_keep_error)  # type: ignore[untyped-decorator]
def pyggml_py_progress(progress: float, user_data: Any) -> bool:
    callback = ffi.from_handle(user_data).callback
    return callback is None or callback(progress) is not False


def _one_of(name: str, value: str, names: Sequence[str], prefix: str) -> int:
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, not {value!r}")
    return int(getattr(lib, prefix + value.upper()))


def _string(call: Callable[[Any, int], int]) -> str:
    buffer = ffi.new("char[]", 256)
    needed = call(buffer, len(buffer))
    if needed >= len(buffer):
        buffer = ffi.new("char[]", needed + 1)
        call(buffer, len(buffer))
    return text(buffer)
