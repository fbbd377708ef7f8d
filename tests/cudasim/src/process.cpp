// What one process has once: the lock, the log, the counting of faults.
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"
#include "shared.h"

namespace sim {

std::recursive_mutex &core_mutex() {
    static auto *mutex = new std::recursive_mutex; // never destroyed: exit handlers of others still call in
    return *mutex;
}

const char *kind_name(Kind kind) {
    static const char *names[] = {"device_memory",   "pinned_memory",  "managed_memory", "host_registration",
                                  "vmm_reservation", "vmm_allocation", "stream",         "event",
                                  "graph",           "graph_exec",     "blas_handle",    "peer_access"};
    static_assert(sizeof names / sizeof *names == static_cast<size_t>(Kind::count), "a kind without a name");
    return names[static_cast<int>(kind)];
}

const char *status_name(Status status) {
    switch (status) {
    case Status::ok:
        return "no error";
    case Status::invalid_value:
        return "invalid argument";
    case Status::out_of_memory:
        return "out of memory";
    case Status::not_initialized:
        return "initialization error";
    case Status::invalid_configuration:
        return "invalid configuration argument";
    case Status::invalid_device_function:
        return "invalid device function";
    case Status::no_device:
        return "no CUDA-capable device is detected";
    case Status::invalid_device:
        return "invalid device ordinal";
    case Status::invalid_context:
        return "invalid device context";
    case Status::invalid_handle:
        return "invalid resource handle";
    case Status::not_ready:
        return "device not ready";
    case Status::illegal_address:
        return "an illegal memory access was encountered";
    case Status::peer_already_enabled:
        return "peer access is already enabled";
    case Status::peer_not_enabled:
        return "peer access has not been enabled";
    case Status::host_already_registered:
        return "part or all of the requested memory range is already mapped";
    case Status::host_not_registered:
        return "pointer does not correspond to a registered memory region";
    case Status::launch_failure:
        return "unspecified launch failure";
    case Status::not_supported:
        return "operation not supported";
    case Status::capture_unsupported:
        return "operation not permitted when stream is capturing";
    case Status::unknown:
        return "unknown error";
    }
    return "unrecognized error code";
}

void say(int level, const char *format, ...) {
    if (config().verbose < level)
        return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "cudasim[%d]: %s\n", static_cast<int>(getpid()), text);
}

static void count_fault(FaultClass what, const char *kind, const std::string &name) {
    FileLock file_lock;
    Shared &shared = shared_file().data();
    const int stale = what == FaultClass::stale;
    const std::string short_name = name.substr(0, sizeof FaultCount().name - 1);
    for (int i = 0; i < shared.faults_used; i++) {
        FaultCount &f = shared.faults[i];
        if (f.stale == stale && !strcmp(f.kind, kind) && short_name == f.name) {
            f.count++;
            return;
        }
    }
    // A full table still counts, in its last row: no fault may go unseen.
    FaultCount &f = shared.faults[shared.faults_used < max_faults ? shared.faults_used++ : max_faults - 1];
    snprintf(f.kind, sizeof f.kind, "%s", kind);
    snprintf(f.name, sizeof f.name, "%s", short_name.c_str());
    f.stale = stale;
    f.count++;
}

Status fault(FaultClass what, const char *kind, const std::string &name, Status status, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    count_fault(what, kind, name);
    static std::atomic<int> said{0};
    if (said++ < 50)
        say(1, "%s %s: %s: %s", what == FaultClass::stale ? "STALE" : "MISUSE", kind, name.c_str(), text);
    if (config().abort_on_fault)
        abort();
    return config().continue_on_fault ? Status::ok : status;
}

uint64_t mix(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 1099511628211ull;
}

uint64_t hash_text(const char *text) {
    uint64_t hash = 1469598103934665603ull;
    for (; *text; ++text)
        hash = mix(hash, static_cast<unsigned char>(*text));
    return hash;
}

Trace &trace() {
    static auto *t = new Trace;
    return *t;
}

} // namespace sim
