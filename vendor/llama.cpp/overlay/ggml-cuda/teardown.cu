// Count what lives on each physical device, make a device ready for use, give it back: see docs/teardown.md.

#include "counting.cuh"
#include "ggml-backend-impl.h"

#include <chrono>
#include <string>

namespace {

constexpr auto CAPTURE_WAIT = std::chrono::seconds(5);

const char *const OBJECT_NAMES[GGML_BACKEND_CUDA_OBJECT_COUNT] = {
    "backend", "device buffer", "pinned host buffer", "host registration", "event", "communicator",
};

struct physical_device {
    int live[GGML_BACKEND_CUDA_OBJECT_COUNT] = {};
    bool ready = false;       // set up in this generation
    int foreign_context = -1; // see ggml_backend_cuda_device_state
    bool left_over = false;   // the last reset failed: a context that is there is ours
    cudaError_t reset_error = cudaSuccess;
    bool peers[GGML_CUDA_MAX_DEVICES] = {}; // access that we enabled, by the other device
};

// The mutex is held for every change of a count, for a set-up, a memory query and the whole of a teardown. An object is
// counted before it is made and until it is gone, so making it (pinning gigabytes takes seconds) needs no lock. Never
// destroyed: exit handlers of others may still free buffers.
struct lifecycle {
    std::mutex mutex;
    physical_device devices[GGML_CUDA_MAX_DEVICES];
};

lifecycle &state() {
    static auto *instance = new lifecycle;
    return *instance;
}

// 1: this process has a primary context on the device, 0: it has none, -1: unknown
int context_active(int device) {
#if defined(GGML_USE_HIP) || defined(GGML_USE_MUSA)
    // hipDevicePrimaryCtxGetState tells whether the device is the current one, which is another question
    GGML_UNUSED(device);
    return -1;
#else
    unsigned int flags = 0;
    int active = 0;
#if defined(GGML_USE_VMM)
    const CUresult err = cuDevicePrimaryCtxGetState(device, &flags, &active);
#else
    // not linked to libcuda: ask the runtime for the driver's function
    static const auto get_state = [] {
        void *entry = nullptr;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        (void)cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &entry, 12000, cudaEnableDefault, &found);
#else
        (void)cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &entry, cudaEnableDefault, &found);
#endif
        return found == cudaDriverEntryPointSuccess ? (decltype(&cuDevicePrimaryCtxGetState))entry : nullptr;
    }();
    const CUresult err = get_state ? get_state(device, &flags, &active) : CUDA_ERROR_NOT_FOUND;
#endif
    return err == CUDA_SUCCESS ? active != 0 : -1;
#endif
}

// the same for a context that was there before our first use
int foreign_context(int device) {
    return state().devices[device].left_over ? 0 : context_active(device);
}

// where the driver does not say, what we did ourselves has to do
bool has_context(int device) {
    const int active = context_active(device);
    const physical_device &self = state().devices[device];
    return active == 1 || (active == -1 && (self.ready || self.left_over));
}

void enable_peer(int from, int to) {
    int possible = 0;
    if (cudaDeviceCanAccessPeer(&possible, from, to) != cudaSuccess || !possible) {
        return;
    }
    (void)cudaSetDevice(from);
    const cudaError_t err = cudaDeviceEnablePeerAccess(to, 0);
    if (err == cudaSuccess) {
        state().devices[from].peers[to] = true;
    } else {
        (void)cudaGetLastError();
        if (err != cudaErrorPeerAccessAlreadyEnabled) {
            GGML_LOG_WARN("%s: device %d cannot access device %d: %s\n", __func__, from, to, cudaGetErrorString(err));
        }
    }
}

