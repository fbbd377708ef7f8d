// A backend for the tests: two devices that are "GPUs" of host memory and let the CPU compute, count every object, and
// misbehave on demand. It loads through the real ggml_backend_load(). Its controls are reached through
// ggml_backend_reg_get_proc_address().

#include "ggml-backend-impl.h"
#include "ggml-backend-lifecycle.h"
#include "ggml-impl.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

constexpr int DEVICES = 2;
constexpr size_t TOTAL = size_t(1) << 30;

// Read and set by the tests; the order is that of tests/test_registry.py.
struct controls {
    int32_t refuse;      // the hook says no
    int32_t fail_score;  // the module says that this system is not supported
    int32_t fail_init;   // no backend can be made
    int32_t fail_alloc;  // no buffer can be made
    int32_t residual;    // bytes that the hook leaves on each device
    int32_t foreign;     // somebody else was there first
    int32_t hook_calls;  // everything below is counted
    int32_t hook_device; // of the last call
    int32_t counted;     // calls of get_device_count()
    int32_t backends[DEVICES], backends_made[DEVICES];
    int32_t buffers[DEVICES], buffers_made[DEVICES];
    int64_t bytes[DEVICES];
    uint32_t generation[DEVICES];
    int32_t active[DEVICES]; // a "context": there from the first object until the hook
};
controls state;
std::mutex mutex;

struct device_context {
    int index;
    char name[8];
    ggml_backend_buffer_type buffer_type;
    ggml_backend_device device;
};
device_context contexts[DEVICES];

device_context *of(ggml_backend_dev_t device) {
    return static_cast<device_context *>(device->context);
}

// -- buffers: those of the CPU, counted

struct buffer_context {
    device_context *device;
    void *data;
    size_t size;
};

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    auto *device = static_cast<device_context *>(type->context);
    std::lock_guard<std::mutex> guard(mutex);
    if (state.fail_alloc || state.bytes[device->index] + size > TOTAL) {
        return nullptr;
    }
    void *data = nullptr;
    if (posix_memalign(&data, 64, size ? size : 64)) {
        return nullptr;
    }
    state.buffers[device->index]++;
    state.buffers_made[device->index]++;
    state.bytes[device->index] += (int64_t)size;
    state.active[device->index] = 1;
    static const ggml_backend_buffer_i interface = [] {
        ggml_backend_buffer_i i{};
        i.free_buffer = [](ggml_backend_buffer_t buffer) {
            auto *context = static_cast<buffer_context *>(buffer->context);
            std::lock_guard<std::mutex> inner(mutex);
            state.buffers[context->device->index]--;
            state.bytes[context->device->index] -= (int64_t)context->size;
            free(context->data);
            delete context;
        };
        i.get_base = [](ggml_backend_buffer_t buffer) { return static_cast<buffer_context *>(buffer->context)->data; };
        i.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor *tensor, uint8_t value, size_t offset, size_t n) {
            memset((char *)tensor->data + offset, value, n);
        };
        i.set_tensor = [](ggml_backend_buffer_t, ggml_tensor *tensor, const void *from, size_t offset, size_t n) {
            memcpy((char *)tensor->data + offset, from, n);
        };
        i.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor *tensor, void *to, size_t offset, size_t n) {
            memcpy(to, (const char *)tensor->data + offset, n);
        };
        i.clear = [](ggml_backend_buffer_t buffer, uint8_t value) {
            auto *context = static_cast<buffer_context *>(buffer->context);
            memset(context->data, value, context->size);
        };
        return i;
    }();
    return ggml_backend_buffer_init(type, interface, new buffer_context{device, data, size}, size);
}

// -- backends: each lets a CPU backend compute

struct backend_context {
    device_context *device;
    ggml_backend_t cpu;
};

ggml_guid_t guid() {
    static ggml_guid value = {'p', 'y', 'g', 'g', 'm', 'l', ' ', 't', 'e', 's', 't', ' ', 'b', 'a', 'c', 'k'};
    return &value;
}

