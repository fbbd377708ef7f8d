// Simulated libamdhip64: devices, contexts, errors. A device counts as active once memory, a stream or a kernel needed
// it: hipSetDevice alone does not (assumed, see the README).
#include <cstdio>
#include <cstdlib>

#include "hip.h"

using sim::Lock;
using sim::Status;

[[gnu::constructor]] static void choose_flavour() {
    sim::set_hip();
}

static thread_local hipError_t last_error = hipSuccess;

hipError_t result(Status status) {
    const auto error = static_cast<hipError_t>(status);
    if (error != hipSuccess)
        last_error = error;
    return error;
}

static Status known_device(int device) {
    if (!sim::device_count())
        return Status::no_device;
    return device >= 0 && device < sim::device_count() ? Status::ok : Status::invalid_device;
}

extern "C" {

hipError_t hipInit(unsigned) {
    return result(sim::device_count() ? Status::ok : Status::no_device);
}

hipError_t hipGetDeviceCount(int *count) {
    *count = sim::device_count();
    return result(*count ? Status::ok : Status::no_device);
}

hipError_t hipGetDevice(int *device) {
    *device = sim::current_device();
    return hipSuccess;
}

hipError_t hipSetDevice(int device) {
    Lock lock;
    const Status s = sim::check_device(device);
    if (s == Status::ok)
        sim::set_current_device(device);
    return result(s);
}

hipError_t hipSetDeviceFlags(unsigned flags) {
    Lock lock;
    const Status s = sim::check_device(sim::current_device());
    if (s == Status::ok)
        sim::context(sim::current_device()).flags = flags;
    return result(s);
}

hipError_t hipDeviceSynchronize() {
    Lock lock;
    return result(sim::check_device(sim::current_device()));
}

hipError_t hipDeviceReset() {
    Lock lock;
    return result(sim::reset_device(sim::current_device(), "hipDeviceReset"));
}

hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned *flags, int *active) {
    Lock lock;
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    if (flags)
        *flags = 0;
    if (active)
        *active = sim::context(device).active;
    return hipSuccess;
}

hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer) {
    for (int d : {device, peer})
        if (Status s = known_device(d); s != Status::ok)
            return result(s);
    *can = sim::can_access_peer(device, peer);
    return hipSuccess;
}

hipError_t hipDeviceEnablePeerAccess(int peer, unsigned) {
    Lock lock;
    return result(sim::enable_peer(peer, "hipDeviceEnablePeerAccess"));
}

hipError_t hipDeviceDisablePeerAccess(int peer) {
    Lock lock;
    return result(sim::disable_peer(peer, "hipDeviceDisablePeerAccess"));
}

hipError_t hipDeviceGet(hipDevice_t *device, int ordinal) {
    *device = ordinal;
    return result(known_device(ordinal));
}

hipError_t hipDeviceGetPCIBusId(char *text, int size, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    snprintf(text, size, "0000:%02x:00.0", sim::pci_bus(sim::physical(device)));
    return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    switch (attribute) {
    case hipDeviceAttributeCooperativeLaunch:
        *value = 1;
        break;
    case hipDeviceAttributeWarpSize:
        *value = 32;
        break;
    case hipDeviceAttributeMultiprocessorCount:
        *value = 36;
        break;
    case hipDeviceAttributeMaxThreadsPerBlock:
        *value = 1024;
        break;
    case hipDeviceAttributeMaxGridDimX:
        *value = 0x7fffffff;
        break;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
        *value = 65535;
        break;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
        *value = 64 * 1024;
        break;
    case hipDeviceAttributeManagedMemory:
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t *p, int device) {
    if (Status s = known_device(device); s != Status::ok)
        return result(s);
    const char *arch = getenv("CUDASIM_GFX");
    *p = {};
    snprintf(p->name, sizeof p->name, "%s", sim::device_name(sim::physical(device)).c_str());
    snprintf(p->gcnArchName, sizeof p->gcnArchName, "%s", arch && *arch ? arch : "gfx1030");
    p->totalGlobalMem = sim::device_config(device).memory;
    p->major = 10;
    p->minor = 3;
    p->multiProcessorCount = 36;
    p->warpSize = 32;
    p->sharedMemPerBlock = p->maxSharedMemoryPerMultiProcessor = 64 * 1024;
    p->regsPerBlock = 65536;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = p->maxThreadsDim[2] = 1024;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->cooperativeLaunch = p->canMapHostMemory = p->managedMemory = p->concurrentKernels = 1;
    p->pciBusID = sim::pci_bus(sim::physical(device));
    return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int *version) {
    *version = HIP_VERSION;
    return hipSuccess;
}

hipError_t hipDriverGetVersion(int *version) {
    return hipRuntimeGetVersion(version);
}

hipError_t hipGetLastError() {
    const hipError_t error = last_error;
    last_error = hipSuccess;
    return error;
}

hipError_t hipPeekAtLastError() {
    return last_error;
}
const char *hipGetErrorString(hipError_t error) {
    return sim::status_name(static_cast<Status>(error));
}
const char *hipGetErrorName(hipError_t error) {
    return sim::status_name(static_cast<Status>(error));
}
}
