// Pinned host memory: which context it belongs to is known from its address only.

#include "counting.cuh"

#include <map>

namespace {

struct owner_map {
    std::mutex mutex;
    std::map<std::pair<int, void *>, int> devices; // (kind, address) -> physical device
};

owner_map &owners() {
    static auto *instance = new owner_map; // never destroyed: exit handlers of others may still free memory
    return *instance;
}

// the context of pinned memory is that of the calling thread's current device
template <typename Make> cudaError_t make_host(enum ggml_backend_cuda_object kind, void **ptr, const Make &make) {
    const int device = ggml_cuda_current_device();
    if (!ggml_cuda_acquire_physical(kind, device)) {
        return cudaErrorMemoryAllocation;
    }
    const cudaError_t err = make();
    if (err != cudaSuccess) {
        ggml_cuda_release_physical(kind, device);
        return err;
    }
    std::lock_guard<std::mutex> lock(owners().mutex);
    owners().devices[{kind, *ptr}] = device;
    return cudaSuccess;
}

template <typename Free> cudaError_t free_host(enum ggml_backend_cuda_object kind, void *ptr, const Free &free) {
    int device = -1;
    {
        std::lock_guard<std::mutex> lock(owners().mutex);
        const auto it = owners().devices.find({kind, ptr});
        if (it == owners().devices.end()) {
            return free(); // not ours: let the runtime say what it is
        }
        device = it->second;
        owners().devices.erase(it); // before the address can be given to somebody else
    }
    if (ggml_cuda_current_device() != device) {
        (void)cudaSetDevice(device);
    }
    const cudaError_t err = free();
    ggml_cuda_release_physical(kind, device);
    return err;
}

} // namespace

cudaError_t ggml_cuda_malloc_host(void **ptr, size_t size) {
    return make_host(GGML_BACKEND_CUDA_HOST_BUFFER, ptr, [&] { return cudaMallocHost(ptr, size); });
}

cudaError_t ggml_cuda_free_host(void *ptr) {
    return free_host(GGML_BACKEND_CUDA_HOST_BUFFER, ptr, [&] { return cudaFreeHost(ptr); });
}

cudaError_t ggml_cuda_host_register(void *ptr, size_t size, unsigned int flags) {
    return make_host(GGML_BACKEND_CUDA_HOST_REGISTRATION, &ptr, [&] { return cudaHostRegister(ptr, size, flags); });
}

cudaError_t ggml_cuda_host_unregister(void *ptr) {
    return free_host(GGML_BACKEND_CUDA_HOST_REGISTRATION, ptr, [&] { return cudaHostUnregister(ptr); });
}
