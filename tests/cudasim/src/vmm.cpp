// Virtual memory management: reservations, physical allocations, mappings. None of them belongs to a context, so none
// is destroyed by a device reset (assumed, see the README).
#include <sys/mman.h>

#include "memory.h"
#include "shared.h"

namespace sim {

struct Physical {
    size_t size;
    int device;
    int references; // the handle itself and each mapping
    bool released;
};

static std::map<uint64_t, Physical> &physicals() {
    static auto *map = new std::map<uint64_t, Physical>;
    return *map;
}

static void drop_reference(uint64_t handle) {
    Physical &p = physicals()[handle];
    if (--p.references)
        return;
    give_bytes(p.device, p.size, &DeviceUse::allocated);
    count_live(Kind::vmm_allocation, p.device, -1);
    physicals().erase(handle);
}

static Status bad(const char *kind, const char *api, const char *why, unsigned long long value) {
    return fault(FaultClass::misuse, kind, api, Status::invalid_value, "%s (%#llx)", why, value);
}

// The live reservation that holds the whole range, or nullptr after counting the fault.
static Allocation *reservation(void *pointer, size_t size, const char *api, uintptr_t *base, Status &status) {
    auto it = find_allocation(pointer);
    status = Status::ok;
    if (it == allocations().end() || it->second.kind != Kind::vmm_reservation) {
        status = bad("vmm_reservation", api, "not a reserved range", reinterpret_cast<uintptr_t>(pointer));
        return nullptr;
    }
    if (it->second.gone) {
        status =
            fault(FaultClass::stale, "vmm_reservation", api, Status::invalid_value, "%p: %s", pointer, it->second.gone);
        return nullptr;
    }
    *base = it->first;
    if (reinterpret_cast<uintptr_t>(pointer) + size > it->first + it->second.size) {
        status = bad("vmm_reservation", api, "range exceeds its reservation", reinterpret_cast<uintptr_t>(pointer));
        return nullptr;
    }
    return &it->second;
}

Status vmm_create(uint64_t *handle, size_t size, int device, const char *api) {
    Lock lock;
    (void)api;
    if (Status s = check_device(device); s != Status::ok)
        return s;
    if (!config().vmm)
        return Status::not_supported;
    if (refused_allocation() || !take_bytes(device, size, &DeviceUse::allocated))
        return Status::out_of_memory;
    static uint64_t next = 0x7a0000000000ull;
    *handle = next += 16;
    physicals()[*handle] = {size, device, 1, false};
    count_live(Kind::vmm_allocation, device, 1);
    return Status::ok;
}

Status vmm_release(uint64_t handle, const char *api) {
    Lock lock;
    auto it = physicals().find(handle);
    if (it == physicals().end() || it->second.released)
        return bad("vmm_allocation", api, "not a live handle", handle);
    it->second.released = true;
    drop_reference(handle);
    return Status::ok;
}

Status vmm_reserve(void **pointer, size_t size, const char *api) {
    Lock lock;
    (void)api;
    if (Status s = check_device(current_device()); s != Status::ok)
        return s;
    return add_allocation(pointer, size, Kind::vmm_reservation, PROT_NONE) ? Status::ok : Status::out_of_memory;
}

Status vmm_unreserve(void *pointer, size_t size, const char *api) {
    Lock lock;
    uintptr_t base = 0;
    Status status;
    Allocation *a = reservation(pointer, size, api, &base, status);
    if (!a)
        return status;
    if (base != reinterpret_cast<uintptr_t>(pointer) || a->size != size)
        return bad("vmm_reservation", api, "not the whole reservation", base);
    if (!a->mappings.empty())
        return bad("vmm_reservation", api, "freed while memory is mapped", base);
    retire(base, *a, "address range freed");
    return Status::ok;
}

Status vmm_map(void *pointer, size_t size, size_t offset, uint64_t handle, const char *api) {
    Lock lock;
    uintptr_t base = 0;
    Status status;
    Allocation *a = reservation(pointer, size, api, &base, status);
    if (!a)
        return status;
    auto it = physicals().find(handle);
    if (it == physicals().end() || it->second.released)
        return bad("vmm_allocation", api, "not a live handle", handle);
    if (offset || size != it->second.size)
        return bad("vmm_allocation", api, "only whole allocations can be mapped", handle);
    const size_t at = reinterpret_cast<uintptr_t>(pointer) - base;
    auto next = a->mappings.lower_bound(at);
    const bool overlaps_next = next != a->mappings.end() && next->first < at + size;
    const bool overlaps_last =
        next != a->mappings.begin() && std::prev(next)->first + std::prev(next)->second.size > at;
    if (overlaps_next || overlaps_last)
        return bad("vmm_reservation", api, "range is already mapped", base + at);
    it->second.references++;
    a->mappings[at] = {size, handle};
    return Status::ok;
}

Status vmm_unmap(void *pointer, size_t size, const char *api) {
    Lock lock;
    uintptr_t base = 0;
    Status status;
    Allocation *a = reservation(pointer, size, api, &base, status);
    if (!a)
        return status;
    const size_t begin = reinterpret_cast<uintptr_t>(pointer) - base;
    auto it = a->mappings.find(begin);
    size_t end = begin;
    while (it != a->mappings.end() && it->first == end && end < begin + size) {
        end += it->second.size;
        drop_reference(it->second.handle);
        it = a->mappings.erase(it);
    }
    if (end != begin + size)
        return bad("vmm_reservation", api, "range is not what was mapped", base + begin);
    mmap(pointer, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return Status::ok;
}

Status vmm_set_access(void *pointer, size_t size, const std::vector<int> &devices, const char *api) {
    Lock lock;
    uintptr_t base = 0;
    Status status;
    Allocation *a = reservation(pointer, size, api, &base, status);
    if (!a)
        return status;
    const size_t at = reinterpret_cast<uintptr_t>(pointer) - base;
    if (!a->is_mapped(at, size))
        return bad("vmm_reservation", api, "access set on what is not mapped", base + at);
    a->granted.insert(devices.begin(), devices.end());
    return mprotect(pointer, size, PROT_READ | PROT_WRITE) == 0 ? Status::ok : Status::invalid_value;
}

} // namespace sim
