#pragma once

// What can be asked about a device of the CUDA, HIP or MUSA backend without touching it. Plain C, so that a binding can
// declare it; the function is found by ggml_backend_reg_get_proc_address(reg, "ggml_backend_cuda_device_state").

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// what is counted, because a device reset would destroy it under its owner
enum ggml_backend_cuda_object {
    GGML_BACKEND_CUDA_BACKEND,
    GGML_BACKEND_CUDA_DEVICE_BUFFER,
    GGML_BACKEND_CUDA_HOST_BUFFER,
    GGML_BACKEND_CUDA_HOST_REGISTRATION,
    GGML_BACKEND_CUDA_EVENT,
    GGML_BACKEND_CUDA_COMMUNICATOR,
    GGML_BACKEND_CUDA_OBJECT_COUNT,
};

// All figures are those of the physical device; virtual devices that share it see the same ones.
struct ggml_backend_cuda_device_state {
    int32_t physical_device;
    uint32_t generation; // 1 at first, one more after each reset
    int32_t in_use;      // 1 since its first object of this generation
    int32_t
        context_active; // 1: this process has a primary context on it, 0: it has none, -1: cannot be known (HIP, MUSA)
    int32_t foreign_context; // 1: a primary context was there before our first use, 0: not, -1: cannot be known
    int32_t reset_error;     // what the last reset returned (cudaError_t), 0 when it went well or never ran
    int32_t live[GGML_BACKEND_CUDA_OBJECT_COUNT];
};

// false: there is no such device
typedef bool (*ggml_backend_cuda_device_state_t)(int device, struct ggml_backend_cuda_device_state *state);

#ifdef __cplusplus
}
#endif
