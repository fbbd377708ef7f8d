// Models, contexts and sampling, with errors as results.

#include "guard.h"

#include "common.h"
#include "ggml-backend-lifecycle.h"
#include "ggml-backend.h"
#include "llama-model.h"

namespace {

bool interrupted(void *data) {
    auto *interrupt = static_cast<pyggml_interrupt *>(data);
    if (__atomic_load_n(&interrupt->requested, __ATOMIC_RELAXED) || stopped()) {
        return true;
    }
    const int64_t now = ggml_time_us();
    if (now < interrupt->next_us || !interrupt->poll) {
        return false;
    }
    interrupt->next_us = now + 20000;
    return interrupt->poll(interrupt->data);
}

enum pyggml_status decoded(int32_t result) {
    switch (result) {
    case 0:
        return PYGGML_OK;
    case 1:
        return fail(PYGGML_NO_SLOT, "the batch does not fit into what is left of the context");
    case 2:
        return fail(PYGGML_ABORTED, "aborted");
    case -2:
        return fail(PYGGML_NO_MEMORY, "no memory for the computation");
    case -1:
        return fail(PYGGML_INVALID, "its positions or sequences do not fit what is in the context");
    default:
        return fail(PYGGML_FAILED, "the computation failed with code " + std::to_string(result));
    }
}

} // namespace

void pyggml_interrupt_request(struct pyggml_interrupt *interrupt, bool requested) {
    __atomic_store_n(&interrupt->requested, requested ? 1 : 0, __ATOMIC_RELAXED);
}

size_t pyggml_backends_load(void) {
    ggml_backend_lifecycle_shared lifecycle;
    // without a CPU nothing can be loaded, whatever somebody registered by hand
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) || ggml_backend_unloaded_count() > 0) {
        guard([] {
            llama_backend_init();
            return PYGGML_OK;
        });
    }
    return ggml_backend_reg_count();
}

int pyggml_default_threads(void) {
    return common_cpu_get_num_math();
}

enum pyggml_status pyggml_model_load(const char *path, const struct llama_model_params *params,
                                     struct llama_model **model) {
    return guard([&] {
        // held from here on, so that the backends are still there when the model wants them
        ggml_backend_lifecycle_shared lifecycle;
        if (!params->vocab_only && pyggml_backends_load() == 0) {
            return fail(PYGGML_FAILED, "no backend could be loaded: the installation of pyggml is not complete");
        }
        bool cancelled = false;
        auto adjusted = *params;
        struct progress_t {
            const llama_model_params *params;
            bool *cancelled;
        } progress{params, &cancelled};
        if (params->progress_callback) {
            adjusted.progress_callback_user_data = &progress;
            adjusted.progress_callback = [](float done, void *data) {
                auto *self = static_cast<progress_t *>(data);
                const bool go_on =
                    !stopped() && self->params->progress_callback(done, self->params->progress_callback_user_data);
                *self->cancelled = *self->cancelled || !go_on;
                return go_on;
            };
        }
        *model = llama_model_load_from_file(path, adjusted);
        if (*model) {
            return PYGGML_OK;
        }
        return cancelled ? fail(PYGGML_CANCELLED, "cancelled") : fail(PYGGML_FAILED, "llama.cpp could not load it");
    });
}

int64_t pyggml_model_n_positions(const struct llama_model *model) {
    const auto *table = model->get_tensor("position_embd.weight");
    return table ? table->ne[1] : 0;
}

enum pyggml_status pyggml_lora_load(struct llama_model *model, const char *path, struct llama_adapter_lora **adapter) {
    return guard([&] {
        ggml_backend_lifecycle_shared lifecycle;
        *adapter = llama_adapter_lora_init(model, path);
        return *adapter ? PYGGML_OK : fail(PYGGML_FAILED, "llama.cpp could not load it");
    });
}

