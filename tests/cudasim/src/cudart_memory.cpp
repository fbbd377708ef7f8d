// Simulated libcudart: memory and copies.
#include "cudart.h"

using sim::Copy;
using sim::Kind;
using sim::Lock;
using sim::Status;

static Copy direction(cudaMemcpyKind kind) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return Copy::host_to_host;
    case cudaMemcpyHostToDevice:
        return Copy::host_to_device;
    case cudaMemcpyDeviceToHost:
        return Copy::device_to_host;
    case cudaMemcpyDeviceToDevice:
        return Copy::device_to_device;
    default:
        return Copy::any;
    }
}

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void **pointer, size_t size) {
    return result(sim::allocate(pointer, size, Kind::device_memory, "cudaMalloc"));
}

cudaError_t CUDARTAPI cudaMallocManaged(void **pointer, size_t size, unsigned) {
    return result(sim::allocate(pointer, size, Kind::managed_memory, "cudaMallocManaged"));
}

cudaError_t CUDARTAPI cudaMallocHost(void **pointer, size_t size) {
    return result(sim::allocate(pointer, size, Kind::pinned_memory, "cudaMallocHost"));
}

cudaError_t CUDARTAPI cudaHostAlloc(void **pointer, size_t size, unsigned) {
    return result(sim::allocate(pointer, size, Kind::pinned_memory, "cudaHostAlloc"));
}

cudaError_t CUDARTAPI cudaFree(void *pointer) {
    return result(sim::release(pointer, Kind::device_memory, "cudaFree"));
}
cudaError_t CUDARTAPI cudaFreeHost(void *pointer) {
    return result(sim::release(pointer, Kind::pinned_memory, "cudaFreeHost"));
}

cudaError_t CUDARTAPI cudaHostRegister(void *pointer, size_t size, unsigned) {
    return result(sim::register_host(pointer, size, "cudaHostRegister"));
}

cudaError_t CUDARTAPI cudaHostUnregister(void *pointer) {
    return result(sim::unregister_host(pointer, "cudaHostUnregister"));
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    Lock lock;
    *device = host;
    return result(sim::check_range(host, 1, true, "cudaHostGetDevicePointer"));
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t *free, size_t *total) {
    Lock lock;
    if (Status s = sim::use_context("cudaMemGetInfo"); s != Status::ok)
        return result(s);
    *free = sim::free_memory(sim::current_device());
    *total = sim::device_config(sim::current_device()).memory;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    Lock lock;
    Kind kind;
    *attributes = {};
    const int device = sim::memory_device(pointer, &kind);
    attributes->device = device < 0 ? cudaInvalidDeviceId : device;
    if (device < 0)
        return cudaSuccess; // cudaMemoryTypeUnregistered
    const bool host = kind == Kind::pinned_memory || kind == Kind::host_registration;
    attributes->type = host                           ? cudaMemoryTypeHost
                       : kind == Kind::managed_memory ? cudaMemoryTypeManaged
                                                      : cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void *>(pointer);
    if (attributes->type != cudaMemoryTypeDevice)
        attributes->hostPointer = const_cast<void *>(pointer);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
    return result(sim::copy(to, from, size, direction(kind), stream, "cudaMemcpyAsync"));
}

cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    return result(sim::copy(to, from, size, direction(kind), nullptr, "cudaMemcpy"));
}

cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                          cudaStream_t stream) {
    return result(sim::copy_peer(to, to_device, from, from_device, size, stream, "cudaMemcpyPeerAsync"));
}

cudaError_t CUDARTAPI cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size) {
    return result(sim::copy_peer(to, to_device, from, from_device, size, nullptr, "cudaMemcpyPeer"));
}

cudaError_t CUDARTAPI cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                        size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return result(
        sim::copy_2d(to, to_pitch, from, from_pitch, width, height, direction(kind), stream, "cudaMemcpy2DAsync"));
}

cudaError_t CUDARTAPI cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                   size_t height, cudaMemcpyKind kind) {
    return result(
        sim::copy_2d(to, to_pitch, from, from_pitch, width, height, direction(kind), nullptr, "cudaMemcpy2D"));
}

cudaError_t CUDARTAPI cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream) {
    return result(sim::fill(pointer, value, size, stream, "cudaMemsetAsync"));
}

cudaError_t CUDARTAPI cudaMemset(void *pointer, int value, size_t size) {
    return result(sim::fill(pointer, value, size, nullptr, "cudaMemset"));
}

cudaError_t CUDARTAPI cudaMemAdvise(const void *pointer, size_t size, cudaMemoryAdvise, cudaMemLocation) {
    return result(sim::check_range(pointer, size, true, "cudaMemAdvise"));
}
}
