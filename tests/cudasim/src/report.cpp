// The state as JSON, and the C functions tests call.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "../include/cudasim.h"
#include "memory.h"
#include "shared.h"

namespace sim {

// Objects, arrays and members with their commas; keys and texts here never need escaping but for quotes and
// backslashes.
class Json {
  public:
    std::string text;
    Json &open(char bracket) { return separate(), text += bracket, first_ = true, *this; }
    Json &close(char bracket) { return text += bracket, first_ = false, *this; }
    Json &key(const std::string &name) { return separate(), quote(name), text += ": ", first_ = true, *this; }
    Json &number(long long value) { return separate(), text += std::to_string(value), *this; }
    Json &boolean(bool value) { return separate(), text += value ? "true" : "false", *this; }
    Json &string(const std::string &value) { return separate(), quote(value), *this; }

  private:
    bool first_ = true;
    void separate() {
        if (!first_)
            text += ", ";
        first_ = false;
    }
    void quote(const std::string &value) {
        text += '"';
        for (char c : value) {
            if (c == '"' || c == '\\')
                text += '\\';
            text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
        }
        text += '"';
    }
};

static void write_faults(Json &json, Shared &shared, bool stale) {
    uint64_t total = 0;
    json.key(stale ? "stale" : "misuse").open('{');
    for (int i = 0; i < shared.faults_used; i++) {
        const FaultCount &first = shared.faults[i];
        if ((first.stale != 0) != stale)
            continue;
        bool seen = false;
        for (int j = 0; j < i; j++)
            seen = seen || (shared.faults[j].stale == first.stale && !strcmp(shared.faults[j].kind, first.kind));
        if (seen)
            continue;
        json.key(first.kind).open('{');
        for (int j = i; j < shared.faults_used; j++) {
            const FaultCount &f = shared.faults[j];
            if (f.stale != first.stale || strcmp(f.kind, first.kind) != 0)
                continue;
            json.key(f.name).number(static_cast<long long>(f.count));
            total += f.count;
        }
        json.close('}');
    }
    json.close('}');
    json.key(stale ? "stale_total" : "misuse_total").number(static_cast<long long>(total));
}

static void write_live(Json &json, const int64_t *live) {
    json.key("live").open('{');
    for (int k = 0; k < static_cast<int>(Kind::count); k++)
        if (live[k])
            json.key(kind_name(static_cast<Kind>(k))).number(live[k]);
    json.close('}');
}

static void write_process(Json &json, const Process &process, const DeviceUse &use) {
    int64_t live[static_cast<int>(Kind::count)];
    for (int k = 0; k < static_cast<int>(Kind::count); k++)
        live[k] = use.live[k];
    json.open('{').key("pid").number(process.pid).key("bytes").number(static_cast<long long>(use.bytes()));
    json.key("allocated").number(static_cast<long long>(use.allocated));
    json.key("context").number(static_cast<long long>(use.context));
    json.key("residual").number(static_cast<long long>(use.residual));
    json.key("active").boolean(use.active != 0).key("contexts_created").number(use.created);
    write_live(json, live);
    json.close('}');
}

static void write_devices(Json &json, Shared &shared) {
    json.key("devices").open('[');
    for (int d = 0; d < shared.devices; d++) {
        char pci[32];
        snprintf(pci, sizeof pci, "0000:%02x:00.0", pci_bus(d));
        json.open('{').key("index").number(d).key("name").string(device_name(d)).key("uuid").string(uuid_text(d));
        json.key("pci").string(pci).key("total").number(static_cast<long long>(shared.memory[d]));
        json.key("used").number(static_cast<long long>(used_bytes(shared, d))).key("lost").boolean(shared.lost[d] != 0);
        json.key("processes").open('[');
        for (const Process &process : shared.processes) {
            const DeviceUse &use = process.use[d];
            if (process.pid && (use.bytes() || use.created))
                write_process(json, process, use);
        }
        json.close(']').close('}');
    }
    json.close(']');
}

static void write_totals(Json &json, Shared &shared) {
    int64_t live[static_cast<int>(Kind::count)] = {};
    uint64_t bytes = 0;
    int contexts = 0;
    for (const Process &process : shared.processes) {
        if (!process.pid)
            continue;
        for (int d = 0; d < shared.devices; d++) {
            bytes += process.use[d].bytes();
            contexts += process.use[d].active != 0;
            for (int k = 0; k < static_cast<int>(Kind::count); k++)
                live[k] += process.use[d].live[k];
        }
    }
    json.key("bytes").number(static_cast<long long>(bytes)).key("contexts").number(contexts);
    write_live(json, live);
}

static void write_events(Json &json, Shared &shared) {
    json.key("context_events").open('[');
    const uint64_t count = shared.event_count;
    for (uint64_t i = count > max_events ? count - max_events : 0; i < count; i++) {
        const ContextEvent &e = shared.events[i % max_events];
        json.open('{').key("pid").number(e.pid).key("device").number(e.device);
        json.key("generation").number(static_cast<long long>(e.generation)).key("api").string(e.api).close('}');
    }
    json.close(']').key("contexts_created").number(static_cast<long long>(count));
}

std::string report_json(SharedFile &file, bool own_process) {
    Lock lock;
    Json json;
    json.open('{');
    if (own_process) {
        char hash[32];
        snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(trace().hash));
        json.key("pid").number(getpid()).key("launches").number(static_cast<long long>(trace().launches));
        json.key("trace").string(hash);
    }
    file.lock();
    file.drop_dead();
    Shared &shared = file.data();
    write_totals(json, shared);
    write_faults(json, shared, true);
    write_faults(json, shared, false);
    write_devices(json, shared);
    write_events(json, shared);
    file.unlock();
    return json.close('}').text;
}

static size_t copy_out(const std::string &text, char *buffer, size_t size) {
    if (size) {
        const size_t n = text.size() < size ? text.size() : size - 1;
        memcpy(buffer, text.data(), n);
        buffer[n] = 0;
    }
    return text.size();
}

} // namespace sim

extern "C" {
size_t cudasim_report(char *buffer, size_t size) {
    return sim::copy_out(sim::report_json(sim::shared_file(), true), buffer, size);
}

size_t cudasim_report_file(const char *path, char *buffer, size_t size) {
    sim::SharedFile file(path);
    return file.valid() ? sim::copy_out(sim::report_json(file, false), buffer, size) : 0;
}

unsigned long long cudasim_trace_hash() {
    sim::Lock lock;
    return sim::trace().hash;
}

unsigned long long cudasim_trace_launches() {
    sim::Lock lock;
    return sim::trace().launches;
}

void cudasim_trace_reset() {
    sim::Lock lock;
    sim::trace() = {};
}

void cudasim_fail_alloc(long n) {
    sim::fail_alloc(n);
}
void cudasim_lose_device(int device) {
    if (device >= 0 && device < sim::device_count())
        sim::lose_device(device);
}

int cudasim_lose_device_file(const char *path, int physical_device) {
    sim::SharedFile file(path);
    if (!file.valid() || physical_device < 0 || physical_device >= sim::max_devices)
        return 0;
    file.data().lost[physical_device] = 1;
    return 1;
}
}