enum pyggml_status pyggml_lora_set(struct llama_context *context, struct llama_adapter_lora **adapters, size_t count,
                                   float *scales) {
    return guard([&] {
        return llama_set_adapters_lora(context, adapters, count, scales)
                   ? fail(PYGGML_FAILED, "the adapters do not fit")
                   : PYGGML_OK;
    });
}

enum pyggml_status pyggml_context_new(struct llama_model *model, const struct llama_context_params *params,
                                      struct pyggml_interrupt *interrupt, struct llama_context **context) {
    return guard([&] {
        auto adjusted = *params;
        adjusted.abort_callback = interrupted;
        adjusted.abort_callback_data = interrupt;
        *context = llama_init_from_model(model, adjusted);
        return *context ? PYGGML_OK : fail(PYGGML_FAILED, "llama.cpp could not create the context");
    });
}

enum pyggml_status pyggml_decode(struct llama_context *context, const struct llama_batch *batch) {
    return guard([&] {
        const auto status = decoded(llama_decode(context, *batch));
        if (status == PYGGML_OK) {
            llama_synchronize(context);
        }
        return status;
    });
}

enum pyggml_status pyggml_encode(struct llama_context *context, const struct llama_batch *batch) {
    return guard([&] {
        const auto status = decoded(llama_encode(context, *batch));
        if (status == PYGGML_OK) {
            llama_synchronize(context);
        }
        return status;
    });
}

enum pyggml_status pyggml_sample(struct llama_sampler *sampler, struct llama_context *context, int32_t index,
                                 llama_token *token) {
    return guard([&] {
        *token = llama_sampler_sample(sampler, context, index);
        return PYGGML_OK;
    });
}

enum pyggml_status pyggml_accept(struct llama_sampler *sampler, llama_token token) {
    return guard([&] {
        llama_sampler_accept(sampler, token);
        return PYGGML_OK;
    });
}

enum pyggml_status pyggml_tokenize(const struct llama_vocab *vocab, const char *text, int32_t length,
                                   llama_token *tokens, int32_t capacity, bool add_special, bool parse_special,
                                   int32_t *count) {
    return guard([&] {
        const int32_t result = llama_tokenize(vocab, text, length, tokens, capacity, add_special, parse_special);
        *count = result < 0 ? -result : result;
        if (result == INT32_MIN) {
            return fail(PYGGML_FAILED, "the text has too many tokens");
        }
        return result < 0 ? fail(PYGGML_NO_SLOT, "more tokens than room for them") : PYGGML_OK;
    });
}

template <typename Call> static size_t sized(Call call) {
    size_t size = 0;
    guard([&] {
        size = call();
        return size ? PYGGML_OK : fail(PYGGML_FAILED, "the state does not fit this context");
    });
    return size;
}

size_t pyggml_state_size(struct llama_context *context, llama_seq_id seq_id) {
    return sized(
        [&] { return seq_id < 0 ? llama_state_get_size(context) : llama_state_seq_get_size(context, seq_id); });
}

size_t pyggml_state_get(struct llama_context *context, uint8_t *data, size_t size, llama_seq_id seq_id) {
    return sized([&] {
        return seq_id < 0 ? llama_state_get_data(context, data, size)
                          : llama_state_seq_get_data(context, data, size, seq_id);
    });
}

size_t pyggml_state_set(struct llama_context *context, const uint8_t *data, size_t size, llama_seq_id seq_id) {
    return sized([&] {
        return seq_id < 0 ? llama_state_set_data(context, data, size)
                          : llama_state_seq_set_data(context, data, size, seq_id);
    });
}

enum pyggml_status pyggml_mtmd_memory_usage(const char *path, const struct mtmd_context_params *params,
                                            const ggml_backend_dev_t *devices, size_t *sizes, size_t count) {
    return guard([&] {
        const auto usage = mtmd_get_memory_usage(path, *params);
        for (size_t i = 0; i < count; i++) {
            const auto found = usage.find(devices[i]);
            sizes[i] = found == usage.end() ? 0 : found->second;
        }
        return PYGGML_OK;
    });
}
