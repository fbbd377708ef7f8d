// Simulated libcudart: devices, contexts, errors.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "cudart.h"
#include "shared.h"

using sim::Lock;
using sim::Status;

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(Status status) {
    const auto error = static_cast<cudaError_t>(status);
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

// Needs no context: the index alone must be right.
static Status known_device(int device) {
    if (!sim::device_count())
        return Status::no_device;
    return device >= 0 && device < sim::device_count() ? Status::ok : Status::invalid_device;
}

static int attribute(cudaDeviceAttr attribute, int device) {
    const sim::DeviceConfig &config = sim::device_config(device);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        return config.cc / 10;
    case cudaDevAttrComputeCapabilityMinor:
        return config.cc % 10;
    case cudaDevAttrWarpSize:
        return 32;
    case cudaDevAttrMultiProcessorCount:
        return 20;
    case cudaDevAttrMaxThreadsPerBlock:
        return 1024;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        return 1024;
    case cudaDevAttrMaxBlockDimZ:
        return 64;
    case cudaDevAttrMaxGridDimX:
        return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        return 65535;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return 2048;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return 48 * 1024;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return config.shared_opt_in;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return config.shared_per_sm;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        return 65536;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCanMapHostMemory:
        return 1;
    case cudaDevAttrPciBusId:
        return sim::pci_bus(sim::physical(device));
    default:
        return 0;
    }
}

extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int *count) {
    *count = sim::device_count();
    return result(*count ? Status::ok : Status::no_device);
}

cudaError_t CUDARTAPI cudaGetDevice(int *device) {
    *device = sim::current_device();
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
    Lock lock;
    return result(sim::set_device(device, "cudaSetDevice"));
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned flags, unsigned) {
    Lock lock;
    const Status s = sim::create_context(device, "cudaInitDevice");
    if (s == Status::ok) {
        sim::context(device).flags = flags;
        sim::context(device).runtime = true;
    }
    return result(s);
}

cudaError_t CUDARTAPI cudaSetDeviceFlags(unsigned flags) {
    Lock lock;
    const Status s = sim::use_context("cudaSetDeviceFlags");
    if (s == Status::ok)
        sim::context(sim::current_device()).flags = flags;
    return result(s);
}

cudaError_t CUDARTAPI cudaGetDeviceFlags(unsigned *flags) {
    Lock lock;
    const Status s = sim::use_context("cudaGetDeviceFlags");
    if (s == Status::ok)
        *flags = sim::context(sim::current_device()).flags;
    return result(s);
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
    Lock lock;
    return result(sim::use_context("cudaDeviceSynchronize"));
}

cudaError_t CUDARTAPI cudaDeviceReset() {
    Lock lock;
    return result(sim::reset_device(sim::current_device(), "cudaDeviceReset"));
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    for (int d : {device, peer})
        if (Status s = known_device(d); s != Status::ok)
            return result(s);
    *can = sim::can_access_peer(device, peer);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned) {
    Lock lock;
    return result(sim::enable_peer(peer, "cudaDeviceEnablePeerAccess"));
}

cudaError_t CUDARTAPI cudaDeviceDisablePeerAccess(int peer) {
    Lock lock;
    return result(sim::disable_peer(peer, "cudaDeviceDisablePeerAccess"));
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *text, int size, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    snprintf(text, size, "0000:%02X:00.0", sim::pci_bus(sim::physical(device)));
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetByPCIBusId(int *device, const char *text) {
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2)
        return result(Status::invalid_value);
    for (int d = 0; d < sim::device_count(); d++) {
        if (sim::pci_bus(sim::physical(d)) != static_cast<int>(bus))
            continue;
        *device = d;
        return cudaSuccess;
    }
    return result(Status::invalid_device);
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    *value = attribute(what, device);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    const sim::DeviceConfig &config = sim::device_config(device);
    *p = {};
    snprintf(p->name, sizeof p->name, "%s", sim::device_name(sim::physical(device)).c_str());
    unsigned char uuid[16];
    sim::device_uuid(sim::physical(device), uuid);
    memcpy(p->uuid.bytes, uuid, sizeof uuid);
    p->totalGlobalMem = config.memory;
    p->major = config.cc / 10;
    p->minor = config.cc % 10;
    p->multiProcessorCount = 20;
    p->warpSize = 32;
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = config.shared_opt_in;
    p->sharedMemPerMultiprocessor = config.shared_per_sm;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->canMapHostMemory = p->unifiedAddressing = p->managedMemory = p->cooperativeLaunch = p->concurrentKernels = 1;
    p->pciBusID = sim::pci_bus(sim::physical(device));
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError() {
    return last_error;
}
const char *CUDARTAPI cudaGetErrorString(cudaError_t error) {
    return sim::status_name(static_cast<Status>(error));
}
const char *CUDARTAPI cudaGetErrorName(cudaError_t error) {
    return sim::status_name(static_cast<Status>(error));
}

// Driver functions are looked up in the simulated libcuda; the newest variant of a name carries a suffix there.
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                                       unsigned long long, cudaDriverEntryPointQueryResult *found) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *function = nullptr;
    for (const char *suffix : {"_v2", ""})
        if (driver && !*function)
            *function = dlsym(driver, (std::string(symbol) + suffix).c_str());
    if (found)
        *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                              cudaDriverEntryPointQueryResult *found) {
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, found);
}
}
