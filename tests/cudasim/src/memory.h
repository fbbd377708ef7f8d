// What memory.cpp and vmm.cpp share.
#pragma once

#include "core.h"

namespace sim {

struct Mapping { // part of a reservation that has memory behind it
    size_t size;
    uint64_t handle;
};

struct Allocation {
    size_t size;
    Kind kind;
    int device;
    uint64_t generation;
    const char *gone;                   // why, nullptr while alive
    std::map<size_t, Mapping> mappings; // vmm_reservation: by offset
    std::set<int> granted;              // vmm_reservation: devices that may touch it

    bool is_mapped(size_t offset, size_t length) const {
        auto it = mappings.upper_bound(offset);
        if (it == mappings.begin())
            return false;
        --it;
        const size_t last = offset + length;
        for (size_t at = it->first; it != mappings.end() && it->first == at; ++it) {
            at += it->second.size;
            if (at >= last)
                return offset < at;
        }
        return false;
    }
};

std::map<uintptr_t, Allocation> &allocations();
std::map<uintptr_t, Allocation>::iterator find_allocation(const void *pointer);
Allocation *add_allocation(void **pointer, size_t size, Kind kind, int protection);
void retire(uintptr_t address, Allocation &allocation, const char *why);
bool refused_allocation();
void fail_alloc(long n);

} // namespace sim
