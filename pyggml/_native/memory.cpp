// Host memory that is not there is refused. The system would grant it, and end the process when it is used.

#include "guard.h"

#include "ggml-backend-impl.h"

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace {

constexpr size_t small = 64 << 20; // is not worth looking

// A number of a file of lines "name: value" or "name value"; -1 if it is not there.
int64_t field(const char *path, const std::string &name) {
    std::ifstream file(path);
    std::string key;
    int64_t value = 0;
    while (file >> key >> value) {
        if (key == name) {
            return value;
        }
        file.ignore(256, '\n');
    }
    return -1;
}

int64_t number(const char *path) {
    int64_t value = -1;
    std::ifstream file(path);
    return file >> value ? value : -1;
}

// Bytes that can be had without ending somebody; the largest number where nobody tells.
int64_t available() {
    int64_t result = INT64_MAX;
    const int64_t machine = field("/proc/meminfo", "MemAvailable:");
    if (machine >= 0) {
        result = (machine + std::max<int64_t>(0, field("/proc/meminfo", "SwapFree:"))) * 1024;
    }
    const int64_t limit = number("/sys/fs/cgroup/memory.max"); // a container's
    if (limit >= 0) {
        const int64_t cache = std::max<int64_t>(0, field("/sys/fs/cgroup/memory.stat", "inactive_file"));
        result = std::min(result, limit - number("/sys/fs/cgroup/memory.current") + cache);
    }
    return result;
}

ggml_backend_buffer_t (*alloc)(ggml_backend_buffer_type_t type, size_t size);

ggml_backend_buffer_t alloc_if_available(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = nullptr;
    if (size > small && size > static_cast<uint64_t>(std::max<int64_t>(0, available()))) {
        remember_log_line("the machine has no " + std::to_string(size >> 20) + " MiB of memory left");
    } else {
        buffer = alloc(type, size);
    }
    if (!buffer) {
        note_no_memory();
    }
    return buffer;
}

} // namespace

void watch_memory() {
    auto &iface = ggml_backend_cpu_buffer_type()->iface;
    alloc = iface.alloc_buffer;
    iface.alloc_buffer = alloc_if_available;
}
