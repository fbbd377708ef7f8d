"""Models: weights of a GGUF file on the devices, and what can be asked of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from . import chat, checks, errors, log
from ._native import ffi, lib, reason, text
from .backend import chosen_devices
from .checks import check_file
from .lifecycle import leave, opening
from .resource import Resource
from .vocab import Vocab

if TYPE_CHECKING:
    from .context import Context
    from .lora import LoraAdapter

_SPLIT_MODES = ("none", "layer", "row", "tensor")
_LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io")
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Facts:
    """What does not change while a model lives, read once: no lock is needed for it."""

    n_ctx_train: int
    n_positions: int
    n_embd: int
    n_classes: int
    n_vocab: int
    n_swa: int
    n_layer: int
    n_params: int
    size: int
    is_recurrent: bool
    has_encoder: bool
    has_decoder: bool
    description: str

    @classmethod
    def of(cls, handle: Any) -> _Facts:
        return cls(
            n_ctx_train=lib.llama_model_n_ctx_train(handle),
            n_positions=lib.pyggml_model_n_positions(handle),
            n_embd=lib.llama_model_n_embd_out(handle),
            n_classes=lib.llama_model_n_cls_out(handle),
            n_vocab=lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(handle)),
            n_swa=lib.llama_model_n_swa(handle),
            n_layer=lib.llama_model_n_layer(handle),
            n_params=lib.llama_model_n_params(handle),
            size=lib.llama_model_size(handle),
            is_recurrent=lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle),
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
        keep: list[Any] = []  # C memory that the parameters point to
        params = ffi.new("struct llama_model_params *", lib.llama_model_default_params())
        params.n_gpu_layers = checks.integer("n_gpu_layers", n_gpu_layers, -1, _MAX_INT)
        params.main_gpu = checks.integer("main_gpu", main_gpu, 0, lib.llama_max_devices() - 1)
        mode = checks.word("split_mode", split_mode, _SPLIT_MODES)
        params.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{mode.upper()}")
        mode = checks.word("load_mode", load_mode, _LOAD_MODES)
        params.load_mode = getattr(lib, f"LLAMA_LOAD_MODE_{mode.upper()}")
        params.vocab_only = checks.flag("vocab_only", vocab_only)
        params.check_tensors = checks.flag("check_tensors", check_tensors)
        checks.function("progress", progress)
        if tensor_split is not None:
            keep.append(_split(tensor_split))
            params.tensor_split = keep[-1]
        watcher = _Progress(progress)  # also without a callback: it is where Ctrl+C ends a load
        keep.append(ffi.new_handle(watcher))
        params.progress_callback = lib.pyggml_py_progress
        params.progress_callback_user_data = keep[-1]
        encoded = check_file(path)
        self.path = os.path.abspath(os.fspath(path))
        self.device_names = None if devices is None else set(checks.items("devices", devices, "names (str)"))
        self.vocab_only = vocab_only
        self._chat: Any = None
        log.sync_level()
        out = ffi.new("struct llama_model **")
        try:
            with opening(f"Model({self.path!r}), loading"):
                if devices is not None:
                    keep.append(chosen_devices(devices))
                    params.devices = keep[-1]
                status = lib.pyggml_model_load(encoded, params, out)
                if status or watcher.error is not None:
                    self._raise(status, watcher.error)
                self._facts = _Facts.of(out[0])
                self._adopt(out[0])
            self.vocab = Vocab(self)
        except BaseException:
            if self._adopted:  # Ctrl+C may come at any line
                self.close()
            elif out[0]:
                lib.llama_model_free(out[0])
            raise

    def _raise(self, status: int, error: BaseException | None) -> None:
        if error is not None:
            raise error
        why = reason()
        if status == lib.PYGGML_CANCELLED:
            leave()
            raise errors.LoadCancelledError(f"{self.path}: the load was cancelled")
        # the loader says it in a line of its log only
        full = status == lib.PYGGML_NO_MEMORY or "unable to allocate" in why
        kind = errors.OutOfMemoryError if full else errors.ModelLoadError
        raise kind(f"{self.path}: {why}")

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
    def n_positions(self) -> int:
        """Positions that it has learned a vector for and cannot go beyond; 0 for a model that computes them."""
        return self._known.n_positions

    @property
    def n_embd(self) -> int:
        """Length of an embedding."""
        return self._known.n_embd

    @property
    def n_classes(self) -> int:
        """Length of what a reranker or classifier gives."""
        return self._known.n_classes

    @property
    def n_vocab(self) -> int:
        """How many tokens its vocabulary has."""
        return self._known.n_vocab

    @property
    def n_swa(self) -> int:
        """Tokens in its sliding window; 0 for a model without one."""
        return self._known.n_swa

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
    def is_recurrent(self) -> bool:
        """Whether all or a part of what it knows of a sequence is one state, which cannot go back by some tokens."""
        return self._known.is_recurrent

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

    @cached_property
    def _fingerprint(self) -> str:
        """Tells models apart whose states do not fit each other."""
        about = repr((self._facts, sorted(self.metadata.items()))).encode()
        return hashlib.blake2b(about, digest_size=16).hexdigest()

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
        encoded = chat.request(messages, tools, add_generation_prompt, enable_thinking, kwargs)
        if template == "":
            raise ValueError("template is empty; None takes the model's own")
        source = None if template is None else checks.string("template", template)
        with self._lock:
            handle = self.handle
            if source is None:
                self._chat = self._chat or chat.new(handle, None)
                return chat.render(self._chat, encoded)
            given = chat.new(handle, source)
            try:
                return chat.render(given, encoded)
            finally:
                lib.pyggml_chat_free(given)

    def lora(self, path: str | os.PathLike[str]) -> LoraAdapter:
        """Load a LoRA adapter for this model; `Context.set_lora()` makes use of it."""
        from .lora import LoraAdapter

        return LoraAdapter(self, path)


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
    log.raise_interrupt()
    callback = ffi.from_handle(user_data).callback
    return callback is None or callback(progress) is not False


def _split(shares: Sequence[float]) -> Any:
    most = lib.llama_max_devices()
    values = [checks.number("tensor_split", one, 0) for one in checks.items("tensor_split", shares, "numbers")]
    if not 0 < len(values) <= most or not any(values):
        raise ValueError(f"tensor_split must have 1 to {most} numbers that are not all 0, not {values}")
    return ffi.new("float[]", values + [0.0] * (most - len(values)))


def _string(call: Callable[[Any, int], int]) -> str:
    buffer = ffi.new("char[]", 256)
    needed = call(buffer, len(buffer))
    if needed >= len(buffer):
        buffer = ffi.new("char[]", needed + 1)
        call(buffer, len(buffer))
    return text(buffer)
