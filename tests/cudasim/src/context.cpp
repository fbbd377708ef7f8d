// Primary contexts: which call creates one, what ends with it.
#include <pthread.h>
#include <unistd.h>

#include <cstdio>

#include "core.h"
#include "shared.h"

namespace sim {

static thread_local int this_device = 0;
static bool ever_created = false; // a context, in this process
static bool forked = false;       // since then: CUDA is unusable here, as on a real card

static Context *contexts() {
    static Context *list = [] {
        pthread_atfork(nullptr, nullptr, [] { forked = forked || ever_created; });
        return new Context[max_devices];
    }();
    return list;
}

Context &context(int device) {
    return contexts()[device];
}

int current_device() {
    return this_device;
}

void set_current_device(int device) {
    this_device = device;
}

bool context_alive(int device, uint64_t generation) {
    return context(device).active && context(device).generation == generation;
}

Status check_device(int device) {
    if (forked)
        return Status::not_initialized;
    if (!device_count())
        return Status::no_device;
    if (device < 0 || device >= device_count())
        return Status::invalid_device;
    return is_lost(device) ? Status::launch_failure : Status::ok;
}

static void note_creation(int device, uint64_t generation, const char *api) {
    FileLock file_lock;
    DeviceUse &use = own_use(physical(device));
    use.active = 1;
    use.created++;
    Shared &shared = shared_file().data();
    ContextEvent &event = shared.events[shared.event_count++ % max_events];
    event.pid = getpid();
    event.device = physical(device);
    event.generation = generation;
    snprintf(event.api, sizeof event.api, "%s", api);
}

Status create_context(int device, const char *api) {
    if (Status s = check_device(device); s != Status::ok)
        return s;
    Context &c = context(device);
    if (c.active)
        return Status::ok;
    if (!take_bytes(device, config().context_bytes, &DeviceUse::context))
        return Status::out_of_memory;
    c.active = true;
    c.generation++;
    ever_created = true;
    note_creation(device, c.generation, api);
    say(2, "context %llu of device %d created by %s", static_cast<unsigned long long>(c.generation), device, api);
    return Status::ok;
}

Status use_context(const char *api) {
    Status s = create_context(this_device, api);
    if (s == Status::ok)
        context(this_device).runtime = true;
    return s;
}

Status set_device(int device, const char *api) {
    if (Status s = check_device(device); s != Status::ok)
        return s;
    this_device = device;
    return use_context(api);
}

static void forget_peer(Context &c, int device, int peer) {
    if (c.peers.erase(peer))
        count_live(Kind::peer_access, device, -1);
}

static void destroy_context(int device, const char *why) {
    Context &c = context(device);
    destroy_memory(device);
    destroy_objects(device, why);
    for (int other = 0; other < device_count(); other++) {
        forget_peer(c, device, other);
        forget_peer(context(other), other, device);
    }
    c.active = c.runtime = false;
    c.flags = 0;
    c.retained = 0;
    c.shared_limit.clear();
    FileLock file_lock;
    DeviceUse &use = own_use(physical(device));
    use.active = 0;
    use.context = 0;
}

Status reset_device(int device, const char *api) {
    if (Status s = check_device(device); s != Status::ok)
        return s;
    static int failed = 0;
    if (config().fail_reset < 0 || failed < config().fail_reset) {
        failed++;
        say(2, "%s(device %d) fails as asked", api, device);
        return Status::unknown;
    }
    if (!context(device).active)
        return Status::ok;
    say(2, "context %llu of device %d destroyed by %s", static_cast<unsigned long long>(context(device).generation),
        device, api);
    destroy_context(device, "destroyed by a device reset");
    return Status::ok;
}

Status retain_context(int device, const char *api) {
    Status s = create_context(device, api);
    if (s == Status::ok)
        context(device).retained++;
    return s;
}

Status release_context(int device, const char *api) {
    if (Status s = check_device(device); s != Status::ok)
        return s;
    Context &c = context(device);
    if (!c.active || !c.retained)
        return fault(FaultClass::misuse, "context", api, Status::invalid_context, "device %d was not retained", device);
    if (--c.retained == 0 && !c.runtime)
        destroy_context(device, "destroyed by the last release of the context");
    return Status::ok;
}

bool can_access_peer(int device, int peer) {
    return config().peers.count({physical(device), physical(peer)}) != 0;
}

Status enable_peer(int peer, const char *api) {
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (Status s = create_context(peer, api); s != Status::ok)
        return s;
    if (!can_access_peer(this_device, peer))
        return Status::invalid_device;
    if (!context(this_device).peers.insert(peer).second)
        return Status::peer_already_enabled;
    context(this_device).ever_peers.insert(peer);
    count_live(Kind::peer_access, this_device, 1);
    return Status::ok;
}

Status disable_peer(int peer, const char *api) {
    if (Status s = use_context(api); s != Status::ok)
        return s;
    if (!context(this_device).peers.count(peer))
        return Status::peer_not_enabled;
    forget_peer(context(this_device), this_device, peer);
    context(this_device).ever_peers.erase(peer); // not lost, but given up
    return Status::ok;
}

} // namespace sim