// What a new context needs, once per generation. Only devices in use get peers: enabling access to a device creates its
// context.
cudaError_t set_up(int device) {
    physical_device &self = state().devices[device];
    if (self.ready) {
        return cudaSuccess;
    }
    self.foreign_context = foreign_context(device);
    cudaError_t err = cudaSetDevice(device);
#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)
    if (err == cudaSuccess && ggml_cuda_info().devices[device].cc == GGML_CUDA_CC_DGX_SPARK) {
        // iGPUs of compute capability 12.1 wait too long in synchronizing calls with the default strategy
        err = cudaSetDeviceFlags(cudaDeviceScheduleSpin);
    }
#endif
    if (err != cudaSuccess) {
        (void)cudaGetLastError();
        GGML_LOG_ERROR("%s: device %d cannot be used: %s\n", __func__, device, cudaGetErrorString(err));
        return err;
    }
    self.ready = true;
    if (getenv("GGML_CUDA_P2P") != nullptr) {
        for (int other = 0; other < ggml_cuda_info().physical_device_count; ++other) {
            if (other != device && state().devices[other].ready) {
                enable_peer(other, device);
                enable_peer(device, other);
            }
        }
        (void)cudaSetDevice(device);
    }
    return cudaSuccess;
}

// log what lives on the devices asked for, by kind
bool in_use(const bool *wanted) {
    bool live = false;
    for (int id = 0; id < ggml_cuda_info().physical_device_count; ++id) {
        std::string what;
        for (int kind = 0; wanted[id] && kind < GGML_BACKEND_CUDA_OBJECT_COUNT; ++kind) {
            if (const int n = state().devices[id].live[kind]) {
                what += (what.empty() ? "" : ", ") + std::to_string(n) + " " + OBJECT_NAMES[kind] + (n == 1 ? "" : "s");
            }
        }
        if (!what.empty()) {
            GGML_LOG_WARN("%s: physical device %d is in use: %s\n", __func__, id, what.c_str());
            live = true;
        }
    }
    return live;
}

// false: the device may still hold something
bool reset(int device) {
    physical_device &self = state().devices[device];
    cudaError_t err = cudaSuccess;
    if (has_context(device)) {
        // nobody may be left with access to memory of a context that is gone
        for (int other = 0; other < ggml_cuda_info().physical_device_count; ++other) {
            bool &enabled = state().devices[other].peers[device];
            if (enabled && has_context(other)) {
                (void)cudaSetDevice(other);
                (void)cudaDeviceDisablePeerAccess(device);
                (void)cudaGetLastError();
            }
            enabled = false;
        }
        err = cudaSetDevice(device);
        if (err == cudaSuccess) {
            err = cudaDeviceReset();
        }
    } else if (!self.ready) {
        return true; // never used in this generation, nothing to give back
    }
    // a failed reset may have taken anything with it: whatever was set up is in doubt and is done again
    const bool theirs = self.ready ? self.foreign_context == 1 : !self.left_over;
    self = physical_device();
    self.reset_error = err;
    self.left_over = err != cudaSuccess && !theirs;
    ggml_cuda_generation[device].fetch_add(1);
    if (err != cudaSuccess) {
        (void)cudaGetLastError();
        GGML_LOG_ERROR("%s: physical device %d: %s\n", __func__, device, cudaGetErrorString(err));
        return false;
    }
    if (context_active(device) == 1) {
        GGML_LOG_ERROR("%s: physical device %d still has a context after its reset\n", __func__, device);
        return false;
    }
    return true;
}

int physical(int device) {
    return ggml_cuda_info().devices[device].physical_device;
}

} // namespace

// constant-initialized: the flags may be read before any constructor of this library ran
std::atomic<uint32_t> ggml_cuda_generation[GGML_CUDA_MAX_DEVICES] = {
    {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1},
};
static_assert(GGML_CUDA_MAX_DEVICES == 16, "one initial generation per device");

int ggml_cuda_current_device() {
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}

bool ggml_cuda_acquire_physical(enum ggml_backend_cuda_object kind, int device) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (set_up(device) != cudaSuccess) {
        return false;
    }
    state().devices[device].live[kind]++;
    return true;
}

