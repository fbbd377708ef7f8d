// Simulated libcuda.so.1: the part of the driver API that ggml-cuda, the runtime's entry points and Python bindings
// use.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "core.h"

using sim::Lock;
using sim::Status;

static_assert(static_cast<int>(Status::out_of_memory) == CUDA_ERROR_OUT_OF_MEMORY, "status numbers");
static_assert(static_cast<int>(Status::invalid_context) == CUDA_ERROR_INVALID_CONTEXT, "status numbers");
static_assert(static_cast<int>(Status::not_initialized) == CUDA_ERROR_NOT_INITIALIZED, "status numbers");

static CUresult result(Status status) {
    return static_cast<CUresult>(status);
}

static Status known_device(int device) {
    if (!sim::device_count())
        return Status::no_device;
    return device >= 0 && device < sim::device_count() ? Status::ok : Status::invalid_device;
}

// A context handle names its device and generation, so that a stale one is recognised.
static CUcontext handle_of(int device) {
    return reinterpret_cast<CUcontext>(uintptr_t(0xc7) << 40 | uintptr_t(device) << 32 |
                                       (sim::context(device).generation & 0xffffffff));
}

static Status device_of(CUcontext handle, int *device, const char *api) {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    *device = static_cast<int>(bits >> 32 & 0xff);
    if (bits >> 40 != 0xc7 || known_device(*device) != Status::ok)
        return fault(sim::FaultClass::misuse, "context", api, Status::invalid_context, "%p is no context",
                     static_cast<void *>(handle));
    if (!sim::context_alive(*device, bits & 0xffffffff))
        return fault(sim::FaultClass::stale, "context", api, Status::invalid_context, "%p of device %d is gone",
                     static_cast<void *>(handle), *device);
    return Status::ok;
}

extern "C" {

CUresult CUDAAPI cuInit(unsigned) {
    return result(sim::device_count() ? Status::ok : Status::no_device);
}

CUresult CUDAAPI cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
    *text = sim::status_name(static_cast<Status>(error));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
    return cuGetErrorString(error, text);
}

CUresult CUDAAPI cuDeviceGetCount(int *count) {
    *count = sim::device_count();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return result(known_device(ordinal));
}

CUresult CUDAAPI cuDeviceGetName(char *name, int size, CUdevice device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    snprintf(name, size, "%s", sim::device_name(sim::physical(device)).c_str());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    unsigned char bytes[16];
    sim::device_uuid(sim::physical(device), bytes);
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    snprintf(text, size, "0000:%02X:00.0", sim::pci_bus(sim::physical(device)));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    *bytes = sim::device_config(device).memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    const sim::DeviceConfig &config = sim::device_config(device);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = sim::config().vmm;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = config.cc / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = config.cc % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = sim::pci_bus(sim::physical(device));
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    Lock lock;
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    *flags = sim::context(device).flags;
    *active = sim::context(device).active;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    Lock lock;
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    sim::context(device).flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device) {
    Lock lock;
    const Status s = sim::retain_context(device, "cuDevicePrimaryCtxRetain");
    if (s == Status::ok)
        *handle = handle_of(device);
    return result(s);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    Lock lock;
    return result(sim::release_context(device, "cuDevicePrimaryCtxRelease"));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
    Lock lock;
    return result(sim::reset_device(device, "cuDevicePrimaryCtxReset"));
}

// The current context of a thread is the primary one of its current device, as far as that is active.
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *handle) {
    Lock lock;
    const int device = sim::current_device();
    *handle = sim::device_count() && sim::context(device).active ? handle_of(device) : nullptr;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    Lock lock;
    if (!handle)
        return CUDA_SUCCESS;
    int device = 0;
    const Status s = device_of(handle, &device, "cuCtxSetCurrent");
    if (s == Status::ok)
        sim::set_current_device(device);
    return result(s);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
    Lock lock;
    *device = sim::current_device();
    return result(sim::device_count() && sim::context(*device).active ? Status::ok : Status::invalid_context);
}

CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total) {
    Lock lock;
    const int device = sim::current_device();
    if (!sim::device_count() || !sim::context(device).active)
        return CUDA_ERROR_INVALID_CONTEXT;
    *free = sim::free_memory(device);
    *total = sim::device_config(device).memory;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *,
                                               CUmemAllocationGranularity_flags) {
    *granularity = 2u << 20;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                             unsigned long long) {
    uint64_t value = 0;
    const Status s = sim::vmm_create(&value, size, properties->location.id, "cuMemCreate");
    *handle = value;
    return result(s);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    return result(sim::vmm_release(handle, "cuMemRelease"));
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t, CUdeviceptr, unsigned long long) {
    void *p = nullptr;
    const Status s = sim::vmm_reserve(&p, size, "cuMemAddressReserve");
    *pointer = reinterpret_cast<CUdeviceptr>(p);
    return result(s);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    return result(sim::vmm_unreserve(reinterpret_cast<void *>(pointer), size, "cuMemAddressFree"));
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long) {
    return result(sim::vmm_map(reinterpret_cast<void *>(pointer), size, offset, handle, "cuMemMap"));
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size) {
    return result(sim::vmm_unmap(reinterpret_cast<void *>(pointer), size, "cuMemUnmap"));
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) {
    std::vector<int> devices;
    for (size_t i = 0; i < count; i++)
        devices.push_back(access[i].location.id);
    return result(sim::vmm_set_access(reinterpret_cast<void *>(pointer), size, devices, "cuMemSetAccess"));
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int, cuuint64_t,
                                  CUdriverProcAddressQueryResult *found) {
    Dl_info self;
    void *library =
        dladdr(reinterpret_cast<void *>(&cuInit), &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    *function = nullptr;
    for (const char *suffix : {"_v2", ""})
        if (library && !*function)
            *function = dlsym(library, (std::string(symbol) + suffix).c_str());
    if (found)
        *found = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
}
