#pragma once

// Giving a device back (a reset of its primary context) and using it again afterwards: the call sites are in the patch,
// the reasons in docs/teardown.md.

#include "ggml-backend-lifecycle.h"
#include "ggml-cuda-state.h"
#include "ggml-cuda.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

// By physical device: 1 at first, one more after each reset. It only changes while the device has no object, so code
// that works for a backend, a buffer, ... sees one value.
extern std::atomic<uint32_t> ggml_cuda_generation[GGML_CUDA_MAX_DEVICES];

// "Done on this device" for what a reset undoes: reads as false again in the next generation.
class ggml_cuda_generation_flags {
    std::atomic<uint32_t> done_in[GGML_CUDA_MAX_DEVICES] = {};

    struct flag {
        std::atomic<uint32_t> &done_in;
        const uint32_t generation;

        operator bool() const { return done_in.load(std::memory_order_acquire) == generation; }
        void operator=(bool done) { done_in.store(done ? generation : 0, std::memory_order_release); }
    };

  public:
    flag operator[](int physical_device) {
        return {done_in[physical_device], ggml_cuda_generation[physical_device].load(std::memory_order_relaxed)};
    }
};

// Count an object before it is made and drop it after it is gone, so that no reset can fall between. The first object
// of a generation makes the device ready (flags, peers). False: the device cannot be used, nothing was counted.
bool ggml_cuda_acquire(enum ggml_backend_cuda_object kind, int device);
void ggml_cuda_release(enum ggml_backend_cuda_object kind, int device);

// Pinned host memory belongs to the context that is current when it is made. These count it there, and make that
// context current again to free it: the runtime would otherwise create one on whatever device the calling thread has.
cudaError_t ggml_cuda_malloc_host(void **ptr, size_t size);
cudaError_t ggml_cuda_free_host(void *ptr);
cudaError_t ggml_cuda_host_register(void *ptr, size_t size, unsigned int flags);
cudaError_t ggml_cuda_host_unregister(void *ptr);

// Memory of a physical device, both in bytes; never creates a context.
cudaError_t ggml_cuda_memory(int physical_device, size_t *free, size_t *total);
void ggml_cuda_memory_without_context(int physical_device, size_t *free, size_t *total);

// ggml_backend_reg_i.free and the function behind ggml_backend_cuda_device_state
bool ggml_backend_cuda_reg_free(ggml_backend_reg_t reg, int device);
bool ggml_backend_cuda_device_state(int device, struct ggml_backend_cuda_device_state *state);
// the same in the words that every backend with a hook uses, see ggml-backend-lifecycle.h
bool ggml_backend_cuda_reg_device_state(ggml_backend_reg_t reg, int device, struct ggml_backend_device_state *state);

// No memory while a graph is computed: throw std::bad_alloc out of it, and bring the backend into a usable state again.
struct ggml_backend_cuda_context;
[[noreturn]] void ggml_cuda_throw_out_of_memory(int device, size_t size);
void ggml_cuda_abandon_graph(ggml_backend_cuda_context &ctx, bool capturing, const void *graph_key);

// upstream's own lock against cuBLAS calls during a graph capture, and the number of captures that run
extern std::mutex ggml_cuda_lock;
extern std::condition_variable ggml_cuda_lock_cv;
extern std::atomic<int> ggml_cuda_lock_counter;
