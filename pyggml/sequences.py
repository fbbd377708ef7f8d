"""Sequences of a context: how long they are, forgetting and copying them, saving and loading their state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks, errors, state
from ._native import ffi, lib, reason
from .outputs import Outputs

if TYPE_CHECKING:
    from .lora import LoraAdapter

_END = 2**31 - 1


class Sequences(Outputs):
    """The part of a `Context` that knows of sequences."""

    def _set_up_sequences(self, n_seq_max: int, settings: str) -> None:
        self._n_seq_max = n_seq_max
        self._settings = settings  # what a state depends on
        self._cached: dict[int, list[int]] = {}  # the tokens that generate() knows to be in each sequence
        self._loras: dict[LoraAdapter, float] = {}

    @property
    def _memory(self) -> Any:
        """NULL for models that keep nothing: encoders."""
        return lib.llama_get_memory(self.handle)

    def _seq_id(self, value: SupportsIndex, name: str = "seq_id") -> int:
        self.handle  # noqa: B018  (a closed object says that first)
        try:
            return checks.integer(name, value, 0, self._n_seq_max - 1)
        except ValueError as error:
            raise ValueError(f"{error}: the context was made with n_seq_max={self._n_seq_max}") from None

    def length(self, seq_id: SupportsIndex = 0) -> int:
        """How many positions of a sequence are in the context."""
        with self._lock:
            sequence, memory = self._seq_id(seq_id), self._memory
            return int(lib.llama_memory_seq_pos_max(memory, sequence)) + 1 if memory else 0

    def clear(self) -> None:
        """Forget every sequence."""
        with self._lock:
            memory = self._memory
            self._cached.clear()
            if memory:
                lib.llama_memory_clear(memory, True)

    def remove(self, seq_id: SupportsIndex = 0, start: SupportsIndex = 0, stop: SupportsIndex = -1) -> bool:
        """Forget positions `start` to `stop` (-1: the end) of a sequence. False if the model cannot forget a part."""
        with self._lock:
            sequence, memory = self._seq_id(seq_id), self._memory
            first = checks.integer("start", start, 0, _END)
            last = checks.integer("stop", stop, -1, _END)
            length = self.length(sequence)
            if not memory or first >= length:
                return True
            if self.model.is_recurrent and (first > 0 or 0 <= last < length):
                return False  # llama.cpp would say that it has done it
            if not lib.llama_memory_seq_rm(memory, sequence, first, last):
                return False
            known = self._cached.get(sequence, [])
            self._cached[sequence] = known[:first] if last < 0 or last >= len(known) else []
            return True

    def _common(self, prompt: list[int], seq_id: int) -> int:
        """How many tokens at the beginning of a prompt, its last left out, are in the sequence and can be used."""
        length = self.length(seq_id)
        known = self._cached.get(seq_id, [])[:length]
        same = 0
        while same < min(len(known), len(prompt) - 1) and known[same] == prompt[same]:
            same += 1
        if self.model.n_swa and same < length:
            # what a sliding window has left behind is gone, and missing where one goes back
            oldest = lib.llama_memory_seq_pos_min(self._memory, seq_id)
            if oldest > max(0, same - self.model.n_swa):
                return 0
        return same

    def copy(self, source: SupportsIndex, target: SupportsIndex) -> None:
        """Let the sequence `target` be what `source` is."""
        with self._lock:
            from_, to, memory = self._seq_id(source, "source"), self._seq_id(target, "target"), self._memory
            if from_ == to:
                return
            if memory:
                lib.llama_memory_seq_rm(memory, to, -1, -1)
                lib.llama_memory_seq_cp(memory, from_, to, -1, -1)
            self._cached[to] = list(self._cached.get(from_, ()))

    def save_state(self, seq_id: SupportsIndex | None = None) -> bytes:
        """The state of one sequence, or of the whole context, for `load_state()` of a context of the same model and settings.

        The outputs of the last decode are not part of it. It is checked for damage, not for intent: load what you trust.
        """
        with self._lock:
            native = -1 if seq_id is None else self._seq_id(seq_id)
            handle = self.handle
            size = lib.pyggml_state_size(handle, native)
            data = ffi.new("uint8_t[]", max(size, 1))
            written = lib.pyggml_state_get(handle, data, size, native)
            if not written:
                raise errors.PyggmlError(f"the state cannot be saved: {reason()}")
            cached = self._cached if native < 0 else {0: self._cached.get(native, [])}
            return state.pack(self._state_kind(native), self._lora_words(), cached, ffi.buffer(data, written))

    def load_state(self, saved: bytes | bytearray | memoryview, seq_id: SupportsIndex | None = None) -> None:
        """Restore what `save_state()` gave, one sequence as any sequence.

        Raises ValueError for what is damaged or of another model or other settings, and changes nothing then.
        """
        if not isinstance(saved, bytes | bytearray | memoryview):
            raise TypeError(f"a state is bytes, not {type(saved).__name__}")
        with self._lock:
            native = -1 if seq_id is None else self._seq_id(seq_id)
            handle = self.handle
            self._check_views("load_state")
            lora, cached, data = state.unpack(memoryview(saved), self._state_kind(native))
            self._outputs = []
            if native < 0:
                self._cached.clear()
            else:
                self._cached.pop(native, None)
            if not lib.pyggml_state_set(handle, ffi.from_buffer("uint8_t[]", data), len(data), native):
                why = reason()  # the context is smaller, most likely
                if native < 0:
                    self.clear()
                else:
                    self.remove(native)
                raise ValueError(f"the state does not fit into this context: {why}")
            if lora == self._lora_words():  # else it was computed with other weights
                for sequence, tokens in cached.items():
                    self._cached[sequence if native < 0 else native] = tokens

    def _state_kind(self, native: int) -> str:
        # a whole context has its sequences, one sequence can become any
        return f"{self._settings} whole {self._n_seq_max}" if native < 0 else f"{self._settings} sequence"

    def _lora_words(self) -> list[str]:
        return sorted(f"{one.path} {scale}" for one, scale in self._loras.items())
