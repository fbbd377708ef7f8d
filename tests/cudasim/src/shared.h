// The state that other processes see: one file, mapped by all of them.
#pragma once

#include <cstdint>
#include <string>

#include "core.h"

namespace sim {

constexpr int max_devices = 16;
constexpr int max_processes = 64;
constexpr int max_faults = 512;
constexpr int max_events = 512;

struct DeviceUse { // of one process on one physical device
    uint64_t allocated;
    uint64_t context;  // bytes the context itself costs
    uint64_t residual; // stays until the process ends (ROCm mode)
    uint32_t active;
    uint32_t created; // contexts created so far
    int32_t live[static_cast<int>(Kind::count)];
    uint64_t bytes() const { return allocated + context + residual; }
};

struct Process {
    int32_t pid; // 0: slot is free
    int32_t reserved;
    DeviceUse use[max_devices];
};

struct FaultCount { // survives the process that caused it
    char kind[24];
    char name[160];
    int32_t stale;
    int32_t reserved;
    uint64_t count;
};

struct ContextEvent {
    int32_t pid;
    int32_t device; // physical
    uint64_t generation;
    char api[48];
};

struct Shared {
    uint64_t magic;
    int32_t devices;
    int32_t faults_used;
    uint64_t memory[max_devices];
    uint32_t lost[max_devices];
    uint64_t event_count;
    FaultCount faults[max_faults];
    ContextEvent events[max_events]; // ring
    Process processes[max_processes];
};

// The mapped file and its locks. Locks are open-file-description locks, so the kernel drops them when a process ends or
// executes another program, however that happens: byte 0 is the mutex of the file, byte 1 + i says that the owner of
// slot i is there. A slot whose byte nobody holds is that of a process that is gone, and its bytes are free again.
class SharedFile {
  public:
    explicit SharedFile(const char *path); // nullptr: private to this process
    ~SharedFile();
    SharedFile(const SharedFile &) = delete;
    SharedFile &operator=(const SharedFile &) = delete;

    bool valid() const { return data_ != nullptr; }
    Shared &data() { return *data_; }
    void lock();
    void unlock();
    void drop_dead();  // call locked
    int claim();       // a slot for this process; call locked
    void after_fork(); // in the child: its own description, no slot

  private:
    bool held_by_other(int byte) const;
    int fd_ = -1;
    Shared *data_ = nullptr;
    int own_slot_ = -1;
};

SharedFile &shared_file();
struct FileLock {
    FileLock() { shared_file().lock(); }
    ~FileLock() { shared_file().unlock(); }
};
DeviceUse &own_use(int physical_device);                                 // call with a FileLock
uint64_t used_bytes(Shared &shared, int physical_device);                // of all processes; call with a FileLock
bool take_bytes(int device, uint64_t bytes, uint64_t DeviceUse::*where); // logical device; false: card is full
void give_bytes(int device, uint64_t bytes, uint64_t DeviceUse::*where);
void count_live(Kind kind, int device, int delta);
bool is_lost(int device);

std::string report_json(SharedFile &file, bool own_process);

} // namespace sim
