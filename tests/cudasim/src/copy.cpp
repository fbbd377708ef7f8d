// Copies and fills between checked ranges.
#include <sys/mman.h>

#include <cstring>

#include "memory.h"

namespace sim {

static bool needs_device(Copy direction, bool destination) {
    if (direction == Copy::device_to_device)
        return true;
    return direction == (destination ? Copy::host_to_device : Copy::device_to_host);
}

static Status check(const void *to, size_t to_size, const void *from, size_t from_size, Copy direction,
                    const char *api) {
    if (Status s = check_range(to, to_size, needs_device(direction, true), api); s != Status::ok)
        return s;
    return check_range(from, from_size, needs_device(direction, false), api);
}

// With CUDASIM_ON_FAULT=continue a faulty call gets here; what is gone must not be touched.
static bool accessible(const void *pointer) {
    auto it = find_allocation(pointer);
    return it == allocations().end() || !it->second.gone || it->second.kind == Kind::host_registration;
}

static void note(const char *name, size_t size, int detail, const void *to, const void *from, void *stream) {
    Node node;
    node.kernel = name;
    node.hash = mix(mix(hash_text(name), size), detail);
    node.pointers = {to, from};
    record(std::move(node), stream);
}

Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
               Copy direction, void *stream, const char *api) {
    Lock lock;
    if (Status s = check_stream(stream, api); s != Status::ok)
        return s;
    if (!width || !height)
        return Status::ok;
    const size_t rows = height - 1;
    if (Status s = check(to, to_pitch * rows + width, from, from_pitch * rows + width, direction, api); s != Status::ok)
        return s;
    note("memcpy", width * height, static_cast<int>(direction), to, from, stream);
    if (is_capturing(stream) || !accessible(to) || !accessible(from))
        return Status::ok;
    for (size_t row = 0; row < height; row++)
        memmove(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width);
    return Status::ok;
}

Status copy(void *to, const void *from, size_t size, Copy direction, void *stream, const char *api) {
    return copy_2d(to, size, from, size, size, 1, direction, stream, api);
}

Status copy_peer(void *to, int to_device, const void *from, int from_device, size_t size, void *stream,
                 const char *api) {
    Lock lock;
    for (int device : {to_device, from_device})
        if (Status s = create_context(device, api); s != Status::ok)
            return s;
    return copy(to, from, size, Copy::device_to_device, stream, api);
}

// Zeroing a large buffer must not cost real memory: pages given back are zero when they are read again.
static void zero(void *pointer, size_t size) {
    const auto first = reinterpret_cast<uintptr_t>(pointer), last = first + size;
    const auto begin = (first + 4095) & ~uintptr_t(4095), end = last & ~uintptr_t(4095);
    memset(pointer, 0, begin - first);
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
    memset(reinterpret_cast<void *>(end), 0, last - end);
}

Status fill(void *pointer, int value, size_t size, void *stream, const char *api) {
    Lock lock;
    if (Status s = check_stream(stream, api); s != Status::ok)
        return s;
    if (!size)
        return Status::ok;
    if (Status s = check_range(pointer, size, true, api); s != Status::ok)
        return s;
    note("memset", size, value, pointer, nullptr, stream);
    if (is_capturing(stream) || !accessible(pointer))
        return Status::ok;
    auto it = find_allocation(pointer);
    const bool ours = it != allocations().end() && it->second.kind == Kind::device_memory;
    if (value == 0 && ours && size >= (1u << 20))
        zero(pointer, size);
    else
        memset(pointer, value, size);
    return Status::ok;
}

} // namespace sim
