// Device memory is host memory. An address is never given out twice: what was freed, or died with its context, stays
// reserved without access, so that a stale pointer is recognised and a stale read on the CPU faults.
#include <sys/mman.h>

#include <cstring>

#include "memory.h"
#include "shared.h"

namespace sim {

std::map<uintptr_t, Allocation> &allocations() {
    static auto *map = new std::map<uintptr_t, Allocation>;
    return *map;
}

static size_t pages(size_t size) {
    return size ? (size + 4095) & ~size_t(4095) : 4096;
}

Allocation *add_allocation(void **pointer, size_t size, Kind kind, int protection) {
    void *p = mmap(nullptr, pages(size), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return nullptr;
    const int device = current_device();
    allocations()[reinterpret_cast<uintptr_t>(p)] = {size, kind, device, context(device).generation, nullptr, {}, {}};
    count_live(kind, device, 1);
    *pointer = p;
    return &allocations()[reinterpret_cast<uintptr_t>(p)];
}

static bool on_device(Kind kind) {
    return kind == Kind::device_memory || kind == Kind::managed_memory;
}

void retire(uintptr_t address, Allocation &a, const char *why) {
    a.gone = why;
    count_live(a.kind, a.device, -1);
    if (on_device(a.kind))
        give_bytes(a.device, a.size, &DeviceUse::allocated);
    if (a.kind == Kind::host_registration)
        return; // the memory is the caller's
    mmap(reinterpret_cast<void *>(address), pages(a.size), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

std::map<uintptr_t, Allocation>::iterator find_allocation(const void *pointer) {
    auto &map = allocations();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto it = map.upper_bound(address);
    if (it == map.begin())
        return map.end();
    --it;
    return address < it->first + (it->second.size ? it->second.size : 1) ? it : map.end();
}

static long allocations_made = 0;
static long fail_from_now = 0; // see cudasim_fail_alloc

void fail_alloc(long n) {
    Lock lock;
    fail_from_now = n ? allocations_made + n : 0;
}

// The n-th request of this process is refused, as asked by CUDASIM_FAIL_ALLOC or cudasim_fail_alloc().
bool refused_allocation() {
    const long n = ++allocations_made;
    if (n == fail_from_now)
        return true;
    const long asked = config().fail_alloc;
    return asked && (n == asked || (config().fail_alloc_onwards && n > asked));
}

Status allocate(void **pointer, size_t size, Kind kind, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (refused_allocation())
        return Status::out_of_memory;
    if (on_device(kind) && !take_bytes(current_device(), size, &DeviceUse::allocated))
        return Status::out_of_memory;
    return add_allocation(pointer, size, kind, PROT_READ | PROT_WRITE) ? Status::ok : Status::out_of_memory;
}

Status release(void *pointer, Kind kind, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (!pointer)
        return Status::ok;
    auto it = allocations().find(reinterpret_cast<uintptr_t>(pointer));
    if (it == allocations().end())
        return fault(FaultClass::misuse, "pointer", api, Status::invalid_value, "%p was never allocated", pointer);
    Allocation &a = it->second;
    if (a.gone)
        return fault(FaultClass::stale, "pointer", api, Status::invalid_value, "%p is already gone: %s", pointer,
                     a.gone);
    const bool fits = a.kind == kind || (kind == Kind::device_memory && a.kind == Kind::managed_memory);
    if (!fits)
        return fault(FaultClass::misuse, "pointer", api, Status::invalid_value, "%p is %s", pointer, kind_name(a.kind));
    retire(it->first, a, "freed");
    return Status::ok;
}

Status register_host(void *pointer, size_t size, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    auto it = find_allocation(pointer);
    if (it != allocations().end() && !it->second.gone)
        return Status::host_already_registered;
    if (!pointer || !size)
        return Status::invalid_value;
    const int device = current_device();
    allocations()[reinterpret_cast<uintptr_t>(pointer)] = {
        size, Kind::host_registration, device, context(device).generation, nullptr, {}, {}};
    count_live(Kind::host_registration, device, 1);
    return Status::ok;
}

Status unregister_host(void *pointer, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    auto it = allocations().find(reinterpret_cast<uintptr_t>(pointer));
    if (it == allocations().end() || it->second.kind != Kind::host_registration)
        return fault(FaultClass::misuse, "pointer", api, Status::host_not_registered, "%p is not registered", pointer);
    if (it->second.gone)
        return fault(FaultClass::stale, "pointer", api, Status::host_not_registered, "%p: %s", pointer,
                     it->second.gone);
    count_live(Kind::host_registration, it->second.device, -1);
    allocations().erase(it); // it is plain memory of the caller again
    return Status::ok;
}

Status check_range(const void *pointer, size_t size, bool device_needed, const char *api) {
    Lock lock;
    auto it = find_allocation(pointer);
    if (it == allocations().end()) {
        if (!device_needed)
            return Status::ok;
        return fault(FaultClass::misuse, "pointer", api, Status::invalid_value, "%p is no device memory", pointer);
    }
    Allocation &a = it->second;
    if (a.gone && a.kind == Kind::host_registration && !device_needed)
        return Status::ok;
    if (a.gone)
        return fault(FaultClass::stale, "pointer", api, Status::illegal_address,
                     "%p lies in %zu bytes of device %d that are gone: %s", pointer, a.size, a.device, a.gone);
    const size_t offset = reinterpret_cast<uintptr_t>(pointer) - it->first;
    if (offset + size > a.size)
        return fault(FaultClass::misuse, "pointer", api, Status::invalid_value,
                     "%p + %zu exceeds its allocation of %zu bytes", pointer, size, a.size);
    if (a.kind == Kind::vmm_reservation && !a.is_mapped(offset, size))
        return fault(FaultClass::misuse, "pointer", api, Status::illegal_address,
                     "%p + %zu is reserved, but not mapped", pointer, size);
    return Status::ok;
}

Status check_argument(const void *pointer, const std::string &kernel, const char *api) {
    auto it = find_allocation(pointer);
    if (it == allocations().end())
        return Status::ok;
    Allocation &a = it->second;
    if (a.gone && a.kind == Kind::host_registration)
        return Status::ok;
    if (a.gone)
        return fault(FaultClass::stale, "pointer", kernel, Status::illegal_address,
                     "%s: argument %p lies in %zu bytes that are gone: %s", api, pointer, a.size, a.gone);
    const int device = current_device();
    const bool reachable = a.device == device || !(a.kind == Kind::device_memory || a.kind == Kind::vmm_reservation) ||
                           context(device).peers.count(a.device) || a.granted.count(device);
    if (reachable)
        return Status::ok;
    const bool lost = context(device).ever_peers.count(a.device) != 0;
    return fault(lost ? FaultClass::stale : FaultClass::misuse, "peer_access", kernel, Status::illegal_address,
                 "%s on device %d: argument %p is memory of device %d, to which it has no peer access%s", api, device,
                 pointer, a.device, lost ? " (an earlier context had)" : "");
}

int memory_device(const void *pointer, Kind *kind) {
    Lock lock;
    auto it = find_allocation(pointer);
    if (it == allocations().end() || it->second.gone)
        return -1;
    *kind = it->second.kind;
    return it->second.device;
}

void destroy_memory(int device) {
    for (auto &[address, a] : allocations())
        if (!a.gone && a.device == device && a.kind != Kind::vmm_reservation)
            retire(address, a, "destroyed by a device reset");
}

} // namespace sim
