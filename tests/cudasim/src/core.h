// The simulated card: everything the runtime, driver, BLAS and NVML libraries share. It knows nothing of CUDA's or
// HIP's headers, so that both flavours are thin faces of the same core (libcudasim.so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace sim {

// The numbers are those of cudaError_t, which CUresult and hipError_t share; every face asserts that they do.
enum class Status : int {
    ok = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    invalid_configuration = 9,
    invalid_device_function = 98,
    no_device = 100,
    invalid_device = 101,
    invalid_context = 201,
    invalid_handle = 400,
    not_ready = 600,
    illegal_address = 700,
    peer_already_enabled = 704,
    peer_not_enabled = 705,
    host_already_registered = 712,
    host_not_registered = 713,
    launch_failure = 719,
    not_supported = 801,
    capture_unsupported = 900,
    unknown = 999,
};
const char *status_name(Status status);

// ------------------------------------------------------------------------------------------------- configuration
struct DeviceConfig {
    int cc = 86;           // compute capability, major * 10 + minor
    size_t memory = 0;     // bytes
    int shared_opt_in = 0; // dynamic shared memory a kernel may be raised to
    int shared_per_sm = 0;
};

struct Config {
    std::vector<DeviceConfig> devices; // physical order
    std::vector<int> visible;          // logical index -> physical index
    std::set<std::pair<int, int>> peers;
    size_t context_bytes = 0;
    size_t residual_bytes = 0; // > 0: ROCm mode
    bool vmm = true;
    int ptx = 75;
    int fail_reset = 0;  // how many resets fail, -1: all
    long fail_alloc = 0; // which allocation fails, 0: none
    bool fail_alloc_onwards = false;
    int lost_device = -1;
    long lost_at_launch = 0;
    bool nvml_reverse = true;
    bool nvml_hide_pids = false;
    bool continue_on_fault = false;
    bool abort_on_fault = false;
    int verbose = 1;
};
const Config &config();
void set_hip();     // libamdhip64 is loaded: HIP's limits hold
int device_count(); // visible devices
int physical(int device);
const DeviceConfig &device_config(int device);
std::string device_name(int physical_device);
void device_uuid(int physical_device, unsigned char (&uuid)[16]);
std::string uuid_text(int physical_device); // as nvidia-smi writes it
int pci_bus(int physical_device);           // bus number; domain, device and function are 0

// --------------------------------------------------------------------------------------------------------- kinds
// What a process can have alive on a device. The order is that of the shared file.
enum class Kind : int {
    device_memory,
    pinned_memory,
    managed_memory,
    host_registration,
    vmm_reservation,
    vmm_allocation,
    stream,
    event,
    graph,
    graph_exec,
    blas_handle,
    peer_access,
    count
};
const char *kind_name(Kind kind);

// ------------------------------------------------------------------------------------------------------- process
// All entry points take this lock; it is recursive because they call each other.
std::recursive_mutex &core_mutex();
struct Lock {
    std::lock_guard<std::recursive_mutex> guard{core_mutex()};
};
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// A use of something that is gone ("stale") or never was right ("misuse"). Counted by kind and name in the shared file
// and said on stderr. Returns `status`, or ok where CUDASIM_ON_FAULT=continue asks to go on as if nothing were wrong.
enum class FaultClass { stale, misuse };
Status fault(FaultClass what, const char *kind, const std::string &name, Status status, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// ------------------------------------------------------------------------------------------------------- context
struct Context {
    bool active = false;
    unsigned flags = 0;
    uint64_t generation = 0;                               // counts the primary contexts this process had on the device
    int retained = 0;                                      // by cuDevicePrimaryCtxRetain
    bool runtime = false;                                  // the runtime holds it, until a reset
    std::set<int> peers;                                   // devices whose memory kernels of this context may touch
    std::set<int> ever_peers;                              // the same, of this context or an earlier one
    std::unordered_map<const void *, size_t> shared_limit; // kernel -> raised dynamic shared memory
};
Context &context(int device);
int current_device();
void set_current_device(int device); // no context, no check
Status check_device(int device);     // valid index and not lost
Status use_context(const char *api); // of the current device, creates it
Status create_context(int device, const char *api);
Status set_device(int device, const char *api);
Status reset_device(int device, const char *api);
Status retain_context(int device, const char *api);
Status release_context(int device, const char *api);
Status enable_peer(int peer, const char *api);
Status disable_peer(int peer, const char *api);
bool can_access_peer(int device, int peer);
bool context_alive(int device, uint64_t generation);
void lose_device(int device);
size_t free_memory(int device);

// -------------------------------------------------------------------------------------------------------- memory
enum class Copy { host_to_host, host_to_device, device_to_host, device_to_device, any };
Status allocate(void **pointer, size_t size, Kind kind, const char *api);
Status release(void *pointer, Kind kind, const char *api);
Status register_host(void *pointer, size_t size, const char *api);
Status unregister_host(void *pointer, const char *api);
// The range lies in one live allocation; a host pointer may also lie in none. `device_needed`: host memory will not do.
Status check_range(const void *pointer, size_t size, bool device_needed, const char *api);
// A kernel argument: only what surely is wrong is a fault, an unknown address is not.
Status check_argument(const void *pointer, const std::string &kernel, const char *api);
int memory_device(const void *pointer, Kind *kind); // -1: not ours
// Copies happen at once, on the host; in a capture they are only recorded.
Status copy(void *to, const void *from, size_t size, Copy direction, void *stream, const char *api);
Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
               Copy direction, void *stream, const char *api);
