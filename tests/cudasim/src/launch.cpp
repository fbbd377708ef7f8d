// Kernels: which are registered, what a launch must satisfy. The kernel itself is skipped.
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core.h"
#include "shared.h"

namespace sim {

struct Function {
    void *module;
    std::string mangled;
    std::string name; // without template arguments, namespaces and parameters
    bool parsed = false;
    std::vector<bool> pointers; // of each parameter: is it a pointer?
    uint64_t hash = 0;
    std::map<int, uint64_t> raised; // device -> context generation that last had its limit raised
};

// Per thread, and leaked: threads may still launch while others exit.
static std::vector<CallConfiguration> &calls() {
    static thread_local auto *list = new std::vector<CallConfiguration>;
    return *list;
}

static std::unordered_map<const void *, Function> &functions() {
    static auto *map = new std::unordered_map<const void *, Function>;
    return *map;
}

// "void (anonymous namespace)::f<g<1>, 2>(float const*, int)" -> parameters "float const*, int", head "void ...f<g<1>,
// 2>".
static void split_signature(const std::string &text, std::string &head, std::string &parameters) {
    const size_t end = text.rfind(')');
    head = text;
    if (end == std::string::npos)
        return;
    int depth = 0;
    for (size_t i = end + 1; i-- > 0;) {
        if (text[i] == ')')
            depth++;
        if (text[i] == '(' && --depth == 0) {
            head = text.substr(0, i);
            parameters = text.substr(i + 1, end - i - 1);
            return;
        }
    }
}

static std::string plain_name(const std::string &head) {
    std::string name;
    int depth = 0;
    for (char c : head) {
        if (c == '<' || c == '(')
            depth++;
        if (!depth)
            name += c;
        if (c == '>' || c == ')')
            depth--;
    }
    const size_t cut = name.find_last_of(" :");
    return cut == std::string::npos ? name : name.substr(cut + 1);
}

static std::vector<bool> pointer_parameters(const std::string &parameters) {
    std::vector<bool> result;
    std::string one;
    int depth = 0;
    auto finish = [&] {
        const size_t last = one.find_last_not_of(' ');
        if (last != std::string::npos)
            result.push_back(one[last] == '*' || one.find("* __restrict") != std::string::npos);
        one.clear();
    };
    for (char c : parameters) {
        if (c == '<' || c == '(')
            depth++;
        if (c == '>' || c == ')')
            depth--;
        if (c == ',' && !depth)
            finish();
        else
            one += c;
    }
    finish();
    return result;
}

static void parse(Function &f) {
    if (f.parsed)
        return;
    f.parsed = true;
    f.name = f.mangled;
    f.hash = hash_text(f.mangled.c_str());
    int status = 0;
    char *demangled = abi::__cxa_demangle(f.mangled.c_str(), nullptr, nullptr, &status);
    if (!demangled)
        return;
    std::string head, parameters;
    split_signature(demangled, head, parameters);
    free(demangled);
    f.name = plain_name(head);
    f.pointers = pointer_parameters(parameters);
}

void register_function(void *module, const void *function, const char *mangled) {
    Lock lock;
    Function f;
    f.module = module;
    f.mangled = mangled;
    functions()[function] = std::move(f);
}

void forget_module(void *module) {
    Lock lock;
    for (auto it = functions().begin(); it != functions().end();) {
        if (it->second.module != module) {
            ++it;
            continue;
        }
        for (int device = 0; device < device_count(); device++)
            context(device).shared_limit.erase(it->first);
        it = functions().erase(it);
    }
}

Status known_function(const void *function, const char *api) {
    Lock lock;
    if (functions().count(function))
        return Status::ok;
    return fault(FaultClass::misuse, "function", api, Status::invalid_device_function, "%p is no registered kernel",
                 function);
}

void push_call(const CallConfiguration &configuration) {
    calls().push_back(configuration);
}

bool pop_call(CallConfiguration *configuration) {
    if (calls().empty())
        return false;
    *configuration = calls().back();
    calls().pop_back();
    return true;
}

bool is_cub_probe(const void *function) {
    Lock lock;
    auto it = functions().find(function);
    return it != functions().end() && it->second.mangled.find("EmptyKernel") != std::string::npos;
}

// CUDA lets a kernel have more than 48 KiB only after it was asked to; on AMD all 64 KiB of a block are there unasked.
static size_t unraised_limit = 48 * 1024;
void set_hip() {
    unraised_limit = 64 * 1024;
}

size_t shared_limit(const void *function) {
    const auto &limits = context(current_device()).shared_limit;
    auto it = limits.find(function);
    return it == limits.end() ? unraised_limit : it->second;
}

Status set_shared_limit(const void *function, int bytes, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (Status s = known_function(function, api); s != Status::ok)
        return s;
    const int device = current_device();
    if (bytes < 0 || static_cast<size_t>(bytes) > std::max<size_t>(unraised_limit, device_config(device).shared_opt_in))
        return Status::invalid_value;
    context(device).shared_limit[function] = bytes;
    functions()[function].raised[device] = context(device).generation;
    return Status::ok;
}

// Stale if an earlier context of this device had the limit raised far enough to say "it was done, and then lost".
static Status too_much_shared(Function &f, const void *function, size_t shared, const char *api) {
    const int device = current_device();
    auto raised = f.raised.find(device);
    const bool lost = raised != f.raised.end() && raised->second != context(device).generation;
    return fault(lost ? FaultClass::stale : FaultClass::misuse, "attribute", f.name, Status::invalid_value,
                 "%s: %zu bytes of dynamic shared memory, the limit is %zu in context %llu of device %d%s", api, shared,
                 shared_limit(function), static_cast<unsigned long long>(context(device).generation), device,
                 lost ? " (it was raised in an earlier context)" : "");
}

static bool geometry_ok(Size3 grid, Size3 block) {
    const bool grid_ok = grid.x && grid.y && grid.z && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535;
    const bool block_ok = block.x && block.y && block.z && block.x <= 1024 && block.y <= 1024 && block.z <= 64;
    return grid_ok && block_ok && uint64_t(block.x) * block.y * block.z <= 1024;
}

static long launches_made[16] = {};

static void maybe_lose_device(int device) {
    const Config &c = config();
    if (physical(device) == c.lost_device && ++launches_made[device] > c.lost_at_launch)
        lose_device(device);
}

Status launch(const void *function, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream,
              const char *api) {
    Lock lock;
    const int device = current_device();
    if (Status s = check_device(device); s != Status::ok)
        return s;
    maybe_lose_device(device);
    if (Status s = check_stream(stream, api); s != Status::ok)
        return s;
    if (Status s = known_function(function, api); s != Status::ok)
        return s;
    Function &f = functions()[function];
    parse(f);
    if (const int owner = stream_device(stream); owner >= 0 && owner != device)
        return fault(FaultClass::misuse, "stream", f.name, Status::invalid_handle,
                     "stream of device %d, current device is %d", owner, device);
    if (!geometry_ok(grid, block))
        return fault(FaultClass::misuse, "geometry", f.name, Status::invalid_configuration,
                     "<<<(%u,%u,%u),(%u,%u,%u)>>>", grid.x, grid.y, grid.z, block.x, block.y, block.z);
    if (shared > shared_limit(function))
        if (Status s = too_much_shared(f, function, shared, api); s != Status::ok)
            return s;

    Node node;
    node.kernel = f.name;
    for (size_t i = 0; arguments && i < f.pointers.size(); i++) {
        if (!f.pointers[i])
            continue;
        const void *pointer = *static_cast<void **>(arguments[i]);
        if (!pointer)
            continue;
        if (Status s = check_argument(pointer, f.name, api); s != Status::ok)
            return s;
        node.pointers.push_back(pointer);
    }
    node.hash = f.hash;
    for (uint64_t v : {uint64_t(grid.x), uint64_t(grid.y), uint64_t(grid.z), uint64_t(block.x), uint64_t(block.y),
                       uint64_t(block.z), uint64_t(shared), uint64_t(device)})
        node.hash = mix(node.hash, v);
    say(3, "%s %s<<<(%u,%u,%u),(%u,%u,%u),%zu,%p>>>", api, f.name.c_str(), grid.x, grid.y, grid.z, block.x, block.y,
        block.z, shared, stream);
    record(std::move(node), stream);
    return Status::ok;
}

Status occupancy(int *blocks, const void *function, int threads, size_t shared, const char *api) {
    Lock lock;
    *blocks = 0;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (Status s = known_function(function, api); s != Status::ok)
        return s;
    if (threads <= 0 || threads > 1024)
        return Status::invalid_value;
    Function &f = functions()[function];
    parse(f);
    const DeviceConfig &device = device_config(current_device());
    if (shared > shared_limit(function)) {
        // The real call succeeds and says that no block fits.
        too_much_shared(f, function, shared, api);
        if (!config().continue_on_fault || shared > size_t(device.shared_opt_in))
            return Status::ok;
    }
    const int by_threads = 2048 / ((threads + 31) / 32 * 32);
    const int by_shared = static_cast<int>(device.shared_per_sm / (shared + 1024)); // the system keeps 1 KiB a block
    *blocks = std::max(1, std::min({by_threads, by_shared, 16}));
    return Status::ok;
}

} // namespace sim