void ggml_cuda_release_physical(enum ggml_backend_cuda_object kind, int device) {
    std::lock_guard<std::mutex> lock(state().mutex);
    GGML_ASSERT(state().devices[device].live[kind] > 0);
    state().devices[device].live[kind]--;
}

bool ggml_cuda_acquire(enum ggml_backend_cuda_object kind, int device) {
    return ggml_cuda_acquire_physical(kind, physical(device));
}

void ggml_cuda_release(enum ggml_backend_cuda_object kind, int device) {
    ggml_cuda_release_physical(kind, physical(device));
}

cudaError_t ggml_cuda_memory(int physical_device, size_t *free, size_t *total) {
    std::lock_guard<std::mutex> lock(state().mutex); // else a teardown could come between the question and the query
    if (!has_context(physical_device)) {
        ggml_cuda_memory_without_context(physical_device, free, total);
        return cudaSuccess;
    }
    // without the right device the answer would be another's, and wake it
    const cudaError_t err =
        ggml_cuda_current_device() == physical_device ? cudaSuccess : cudaSetDevice(physical_device);
    return err == cudaSuccess ? cudaMemGetInfo(free, total) : err;
}

bool ggml_backend_cuda_reg_free(ggml_backend_reg_t reg, int device) {
    GGML_UNUSED(reg);
    const ggml_cuda_device_info &info = ggml_cuda_info();
    if (device < -1 || device >= info.device_count) {
        GGML_LOG_ERROR("%s: there is no device %d\n", __func__, device);
        return false;
    }
    bool wanted[GGML_CUDA_MAX_DEVICES] = {};
    for (int id = 0; id < info.physical_device_count; ++id) {
        wanted[id] = device == -1 || physical(device) == id;
    }

    std::lock_guard<std::mutex> lock(state().mutex);
    if (in_use(wanted)) {
        return false;
    }
    // a backend on another device may be capturing, which a reset could break; it holds up new captures meanwhile
    std::unique_lock<std::mutex> capture(ggml_cuda_lock);
    if (!ggml_cuda_lock_cv.wait_for(capture, CAPTURE_WAIT, [] { return ggml_cuda_lock_counter.load() == 0; })) {
        GGML_LOG_WARN("%s: a graph capture on another device does not end\n", __func__);
        return false;
    }
    // the thread's current device comes last, so that it stays the current one: setting it again would create its
    // context
    const int current = ggml_cuda_current_device();
    bool done = true;
    for (int id = 0; id < info.physical_device_count; ++id) {
        if (wanted[id] && id != current) {
            done = reset(id) && done;
        }
    }
    if (wanted[current]) {
        done = reset(current) && done;
    }
    return done;
}

bool ggml_backend_cuda_device_state(int device, struct ggml_backend_cuda_device_state *out) {
    if (device < 0 || device >= ggml_cuda_info().device_count) {
        return false;
    }
    const int id = physical(device);
    std::lock_guard<std::mutex> lock(state().mutex);
    const physical_device &self = state().devices[id];
    out->physical_device = id;
    out->generation = ggml_cuda_generation[id].load();
    out->in_use = self.ready;
    out->context_active = context_active(id);
    out->foreign_context = self.ready ? self.foreign_context : foreign_context(id);
    out->reset_error = self.reset_error;
    for (int kind = 0; kind < GGML_BACKEND_CUDA_OBJECT_COUNT; ++kind) {
        out->live[kind] = self.live[kind];
    }
    return true;
}

bool ggml_backend_cuda_reg_device_state(ggml_backend_reg_t reg, int device, struct ggml_backend_device_state *out) {
    GGML_UNUSED(reg);
    struct ggml_backend_cuda_device_state own;
    if (!ggml_backend_cuda_device_state(device, &own)) {
        return false;
    }
    *out = {};
    out->generation = own.generation;
    for (const int32_t n : own.live) {
        out->live_objects += n;
    }
    out->held = -1; // the driver accounts for it, not we
    out->context_active = own.context_active;
    out->foreign_context = own.foreign_context;
    out->error = own.reset_error;
    return true;
}
