// Simulated libnvidia-ml.so.1. It reads the shared file alone: no call creates a context.
#include "nvml.h"

#include <strings.h>

#include <cstdio>
#include <cstring>

#include "shared.h"

using sim::Lock;

static int users = 0; // of nvmlInit

static int device_total() {
    return static_cast<int>(sim::config().devices.size());
}

// NVML's index <-> physical device; CUDA_VISIBLE_DEVICES does not matter here.
static int physical_of(unsigned index) {
    return sim::config().nvml_reverse ? device_total() - 1 - static_cast<int>(index) : static_cast<int>(index);
}

static nvmlDevice_t handle_of(int device) {
    return reinterpret_cast<nvmlDevice_t>(uintptr_t(0x9100) + device);
}

// The device of a handle, or what to answer instead.
static nvmlReturn_t resolve(nvmlDevice_t handle, int *device) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    *device = static_cast<int>(reinterpret_cast<uintptr_t>(handle) - 0x9100);
    if (*device < 0 || *device >= device_total())
        return NVML_ERROR_INVALID_ARGUMENT;
    return sim::shared_file().data().lost[*device] ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t give_text(const char *text, char *buffer, unsigned size) {
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

struct ProcessBytes {
    unsigned pid;
    unsigned long long bytes;
};

static std::vector<ProcessBytes> processes_on(int device) {
    std::vector<ProcessBytes> list;
    if (sim::config().nvml_hide_pids)
        return list;
    sim::FileLock file_lock;
    sim::shared_file().drop_dead();
    for (const sim::Process &process : sim::shared_file().data().processes) {
        const sim::DeviceUse &use = process.use[device];
        if (process.pid && (use.active || use.bytes()))
            list.push_back({static_cast<unsigned>(process.pid), use.bytes()});
    }
    return list;
}

static void set_instances(nvmlProcessInfo_v1_t &) {}
static void set_instances(nvmlProcessInfo_v2_t &info) {
    info.gpuInstanceId = info.computeInstanceId = 0xffffffffu;
}

template <typename Info> static nvmlReturn_t running(nvmlDevice_t handle, unsigned *count, Info *infos, bool compute) {
    Lock lock;
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    const std::vector<ProcessBytes> list = compute ? processes_on(device) : std::vector<ProcessBytes>();
    const unsigned room = *count;
    *count = static_cast<unsigned>(list.size());
    if (list.size() > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (size_t i = 0; infos && i < list.size(); i++) {
        infos[i].pid = list[i].pid;
        infos[i].usedGpuMemory = list[i].bytes;
        set_instances(infos[i]);
    }
    return NVML_SUCCESS;
}

static unsigned long long used_on(int device) {
    sim::FileLock file_lock;
    sim::shared_file().drop_dead();
    return sim::used_bytes(sim::shared_file().data(), device);
}

static bool in_use(int device) {
    sim::FileLock file_lock;
    sim::shared_file().drop_dead();
    for (const sim::Process &process : sim::shared_file().data().processes)
        if (process.pid && process.use[device].active)
            return true;
    return false;
}

extern "C" {

nvmlReturn_t nvmlInitWithFlags(unsigned) {
    Lock lock;
    users++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2() {
    return nvmlInitWithFlags(0);
}
nvmlReturn_t nvmlInit() {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown() {
    Lock lock;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    users--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size) {
    return give_text("999.13.00", text, size);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    return give_text("13.999.13.00", text, size);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size) {
    char path[64], name[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    const size_t n = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    return n ? give_text(name, text, size) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    *count = device_total();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= static_cast<unsigned>(device_total()))
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = handle_of(physical_of(index));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (int device = 0; device < device_total(); device++) {
        if (strcasecmp(sim::uuid_text(device).c_str(), uuid))
            continue;
        *handle = handle_of(device);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *handle) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int device = 0; device < device_total(); device++) {
        if (sim::pci_bus(device) != static_cast<int>(bus))
            continue;
        *handle = handle_of(device);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *handle) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, handle);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *index = physical_of(device); // reversing is its own inverse
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor) {
    return nvmlDeviceGetIndex(handle, minor);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *text, unsigned size) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    return give_text(sim::device_name(device).c_str(), text, size);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *buffer, unsigned size) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    return give_text(sim::uuid_text(device).c_str(), buffer, size);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *info = {};
    info->bus = sim::pci_bus(device);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus);
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v3(handle, info);
}
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v3(handle, info);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *major = sim::config().devices[device].cc / 10;
    *minor = sim::config().devices[device].cc % 10;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    Lock lock;
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    memory->total = sim::config().devices[device].memory;
    memory->used = used_on(device);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    if (memory->version != (sizeof(nvmlMemory_v2_t) | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlMemory_t v1;
    if (nvmlReturn_t rc = nvmlDeviceGetMemoryInfo(handle, &v1))
        return rc;
    memory->total = v1.total;
    memory->free = v1.free;
    memory->used = v1.used;
    memory->reserved = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v1_t *infos) {
    return running(handle, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return running(handle, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return running(handle, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v1_t *infos) {
    return running(handle, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                      nvmlProcessInfo_v2_t *infos) {
    return running(handle, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                      nvmlProcessInfo_v2_t *infos) {
    return running(handle, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts) {
    Lock lock;
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *milliwatts = in_use(device) ? 60000 : 8000; // a card with a context stays in a higher power state
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, int *state) {
    Lock lock;
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *state = in_use(device) ? 0 : 8;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization) {
    int device = 0;
    if (nvmlReturn_t rc = resolve(handle, &device))
        return rc;
    *utilization = {0, 0};
    return NVML_SUCCESS;
}
}