ggml_backend_t init_backend(ggml_backend_dev_t handle, const char *) {
    auto *device = of(handle);
    if (state.fail_init) {
        return nullptr;
    }
    auto *cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (!cpu) {
        return nullptr;
    }
    std::lock_guard<std::mutex> guard(mutex);
    state.backends[device->index]++;
    state.backends_made[device->index]++;
    state.active[device->index] = 1;
    static const ggml_backend_i interface = [] {
        ggml_backend_i i{};
        i.get_name = [](ggml_backend_t backend) -> const char * {
            return ((backend_context *)backend->context)->device->name;
        };
        i.free = [](ggml_backend_t backend) {
            auto *context = (backend_context *)backend->context;
            ggml_backend_free(context->cpu);
            std::lock_guard<std::mutex> inner(mutex);
            state.backends[context->device->index]--;
            delete context;
            delete backend;
        };
        i.graph_compute = [](ggml_backend_t backend, ggml_cgraph *graph) {
            return ggml_backend_graph_compute(((backend_context *)backend->context)->cpu, graph);
        };
        return i;
    }();
    return new ggml_backend{guid(), interface, handle, new backend_context{device, cpu}};
}

// -- the registry's side

bool release(ggml_backend_reg_t, int device) {
    std::lock_guard<std::mutex> guard(mutex);
    state.hook_calls++;
    state.hook_device = device;
    for (int i = 0; i < DEVICES; i++) {
        if ((device < 0 || device == i) && (state.refuse || state.backends[i] || state.buffers[i])) {
            return false;
        }
    }
    for (int i = 0; i < DEVICES; i++) {
        if (device < 0 || device == i) {
            state.active[i] = state.residual > 0;
            state.bytes[i] = state.residual;
            state.generation[i]++;
        }
    }
    return true;
}

bool device_state(ggml_backend_reg_t, int device, ggml_backend_device_state *out) {
    std::lock_guard<std::mutex> guard(mutex);
    *out = {state.generation[device],
            state.backends[device] + state.buffers[device],
            state.bytes[device],
            state.active[device],
            state.foreign,
            0};
    return true;
}

void *address(ggml_backend_reg_t, const char *name) {
    if (!strcmp(name, "test_controls")) {
        return &state;
    }
    return strcmp(name, "ggml_backend_device_state") ? nullptr : (void *)device_state;
}

ggml_backend_reg_t test_reg() {
    static ggml_backend_reg reg = {
        GGML_BACKEND_API_VERSION,
        {
            [](ggml_backend_reg_t) -> const char * { return "TEST"; },
            [](ggml_backend_reg_t) -> size_t {
                state.counted++;
                return DEVICES;
            },
            [](ggml_backend_reg_t, size_t index) -> ggml_backend_dev_t { return &contexts[index].device; },
            address,
            release,
        },
        nullptr,
    };
    static const bool once = [] {
        for (int i = 0; i < DEVICES; i++) {
            auto &context = contexts[i];
            context.index = i;
            snprintf(context.name, sizeof(context.name), "TEST%d", i);
            context.buffer_type.iface.get_name = [](ggml_backend_buffer_type_t type) -> const char * {
                return static_cast<device_context *>(type->context)->name;
            };
            context.buffer_type.iface.alloc_buffer = alloc_buffer;
            context.buffer_type.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 64; };
            context.buffer_type.iface.is_host = [](ggml_backend_buffer_type_t) { return true; };
            context.buffer_type.device = &context.device;
            context.buffer_type.context = &context;
            auto &interface = context.device.iface;
            interface.get_name = [](ggml_backend_dev_t device) -> const char * { return of(device)->name; };
            interface.get_description = [](ggml_backend_dev_t) -> const char * { return "test device"; };
            interface.get_memory = [](ggml_backend_dev_t device, size_t *free_bytes, size_t *total) {
                *total = TOTAL;
                *free_bytes = TOTAL - (size_t)state.bytes[of(device)->index];
            };
            interface.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
            interface.get_props = [](ggml_backend_dev_t device, ggml_backend_dev_props *props) {
                *props = {};
                props->name = of(device)->name;
                props->description = "test device";
                props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
                device->iface.get_memory(device, &props->memory_free, &props->memory_total);
            };
            interface.init_backend = init_backend;
            interface.get_buffer_type = [](ggml_backend_dev_t device) { return &of(device)->buffer_type; };
            interface.supports_op = [](ggml_backend_dev_t, const ggml_tensor *) { return true; };
            interface.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
                return type->device == device || ggml_backend_buft_is_host(type);
            };
            context.device.reg = &reg;
            context.device.context = &context;
        }
        return true;
    }();
    (void)once;
    return &reg;
}

int score() {
    return state.fail_score ? 0 : 1;
}

} // namespace

GGML_BACKEND_DL_IMPL(test_reg)
GGML_BACKEND_DL_SCORE_IMPL(score)
