// Reads the CUDASIM_* switches, once per process.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"
#include "shared.h"

namespace sim {

static long number(const char *name, long fallback) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : fallback;
}

static std::vector<std::string> words(const char *text) {
    std::vector<std::string> list;
    std::string word;
    for (const char *c = text ? text : "";; ++c) {
        if (*c == ',' || *c == 0) {
            if (!word.empty())
                list.push_back(word);
            word.clear();
            if (*c == 0)
                return list;
        } else {
            word += *c;
        }
    }
}

// "86" for all devices or "86,75" for one each; the last one counts for those that follow.
static long listed(const char *name, int device, long fallback) {
    const std::vector<std::string> list = words(getenv(name));
    if (list.empty())
        return fallback;
    return atol(list[std::min<size_t>(device, list.size() - 1)].c_str());
}

// KiB of shared memory per block with opt-in and per multiprocessor (CUDA programming guide, technical specifications).
static void shared_memory(DeviceConfig &device) {
    struct Row {
        int cc, opt_in, per_sm;
    };
    static const Row rows[] = {{60, 48, 64},    {61, 48, 96},    {70, 96, 96},   {75, 64, 64},   {80, 163, 164},
                               {86, 99, 100},   {87, 163, 164},  {89, 99, 100},  {90, 227, 228}, {100, 227, 228},
                               {103, 227, 228}, {110, 227, 228}, {120, 99, 100}, {121, 99, 100}};
    const Row *row = &rows[0];
    for (const Row &candidate : rows)
        if (candidate.cc <= device.cc)
            row = &candidate;
    device.shared_opt_in = row->opt_in * 1024;
    device.shared_per_sm = row->per_sm * 1024;
}

static std::set<std::pair<int, int>> read_peers(int devices) {
    std::set<std::pair<int, int>> peers;
    const char *text = getenv("CUDASIM_PEERS");
    if (text && !strcmp(text, "none"))
        return peers;
    if (!text || !*text || !strcmp(text, "all")) {
        for (int a = 0; a < devices; a++)
            for (int b = 0; b < devices; b++)
                if (a != b)
                    peers.insert({a, b});
        return peers;
    }
    for (const std::string &word : words(text)) {
        int a = 0, b = 0;
        if (sscanf(word.c_str(), "%d-%d", &a, &b) == 2) {
            peers.insert({a, b});
            peers.insert({b, a});
        }
    }
    return peers;
}

// The rule of the real libraries: the list ends at the first entry that names no device.
static std::vector<int> read_visible(int devices) {
    std::vector<int> visible;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text)
        text = getenv("HIP_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < devices; i++)
            visible.push_back(i);
        return visible;
    }
    for (const std::string &word : words(text)) {
        int found = -1;
        if (word.rfind("GPU-", 0) == 0) {
            for (int i = 0; i < devices; i++)
                if (uuid_text(i).rfind(word, 0) == 0) // a beginning of it will do
                    found = i;
        } else {
            found = atoi(word.c_str());
        }
        if (found < 0 || found >= devices || std::count(visible.begin(), visible.end(), found))
            break;
        visible.push_back(found);
    }
    return visible;
}

static Config read() {
    Config c;
    const int devices = std::clamp<int>(number("CUDASIM_DEVICES", 1), 0, max_devices);
    for (int i = 0; i < devices; i++) {
        DeviceConfig device;
        device.cc = listed("CUDASIM_CC", i, 86);
        device.memory = size_t(listed("CUDASIM_MEMORY_MIB", i, 8192)) << 20;
        shared_memory(device);
        c.devices.push_back(device);
    }
    c.visible = read_visible(devices);
    c.peers = read_peers(devices);
    c.context_bytes = size_t(number("CUDASIM_CONTEXT_MIB", 300)) << 20;
    c.residual_bytes = size_t(number("CUDASIM_RESIDUAL_MIB", 0)) << 20;
    c.vmm = number("CUDASIM_VMM", 1) != 0;
    c.ptx = number("CUDASIM_PTX", 75);
    c.fail_reset = number("CUDASIM_FAIL_RESET", 0);
    c.fail_alloc = number("CUDASIM_FAIL_ALLOC", 0);
    const char *fail = getenv("CUDASIM_FAIL_ALLOC");
    c.fail_alloc_onwards = fail && strchr(fail, '+');
    if (const char *lost = getenv("CUDASIM_LOST"))
        sscanf(lost, "%d@%ld", &c.lost_device, &c.lost_at_launch);
    const char *order = getenv("CUDASIM_NVML_ORDER");
    c.nvml_reverse = !order || strcmp(order, "same") != 0;
    c.nvml_hide_pids = number("CUDASIM_NVML_HIDE_PIDS", 0) != 0;
    const char *on_fault = getenv("CUDASIM_ON_FAULT");
    c.continue_on_fault = on_fault && !strcmp(on_fault, "continue");
    c.abort_on_fault = on_fault && !strcmp(on_fault, "abort");
    c.verbose = number("CUDASIM_VERBOSE", 1);
    return c;
}

const Config &config() {
    static const Config *c = new Config(read()); // never destroyed: exit handlers of others still call in
    return *c;
}

int device_count() {
    return static_cast<int>(config().visible.size());
}
int physical(int device) {
    return config().visible[device];
}
const DeviceConfig &device_config(int device) {
    return config().devices[physical(device)];
}
std::string device_name(int physical_device) {
    return "Simulated GPU " + std::to_string(physical_device);
}
int pci_bus(int physical_device) {
    return 0x21 + 0x20 * (physical_device % 6) + physical_device / 6;
}

void device_uuid(int physical_device, unsigned char (&uuid)[16]) {
    uint64_t word = 0x9e3779b97f4a7c15ull * (physical_device + 1);
    for (int i = 0; i < 16; i++) {
        uuid[i] = static_cast<unsigned char>(word >> (8 * (i % 8)));
        if (i == 7)
            word = word * 6364136223846793005ull + 1442695040888963407ull;
    }
}

std::string uuid_text(int physical_device) {
    unsigned char u[16];
    device_uuid(physical_device, u);
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return text;
}

} // namespace sim
