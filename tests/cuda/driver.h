#pragma once

// What the drivers of the CUDA suite share: the backend under test, the model, and reports as lines of JSON.

#include "ggml-backend-lifecycle.h"
#include "ggml-cuda-state.h"
#include "llama.h"

#include "cudasim.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// of the simulated runtime; its headers are not needed for these
extern "C" {
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaGetDeviceCount(int *count);
int cudaDeviceReset(void);
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
}

inline void only_warnings(ggml_log_level level, const char *text, void *) {
    static bool shown = false; // a continuation belongs to the line before it
    if (level != GGML_LOG_LEVEL_CONT) {
        shown = level >= GGML_LOG_LEVEL_WARN || getenv("VERBOSE");
    }
    if (shown) {
        fputs(text, stderr);
    }
}

inline std::string report() {
    std::string text(cudasim_report(nullptr, 0) + 4096, '\0');
    text.resize(cudasim_report(text.data(), text.size()));
    return text;
}

// {"at": label, ...fields, "report": {...}}
inline void say(const char *label, const std::string &fields = "") {
    printf("{\"at\": \"%s\"%s%s, \"report\": %s}\n", label, fields.empty() ? "" : ", ", fields.c_str(),
           report().c_str());
    fflush(stdout);
}

inline std::string field(const char *name, long value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value);
}

inline ggml_backend_reg_t load(const char *backend) {
    ggml_backend_reg_t reg = ggml_backend_load(backend);
    if (!reg) {
        fprintf(stderr, "%s cannot be loaded\n", backend);
        exit(2);
    }
    return reg;
}

// Give the whole backend back. The unpatched library has no hook: there the devices are reset behind its back, which is
// what it was reverted for upstream.
inline bool give_back(ggml_backend_reg_t reg) {
    if (ggml_backend_reg_can_free(reg)) {
        return ggml_backend_unload(reg);
    }
    int devices = 0;
    cudaGetDeviceCount(&devices);
    for (int id = 0; id < devices; id++) {
        cudaSetDevice(id);
        cudaDeviceReset();
    }
    return true;
}

inline ggml_backend_cuda_device_state device_state(ggml_backend_reg_t reg, int device) {
    ggml_backend_cuda_device_state state = {};
    auto get =
        (ggml_backend_cuda_device_state_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_cuda_device_state");
    if (!get || !get(device, &state)) {
        state.context_active = -2;
    }
    return state;
}

struct model_run {
    llama_model *model = nullptr;
    llama_context *context = nullptr;

    // on these devices (all of them if none is named)
    bool load(const char *path, llama_split_mode split, std::vector<ggml_backend_dev_t> devices = {}) {
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = 99;
        params.split_mode = split;
        devices.push_back(nullptr);
        if (devices.size() > 1) {
            params.devices = devices.data();
        }
        model = llama_model_load_from_file(path, params);
        return model != nullptr;
    }

    bool start(bool flash_attention = true) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx = 1024;
        params.n_batch = params.n_ubatch = 512;
        params.n_threads = params.n_threads_batch = 1;
        params.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        context = llama_init_from_model(model, params);
        return context != nullptr;
    }

    int decode(int n, int first = 10) {
        std::vector<llama_token> tokens(n);
        for (int i = 0; i < n; i++) {
            tokens[i] = first + i;
        }
        return llama_decode(context, llama_batch_get_one(tokens.data(), n));
    }

    // a prefill of 520 tokens in two batches, then single tokens: CUDA graphs are captured at the third and launched
    // after
    int generate() {
        llama_memory_clear(llama_get_memory(context), false);
        int error = decode(512);
        error = error ? error : decode(8);
        for (int i = 0; i < 8 && !error; i++) {
            error = decode(1, 40 + i);
        }
        return error;
    }

    void close() {
        llama_free(context);
        llama_model_free(model);
        *this = {};
    }
};

inline const char *backend_path, *model_path;

inline std::string state_fields(ggml_backend_reg_t reg, int device) {
    const auto s = device_state(reg, device);
    std::string live;
    for (int n : s.live) {
        live += (live.empty() ? "" : ", ") + std::to_string(n);
    }
    return field("generation", s.generation) + ", " + field("in_use", s.in_use) + ", " +
           field("active", s.context_active) + ", " + field("foreign", s.foreign_context) + ", " +
           field("reset_error", s.reset_error) + ", \"live\": [" + live + "]";
}

inline void say_state(const char *label, ggml_backend_reg_t reg, int device, int ok = -1) {
    say(label, (ok < 0 ? "" : field("ok", ok) + ", ") + state_fields(reg, device));
}

// BACKEND MODEL SCENARIO
inline int run_scenario(int argc, char **argv, const std::map<std::string, void (*)(ggml_backend_reg_t)> &scenarios) {
    const auto scenario = argc == 4 ? scenarios.find(argv[3]) : scenarios.end();
    if (scenario == scenarios.end()) {
        return 2;
    }
    backend_path = argv[1];
    model_path = argv[2];
    llama_log_set(only_warnings, nullptr);
    llama_backend_init(); // the CPU backend, from its own directory
    scenario->second(load(backend_path));
    say("end");
    return 0;
}
