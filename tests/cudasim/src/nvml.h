// The part of NVML's interface that is simulated: names, values and layouts as NVML documents them.
#pragma once

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

typedef struct nvmlDevice_st *nvmlDevice_t;

struct nvmlMemory_t {
    unsigned long long total, free, used;
};

struct nvmlMemory_v2_t {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct nvmlPciInfo_t {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
};

struct nvmlProcessInfo_v1_t {
    unsigned pid;
    unsigned long long usedGpuMemory;
};

struct nvmlProcessInfo_v2_t { // v3 has the same layout
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
};

struct nvmlUtilization_t {
    unsigned gpu, memory;
};
