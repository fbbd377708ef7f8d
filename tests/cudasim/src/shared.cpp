// The file behind CUDASIM_SHM: slots of processes, their bytes and live objects, faults, context events.
#include "shared.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sim {

constexpr uint64_t magic = 0x4355444153494d32ull;

static struct flock byte_lock(short type, int byte) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    return lock;
}

static bool set_lock(int fd, int command, short type, int byte) {
    struct flock lock = byte_lock(type, byte);
    int rc;
    do
        rc = fcntl(fd, command, &lock);
    while (rc && errno == EINTR);
    return rc == 0;
}

SharedFile::SharedFile(const char *path) {
    fd_ = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("cudasim", MFD_CLOEXEC);
    if (fd_ < 0)
        return;
    lock();
    void *map = MAP_FAILED;
    if (ftruncate(fd_, sizeof(Shared)) == 0)
        map = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (map != MAP_FAILED) {
        data_ = static_cast<Shared *>(map);
        data_->magic = magic;
    }
    unlock();
}

SharedFile::~SharedFile() {
    if (data_)
        munmap(data_, sizeof(Shared));
    if (fd_ >= 0)
        close(fd_);
}

void SharedFile::lock() {
    set_lock(fd_, F_OFD_SETLKW, F_WRLCK, 0);
}
void SharedFile::unlock() {
    set_lock(fd_, F_OFD_SETLK, F_UNLCK, 0);
}

bool SharedFile::held_by_other(int byte) const {
    struct flock lock = byte_lock(F_WRLCK, byte);
    return fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void SharedFile::drop_dead() {
    for (int i = 0; i < max_processes; i++)
        if (data_->processes[i].pid && i != own_slot_ && !held_by_other(1 + i))
            data_->processes[i] = {};
}

int SharedFile::claim() {
    if (own_slot_ >= 0)
        return own_slot_;
    drop_dead();
    for (int i = 0; i < max_processes; i++) {
        if (data_->processes[i].pid || !set_lock(fd_, F_OFD_SETLK, F_WRLCK, 1 + i))
            continue;
        data_->processes[i] = {};
        data_->processes[i].pid = getpid();
        return own_slot_ = i;
    }
    fprintf(stderr, "cudasim: more than %d processes share %s\n", max_processes, getenv("CUDASIM_SHM"));
    abort();
}

// As long as the child has the parent's description open, be it as a descriptor or behind the mapping, the parent's
// slot is held.
void SharedFile::after_fork() {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd_);
    const int own = open(path, O_RDWR | O_CLOEXEC);
    mmap(data_, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own, 0);
    close(fd_);
    fd_ = own;
    own_slot_ = -1;
}

SharedFile &shared_file() {
    static SharedFile *file = [] {
        const char *path = getenv("CUDASIM_SHM");
        auto *f = new SharedFile(path && *path ? path : nullptr);
        if (!f->valid()) {
            fprintf(stderr, "cudasim: cannot map CUDASIM_SHM=%s: %s\n", path ? path : "", strerror(errno));
            abort();
        }
        f->lock();
        f->data().devices = static_cast<int32_t>(config().devices.size());
        for (size_t i = 0; i < config().devices.size(); i++)
            f->data().memory[i] = config().devices[i].memory;
        f->unlock();
        pthread_atfork(nullptr, nullptr, [] { shared_file().after_fork(); });
        return f;
    }();
    return *file;
}

DeviceUse &own_use(int physical_device) {
    SharedFile &file = shared_file();
    return file.data().processes[file.claim()].use[physical_device];
}

uint64_t used_bytes(Shared &shared, int physical_device) {
    uint64_t sum = 0;
    for (const Process &process : shared.processes)
        if (process.pid)
            sum += process.use[physical_device].bytes();
    return sum;
}

bool take_bytes(int device, uint64_t bytes, uint64_t DeviceUse::*where) {
    FileLock file_lock;
    DeviceUse &use = own_use(physical(device));
    shared_file().drop_dead();
    if (used_bytes(shared_file().data(), physical(device)) + bytes > device_config(device).memory)
        return false;
    use.*where += bytes;
    return true;
}

void give_bytes(int device, uint64_t bytes, uint64_t DeviceUse::*where) {
    FileLock file_lock;
    own_use(physical(device)).*where -= bytes;
}

void count_live(Kind kind, int device, int delta) {
    FileLock file_lock;
    own_use(physical(device)).live[static_cast<int>(kind)] += delta;
}

size_t free_memory(int device) {
    FileLock file_lock;
    shared_file().drop_dead();
    const uint64_t used = used_bytes(shared_file().data(), physical(device));
    const uint64_t total = device_config(device).memory;
    return used < total ? total - used : 0;
}

bool is_lost(int device) {
    return shared_file().data().lost[physical(device)] != 0;
}
void lose_device(int device) {
    shared_file().data().lost[physical(device)] = 1;
}

} // namespace sim