Status copy_peer(void *to, int to_device, const void *from, int from_device, size_t size, void *stream,
                 const char *api);
Status fill(void *pointer, int value, size_t size, void *stream, const char *api);
void destroy_memory(int device); // what a reset destroys

Status vmm_create(uint64_t *handle, size_t size, int device, const char *api);
Status vmm_release(uint64_t handle, const char *api);
Status vmm_reserve(void **pointer, size_t size, const char *api);
Status vmm_unreserve(void *pointer, size_t size, const char *api);
Status vmm_map(void *pointer, size_t size, size_t offset, uint64_t handle, const char *api);
Status vmm_unmap(void *pointer, size_t size, const char *api);
Status vmm_set_access(void *pointer, size_t size, const std::vector<int> &devices, const char *api);

// ------------------------------------------------------------------------------- streams, events, graphs, handles
struct Node { // one captured operation
    uint64_t hash = 0;
    std::string kernel;
    std::vector<const void *> pointers;
};
struct Capture {
    bool open = true;
    std::vector<Node> nodes;
};
struct Object {
    Kind kind;
    int device;
    uint64_t generation;
    const char *gone = nullptr;       // why it is no longer alive
    std::shared_ptr<Capture> capture; // stream: being captured; event: recorded in; graph, graph_exec: content
    void *stream = nullptr;           // capture: its first stream; blas_handle: the stream set
};
// Handles are never reused: a stale one is always recognised.
Object *find_object(void *handle, Kind kind, const char *api, Status &status);
Status destroy_object(void *handle, Kind kind, const char *api);
void destroy_objects(int device, const char *why);

Status create_object(void **handle, Kind kind, const char *api); // with the current device's context
Status check_stream(void *stream, const char *api);              // the default streams create the context
int stream_device(void *stream);                                 // -1: a default stream, or none that lives
Status synchronize_stream(void *stream, const char *api);
Status wait_event(void *stream, void *event, const char *api);
Status record_event(void *event, void *stream, const char *api);
Status check_event(void *event, const char *api);
Status begin_capture(void *stream, const char *api);
Status end_capture(void *stream, void **graph, const char *api);
bool is_capturing(void *stream);
Status instantiate(void **exec, void *graph, const char *api);
Status update_exec(void *exec, void *graph, const char *api);
Status launch_graph(void *exec, void *stream, const char *api);
void record(Node node, void *stream); // into the capture, or into the trace where there is none

// -------------------------------------------------------------------------------------------------------- kernels
struct Size3 {
    unsigned x, y, z;
};
void register_function(void *module, const void *function, const char *mangled);
void forget_module(void *module);
Status launch(const void *function, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream,
              const char *api);
Status set_shared_limit(const void *function, int bytes, const char *api);
struct CallConfiguration { // what <<<>>> leaves for the stub of the kernel
    Size3 grid, block;
    size_t shared;
    void *stream;
};
void push_call(const CallConfiguration &configuration);
bool pop_call(CallConfiguration *configuration);
Status known_function(const void *function, const char *api);
size_t shared_limit(const void *function);
bool is_cub_probe(const void *function);
Status occupancy(int *blocks, const void *function, int threads, size_t shared, const char *api);

uint64_t hash_text(const char *text);
uint64_t mix(uint64_t hash, uint64_t value);
struct Trace {
    uint64_t hash = 1469598103934665603ull; // FNV-1a
    uint64_t launches = 0;
};
Trace &trace();

// ----------------------------------------------------------------------------------------------------------- BLAS
Status blas_create(void **handle, const char *api);
Status blas_destroy(void *handle, const char *api);
Status blas_set_stream(void *handle, void *stream, const char *api);
// The handle is live, and so is the device memory given with it.
Status blas_check(void *handle, const void *pointer, size_t size, const char *api);
// One use: handle, its stream and the three matrices must be live; ROCm mode leaves its residue.
Status blas_use(void *handle, const void *a, const void *b, const void *c, const char *api);

} // namespace sim
