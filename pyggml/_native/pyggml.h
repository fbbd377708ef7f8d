#pragma once

// The C interface of our shim. No C++ exception leaves it: a function that fails says so by its result, and
// pyggml_error() says why. Unless stated otherwise a function may be called from any thread, but an object by one
// thread at a time.

#include "gguf_check.h"
#include "llama.h"
#include "mtmd.h"

#ifdef __cplusplus
extern "C" {
#endif

enum pyggml_status {
    PYGGML_OK = 0,
    PYGGML_FAILED = 1,    // see pyggml_error()
    PYGGML_NO_MEMORY = 2, // of a device or of the host
    PYGGML_NO_SLOT = 3,   // the batch does not fit into what is left of the context
    PYGGML_ABORTED = 4,   // the interrupt asked for it
    PYGGML_CANCELLED = 5, // the progress callback asked for it
    PYGGML_INVALID = 6,   // the batch contradicts itself or what is in the context
};

// Why the last call of this thread failed, with the warnings and errors that were logged meanwhile. Valid until its
// next call.
PYGGML_API const char *pyggml_error(void);
// Takes over the log and the abort handler of ggml and llama.cpp. Once per process, before anything else.
PYGGML_API void pyggml_start(void);
// Before the process ends: loads and decodes that run end soon, as if they were cancelled, and no callback is called
// any more.
PYGGML_API void pyggml_stop(void);

// -- log.cpp
// ---------------------------------------------------------------------------------------------------------------

typedef void (*pyggml_log_sink)(int level, char *text);
// Lines of at least this ggml_log_level go to the sink, from whatever thread logs them; the others cost next to
// nothing.
PYGGML_API void pyggml_log_set(pyggml_log_sink sink, int level);

// -- pyggml.cpp
// ------------------------------------------------------------------------------------------------------------

// Where a running decode asks whether it should end. `poll` is called about 50 times a second, by the thread that
// decodes.
struct pyggml_interrupt {
    bool (*poll)(void *data);
    void *data;
    int64_t next_us;
    int32_t requested; // set by anyone, through pyggml_interrupt_request()
};
PYGGML_API void pyggml_interrupt_request(struct pyggml_interrupt *interrupt, bool requested);

// Loads the backends that are not loaded. Returns how many are.
PYGGML_API size_t pyggml_backends_load(void);
// A count of physical cores, as llama.cpp takes for its threads.
PYGGML_API int pyggml_default_threads(void);
PYGGML_API enum pyggml_status pyggml_model_load(const char *path, const struct llama_model_params *params,
                                                struct llama_model **model);
// How many positions the model has learned a vector for; upstream reads beyond their table. 0: it computes them,
// without a limit.
PYGGML_API int64_t pyggml_model_n_positions(const struct llama_model *model);
PYGGML_API enum pyggml_status pyggml_lora_load(struct llama_model *model, const char *path,
                                               struct llama_adapter_lora **adapter);
PYGGML_API enum pyggml_status pyggml_lora_set(struct llama_context *context, struct llama_adapter_lora **adapters,
                                              size_t count, float *scales);
// `interrupt` must outlive the context.
PYGGML_API enum pyggml_status pyggml_context_new(struct llama_model *model, const struct llama_context_params *params,
                                                 struct pyggml_interrupt *interrupt, struct llama_context **context);
PYGGML_API enum pyggml_status pyggml_decode(struct llama_context *context, const struct llama_batch *batch);
PYGGML_API enum pyggml_status pyggml_encode(struct llama_context *context, const struct llama_batch *batch);
// Samples from output `index` and accepts the token.
PYGGML_API enum pyggml_status pyggml_sample(struct llama_sampler *sampler, struct llama_context *context, int32_t index,
                                            llama_token *token);
PYGGML_API enum pyggml_status pyggml_accept(struct llama_sampler *sampler, llama_token token);
// Refuses what llama.cpp cannot take: errors, left recursion, and what would exhaust stack, memory or patience.
PYGGML_API enum pyggml_status pyggml_grammar_new(const struct llama_vocab *vocab, const char *grammar, const char *root,
                                                 struct llama_sampler **sampler);
// As llama_tokenize(); `count` is what is needed where `capacity` is too small (then PYGGML_NO_SLOT).
PYGGML_API enum pyggml_status pyggml_tokenize(const struct llama_vocab *vocab, const char *text, int32_t length,
                                              llama_token *tokens, int32_t capacity, bool add_special,
                                              bool parse_special, int32_t *count);
// Bytes written or read; `seq_id` -1 is the whole context. The state is in memory; 0 with pyggml_error() when it does
// not fit.
PYGGML_API size_t pyggml_state_size(struct llama_context *context, llama_seq_id seq_id);
PYGGML_API size_t pyggml_state_get(struct llama_context *context, uint8_t *data, size_t size, llama_seq_id seq_id);
PYGGML_API size_t pyggml_state_set(struct llama_context *context, const uint8_t *data, size_t size,
                                   llama_seq_id seq_id);

// Bytes that a projector file would take on each of `devices` (a list of `count`), into `sizes`. For
// mtmd_get_memory_usage(), which is C++.
PYGGML_API enum pyggml_status pyggml_mtmd_memory_usage(const char *path, const struct mtmd_context_params *params,
                                                       const ggml_backend_dev_t *devices, size_t *sizes, size_t count);

// -- chat.cpp
// --------------------------------------------------------------------------------------------------------------

struct pyggml_chat;
// The chat template of a model, or `source` if it is not NULL. Without one in the model upstream's default (ChatML) is
// used.
PYGGML_API enum pyggml_status pyggml_chat_new(const struct llama_model *model, const char *source,
                                              struct pyggml_chat **chat);
PYGGML_API void pyggml_chat_free(struct pyggml_chat *chat);
// `request` is JSON: messages, tools, add_generation_prompt, enable_thinking, kwargs. The prompt is valid until the
// next call on `chat`.
PYGGML_API enum pyggml_status pyggml_chat_render(struct pyggml_chat *chat, const char *request, const char **prompt,
                                                 size_t *length);

#ifdef __cplusplus
}
#endif
