// How much memory a device has, asked without creating a context on it: a device that was given back must stay so when
// somebody lists devices, and the next model load has to place layers by what is free before it has a context.

#include "ggml-cuda/common.cuh"

#include <algorithm>
#include <cctype>
#include <fstream>

#if defined(__linux__) && !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include <dlfcn.h>

namespace {

struct nvml_memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

// NVML comes with the driver; it is opened for the one question and closed again, so that nothing of it stays.
bool free_memory(const char *pci_bus_id, size_t *free) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (lib == nullptr) {
        return false;
    }
    const auto init = (int (*)())dlsym(lib, "nvmlInit_v2");
    const auto shutdown = (int (*)())dlsym(lib, "nvmlShutdown");
    const auto get_device = (int (*)(const char *, void **))dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
    const auto get_memory = (int (*)(void *, nvml_memory *))dlsym(lib, "nvmlDeviceGetMemoryInfo");
    bool known = false;
    if (init && shutdown && get_device && get_memory && init() == 0) {
        void *device = nullptr;
        nvml_memory memory = {};
        known = get_device(pci_bus_id, &device) == 0 && get_memory(device, &memory) == 0;
        *free = memory.free;
        (void)shutdown();
    }
    dlclose(lib);
    return known;
}

} // namespace

#elif defined(__linux__) && defined(GGML_USE_HIP)

namespace {

// the kernel driver's own figures
bool free_memory(const char *pci_bus_id, size_t *free) {
    std::string path = std::string("/sys/bus/pci/devices/") + pci_bus_id;
    std::transform(path.begin(), path.end(), path.begin(), [](unsigned char c) { return std::tolower(c); });
    size_t total = 0;
    size_t used = 0;
    if (!(std::ifstream(path + "/mem_info_vram_total") >> total) ||
        !(std::ifstream(path + "/mem_info_vram_used") >> used)) {
        return false;
    }
    *free = total - std::min(used, total);
    return true;
}

} // namespace

#else

static bool free_memory(const char *, size_t *) {
    return false;
}

#endif

// Where nobody knows how much is free, all of it is taken to be: an estimate for placing layers, not a measurement.
void ggml_cuda_memory_without_context(int physical_device, size_t *free, size_t *total) {
    cudaDeviceProp prop;
    CUDA_CHECK(cudaGetDeviceProperties(&prop, physical_device));
    *total = prop.totalGlobalMem;

    char pci_bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(pci_bus_id, sizeof(pci_bus_id), physical_device) != cudaSuccess ||
        !free_memory(pci_bus_id, free)) {
        (void)cudaGetLastError();
        *free = *total;
    }
    *free = std::min(*free, *total); // a slice of a card (MIG) has less than the whole that was asked about
}
