"""Tiny models for the tests: random weights (seeded), the real tokenizer of SmolLM2 cut to its first tokens.

Every function returns the path of a GGUF file in `directory`, written if it is not there yet; its name carries a hash of all that
determines its content. SmolLM2 numbers its tokens in the order of its merges, so the first n tokens are a valid BPE vocabulary.
The weights are scaled so that greedy outputs vary: attention is sharp and each layer moves the residual far.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

VERSION = 2  # to be raised whenever the content of any file changes

Array = NDArray[np.float32]
Add = Callable[..., None]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BOS, EOS = 1, 2
N_SPECIAL = 17  # SmolLM2's control tokens come first
NOT_MERGED = 252  # control tokens and single bytes


class Span(NamedTuple):
    """Where a field lies in a GGUF file.

    `kind` is header, length (of a string), key, type, count (of an array), value, tensor_name, n_dims, dim, tensor_type or offset;
    `name` the key or tensor it belongs to.
    """

    begin: int
    end: int
    kind: str
    name: str


class Layout(NamedTuple):
    """Metadata and, for tests that damage files, the place of every field before the tensor data."""

    metadata: dict[str, Any]
    spans: list[Span]


def read_layout(path: Path) -> Layout:
    """Read metadata and field positions of a GGUF file (valid files only; arrays of more than 64 elements get one span)."""
    data = path.read_bytes()
    formats = ["B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"]
    position, spans, metadata = 0, [], {}

    def take(format_: str, kind: str, name: str) -> Any:
        nonlocal position
        begin, size = position, struct.calcsize("<" + format_)
        (value,) = struct.unpack_from("<" + format_, data, begin)
        position += size
        if kind:
            spans.append(Span(begin, position, kind, name))
        return value

    def take_string(kind: str, name: str) -> str:
        nonlocal position
        length = take("Q", "length" if kind else "", name)
        begin, position = position, position + length
        if kind:
            spans.append(Span(begin, position, kind, name))
        return data[begin:position].decode("utf-8", "replace")

    take("I", "header", "magic")
    take("I", "header", "version")
    n_tensors = take("Q", "header", "n_tensors")
    n_keys = take("Q", "header", "n_kv")
    for _ in range(n_keys):
        key = take_string("key", "")
        type_ = take("I", "type", key)
        if type_ == 9:
            element = take("I", "type", key)
            count = take("Q", "count", key)
            begin, kind = position, "value" if count <= 64 else ""
            metadata[key] = [
                take_string(kind, key) if element == 8 else take(formats[element], kind, key) for _ in range(count)
            ]
            if not kind:
                spans.append(Span(begin, position, "value", key))
        else:
            metadata[key] = take_string("value", key) if type_ == 8 else take(formats[type_], "value", key)
    for _ in range(n_tensors):
        name = take_string("tensor_name", "")
        for _ in range(take("I", "n_dims", name)):
            take("Q", "dim", name)
        take("I", "tensor_type", name)
        take("Q", "offset", name)
    return Layout(metadata, spans)


def demo_model() -> Path:
    """The demo model, SmolLM2-135M-Instruct: `$PYGGML_DEMO_MODEL`, else what `make demo` has installed."""
    if path := os.environ.get("PYGGML_DEMO_MODEL"):
        return Path(path)
    from pyggml.demo import model_path

    return model_path()


@functools.cache
def _tokenizer() -> dict[str, Any]:
    return {key: value for key, value in read_layout(demo_model()).metadata.items() if key.startswith("tokenizer.")}


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    tokenizer = _tokenizer()
    writer.add_tokenizer_model(tokenizer["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(tokenizer["tokenizer.ggml.pre"])
    writer.add_token_list(tokenizer["tokenizer.ggml.tokens"][:n_vocab])
    writer.add_token_types(tokenizer["tokenizer.ggml.token_type"][:n_vocab])
    writer.add_token_merges(tokenizer["tokenizer.ggml.merges"][: n_vocab - NOT_MERGED])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _build(
    directory: Path,
    arch: str,
    options: dict[str, Any],
    fill: Callable[[gguf.GGUFWriter, Add, Callable[..., Array]], None],
) -> Path:
    """Write `arch`-hash.gguf unless it is there; `fill(writer, add, random)` adds keys and tensors."""
    text = json.dumps([VERSION, arch, fill.__qualname__, options], sort_keys=True)
    path = Path(directory) / f"{arch}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.part")  # several test processes may build it at once
    generator = np.random.default_rng(options.get("seed", 0))
    writer = gguf.GGUFWriter(unfinished, arch)
    writer.add_name(f"tiny {arch}")
    dtype = gguf.GGMLQuantizationType[options.get("dtype", "F32")]

    def random(*shape: int, scale: float = 1.0) -> Array:
        """Normal numbers of standard deviation `scale` / sqrt(inputs); the last dimension is the input."""
        return (generator.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32)

    def add(name: str, array: Array, *, keep: bool = False) -> None:
        if keep or array.ndim == 1 or dtype == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        elif dtype == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(name, array.astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, dtype), raw_dtype=dtype)

    fill(writer, add, random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)
    return path


def _add_embeddings(add: Add, random: Callable[..., Array], n_vocab: int, n_embd: int) -> None:
    add("token_embd.weight", random(n_vocab, n_embd, scale=n_embd**0.5))
    output = random(n_vocab, n_embd, scale=2.0)
    output[:N_SPECIAL] = 0  # a control token (logit 0) is never the best one, so generation does not end early
    add("output.weight", output)
    add("output_norm.weight", np.ones(n_embd, np.float32))


def _add_decoder_layer(
    add: Add, random: Callable[..., Array], i: int, n_embd: int, n_ff: int, n_q: int, n_kv: int
) -> None:
    add(f"blk.{i}.attn_norm.weight", np.ones(n_embd, np.float32))
    add(f"blk.{i}.attn_q.weight", random(n_q, n_embd, scale=2.0))
    add(f"blk.{i}.attn_k.weight", random(n_kv, n_embd, scale=2.0))
    add(f"blk.{i}.attn_v.weight", random(n_kv, n_embd))
    add(f"blk.{i}.attn_output.weight", random(n_embd, n_q, scale=3.0))
    add(f"blk.{i}.ffn_norm.weight", np.ones(n_embd, np.float32))
    add(f"blk.{i}.ffn_gate.weight", random(n_ff, n_embd, scale=2.0))
    add(f"blk.{i}.ffn_up.weight", random(n_ff, n_embd, scale=2.0))
    add(f"blk.{i}.ffn_down.weight", random(n_embd, n_ff, scale=2.0))


def llama(
    directory: Path,
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 4,
    n_ff: int = 128,
    n_vocab: int = 1024,
    n_ctx: int = 2048,
    dtype: str = "F32",
    template: str | None = CHAT_TEMPLATE,
    seed: int = 0,
) -> Path:
    """A llama; heads and sizes divide by 4, so it can be split over 2 or 4 devices. `dtype`: F32, F16, Q8_0, Q4_0."""
    options = {key: value for key, value in locals().items() if key != "directory"}

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_context_length(n_ctx)
        writer.add_embedding_length(n_embd)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(n_ff)
        writer.add_head_count(n_head)
        writer.add_head_count_kv(n_head_kv)
        writer.add_rope_dimension_count(n_embd // n_head)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(n_vocab)
        _add_tokenizer(writer, n_vocab)
        if template:
            writer.add_chat_template(template)
        _add_embeddings(add, random, n_vocab, n_embd)
        for i in range(n_layer):
            _add_decoder_layer(add, random, i, n_embd, n_ff, n_embd, n_embd // n_head * n_head_kv)

    return _build(directory, "llama", options, fill)


def draft(directory: Path, **options: Any) -> Path:
    """A draft model for `llama`: the same vocabulary, one layer."""
    return llama(directory, **{"n_layer": 1, "n_embd": 32, "n_ff": 64, "seed": 1, **options})


def lora(directory: Path, *, rank: int = 4, n_layer: int = 2, n_embd: int = 64, n_ff: int = 128, seed: int = 2) -> Path:
    """A LoRA adapter for a `llama` of these sizes, strong enough to change what it says."""
    options = {key: value for key, value in locals().items() if key != "directory"}

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(2 * rank))
        for i in range(n_layer):
            for name, rows, columns in (("attn_q", n_embd, n_embd), ("ffn_down", n_embd, n_ff)):
                add(f"blk.{i}.{name}.weight.lora_a", random(rank, columns))
                add(f"blk.{i}.{name}.weight.lora_b", random(rows, rank))

    return _build(directory / "lora", "llama", options, fill)


def gemma3(
    directory: Path, *, n_layer: int = 4, n_embd: int = 64, n_vocab: int = 1024, window: int = 32, seed: int = 0
) -> Path:
    """A gemma3: every second layer sees a sliding window of `window` tokens only."""
    options = {key: value for key, value in locals().items() if key != "directory"}
    n_ff, n_head, n_head_kv, head = 2 * n_embd, 4, 2, n_embd // 4

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_context_length(2048)
        writer.add_embedding_length(n_embd)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(n_ff)
        writer.add_head_count(n_head)
        writer.add_head_count_kv(n_head_kv)
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_sliding_window(window)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        _add_tokenizer(writer, n_vocab)
        writer.add_chat_template(CHAT_TEMPLATE)
        _add_embeddings(add, random, n_vocab, n_embd)
        for i in range(n_layer):
            _add_decoder_layer(add, random, i, n_embd, n_ff, n_embd, head * n_head_kv)
            for name, size in (
                ("attn_q_norm", head),
                ("attn_k_norm", head),
                ("post_attention_norm", n_embd),
                ("post_ffw_norm", n_embd),
            ):
                add(f"blk.{i}.{name}.weight", np.full(size, 2.0, np.float32))

    return _build(directory, "gemma3", options, fill)


def mamba(directory: Path, *, n_layer: int = 2, n_embd: int = 64, n_vocab: int = 1024, seed: int = 0) -> Path:
    """A mamba: a recurrent state instead of a KV cache."""
    options = {key: value for key, value in locals().items() if key != "directory"}
    d_inner, d_state, d_conv, rank = 2 * n_embd, 16, 4, n_embd // 16

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_context_length(2048)
        writer.add_embedding_length(n_embd)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(d_conv)
        writer.add_ssm_inner_size(d_inner)
        writer.add_ssm_state_size(d_state)
        writer.add_ssm_time_step_rank(rank)
        writer.add_layer_norm_rms_eps(1e-5)
        _add_tokenizer(writer, n_vocab)
        writer.add_chat_template(CHAT_TEMPLATE)
        _add_embeddings(add, random, n_vocab, n_embd)
        for i in range(n_layer):
            add(f"blk.{i}.attn_norm.weight", np.ones(n_embd, np.float32))
            add(f"blk.{i}.ssm_in.weight", random(2 * d_inner, n_embd, scale=2.0))
            add(f"blk.{i}.ssm_conv1d.weight", random(d_inner, d_conv, scale=2.0), keep=True)
            add(f"blk.{i}.ssm_conv1d.bias", np.zeros(d_inner, np.float32))
            add(f"blk.{i}.ssm_x.weight", random(rank + 2 * d_state, d_inner, scale=2.0))
            add(f"blk.{i}.ssm_dt.weight", random(d_inner, rank, scale=2.0))
            add(f"blk.{i}.ssm_dt.bias", np.zeros(d_inner, np.float32))
            decay = -np.arange(1, d_state + 1, dtype=np.float32) / d_state
            add(f"blk.{i}.ssm_a", np.tile(decay, (d_inner, 1)), keep=True)
            add(f"blk.{i}.ssm_d", np.ones(d_inner, np.float32))
            add(f"blk.{i}.ssm_out.weight", random(n_embd, d_inner, scale=2.0))

    return _build(directory, "mamba", options, fill)


def bert(
    directory: Path,
    *,
    pooling: str = "mean",
    n_layer: int = 2,
    n_embd: int = 64,
    n_vocab: int = 1024,
    n_ctx: int = 512,
    seed: int = 0,
) -> Path:
    """A bert that embeds; `pooling` is none, mean, cls, last or rank, and "rank" adds a classifier head that scores a pair."""
    options = {key: value for key, value in locals().items() if key != "directory"}
    n_ff = 2 * n_embd

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_context_length(n_ctx)
        writer.add_embedding_length(n_embd)
        writer.add_block_count(n_layer)
        writer.add_feed_forward_length(n_ff)
        writer.add_head_count(4)
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType[pooling.upper()])
        writer.add_token_type_count(2)
        _add_tokenizer(writer, n_vocab)
        writer.add_sep_token_id(EOS)
        zeros, ones = np.zeros(n_embd, np.float32), np.ones(n_embd, np.float32)

        def add_norm(name: str) -> None:
            add(f"{name}.weight", ones)
            add(f"{name}.bias", zeros)

        add("token_embd.weight", random(n_vocab, n_embd, scale=n_embd**0.5))
        add("token_types.weight", random(2, n_embd), keep=True)
        add("position_embd.weight", random(n_ctx, n_embd, scale=n_embd**0.5), keep=True)
        add_norm("token_embd_norm")
        for i in range(n_layer):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                add(f"blk.{i}.{name}.weight", random(n_embd, n_embd, scale=2.0))
                add(f"blk.{i}.{name}.bias", zeros)
            add_norm(f"blk.{i}.attn_output_norm")
            add(f"blk.{i}.ffn_up.weight", random(n_ff, n_embd, scale=2.0))
            add(f"blk.{i}.ffn_up.bias", np.zeros(n_ff, np.float32))
            add(f"blk.{i}.ffn_down.weight", random(n_embd, n_ff, scale=2.0))
            add(f"blk.{i}.ffn_down.bias", zeros)
            add_norm(f"blk.{i}.layer_output_norm")
        if pooling == "rank":
            add("cls.weight", random(n_embd, n_embd))
            add("cls.bias", zeros)
            add("cls.output.weight", random(1, n_embd))
            add("cls.output.bias", np.zeros(1, np.float32))

    return _build(directory, "bert", options, fill)


def rerank(directory: Path, **options: Any) -> Path:
    """A bert with a classifier head: it scores how well a document fits a query."""
    return bert(directory, pooling="rank", **options)


def mmproj(directory: Path, *, n_embd: int = 64, n_vision: int = 64, n_layer: int = 1, seed: int = 0) -> Path:
    """A vision projector for a text model with `n_embd` (Janus-Pro's kind, without tokens of its own): 16 embeddings an image."""
    options = {key: value for key, value in locals().items() if key != "directory"}
    size, patch = 64, 16

    def fill(writer: gguf.GGUFWriter, add: Add, random: Callable[..., Array]) -> None:
        writer.add_type(gguf.GGUFType.MMPROJ)
        writer.add_clip_has_vision_encoder(True)
        writer.add_clip_projector_type("janus_pro")
        writer.add_vision_projection_dim(n_embd)
        writer.add_vision_image_size(size)
        writer.add_vision_patch_size(patch)
        writer.add_vision_embedding_length(n_vision)
        writer.add_vision_feed_forward_length(2 * n_vision)
        writer.add_vision_block_count(n_layer)
        writer.add_vision_head_count(4)
        writer.add_vision_attention_layernorm_eps(1e-5)
        writer.add_vision_image_mean([0.5, 0.5, 0.5])
        writer.add_vision_image_std([0.5, 0.5, 0.5])
        writer.add_vision_use_gelu(True)
        ones, zeros = np.ones(n_vision, np.float32), np.zeros(n_vision, np.float32)
        patches = random(n_vision, 3 * patch * patch).reshape(n_vision, 3, patch, patch)
        add("v.patch_embd.weight", patches)
        add("v.patch_embd.bias", zeros)
        add("v.position_embd.weight", random((size // patch) ** 2, n_vision))
        for i in range(n_layer):
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                add(f"v.blk.{i}.{name}.weight", random(n_vision, n_vision))
                add(f"v.blk.{i}.{name}.bias", zeros)
            for name in ("ln1", "ln2"):
                add(f"v.blk.{i}.{name}.weight", ones)
                add(f"v.blk.{i}.{name}.bias", zeros)
            add(f"v.blk.{i}.ffn_up.weight", random(2 * n_vision, n_vision))
            add(f"v.blk.{i}.ffn_up.bias", np.zeros(2 * n_vision, np.float32))
            add(f"v.blk.{i}.ffn_down.weight", random(n_vision, 2 * n_vision))
            add(f"v.blk.{i}.ffn_down.bias", zeros)
        add("v.post_ln.weight", ones)
        add("v.post_ln.bias", zeros)
        add("mm.0.weight", random(n_embd, n_vision))
        add("mm.0.bias", np.zeros(n_embd, np.float32))
        add("mm.1.weight", random(n_embd, n_embd))
        add("mm.1.bias", np.zeros(n_embd, np.float32))

    return _build(directory, "clip", options, fill)
