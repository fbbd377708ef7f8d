// Handles: streams, events, graphs, BLAS handles. What each is, whether it still lives, and stream capture.
#include <deque>
#include <utility>

#include "core.h"
#include "shared.h"

namespace sim {

// All that were ever made, in order: a handle is the place in this list, as an address at which nothing is mapped.
static std::deque<Object> &objects() {
    static auto *list = new std::deque<Object>;
    return *list;
}

constexpr uintptr_t first_handle = 0x510000000000, handle_step = 64;

static Object *object_at(void *handle) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - first_handle;
    return offset % handle_step == 0 && offset / handle_step < objects().size() ? &objects()[offset / handle_step]
                                                                                : nullptr;
}

static void *new_object(Kind kind, std::shared_ptr<Capture> content = nullptr) {
    void *handle = reinterpret_cast<void *>(first_handle + handle_step * objects().size());
    const int device = current_device();
    objects().push_back({kind, device, context(device).generation, nullptr, std::move(content), nullptr});
    count_live(kind, device, 1);
    return handle;
}

Object *find_object(void *handle, Kind kind, const char *api, Status &status) {
    Object *o = object_at(handle);
    status = Status::ok;
    if (o && o->kind == kind && !o->gone)
        return o;
    if (o && o->kind == kind)
        status = fault(FaultClass::stale, kind_name(kind), api, Status::invalid_handle,
                       "%p of device %d, context %llu (now %llu): %s", handle, o->device,
                       static_cast<unsigned long long>(o->generation),
                       static_cast<unsigned long long>(context(o->device).generation), o->gone);
    else
        status = fault(FaultClass::misuse, kind_name(kind), api, Status::invalid_handle, "%p is %s", handle,
                       o ? kind_name(o->kind) : "an unknown handle");
    return nullptr;
}

static void retire(Object &o, const char *why) {
    o.gone = why;
    o.capture.reset();
    count_live(o.kind, o.device, -1);
}

Status create_object(void **handle, Kind kind, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    *handle = new_object(kind);
    return Status::ok;
}

Status destroy_object(void *handle, Kind kind, const char *api) {
    Lock lock;
    if (Status s = check_device(current_device()); s != Status::ok)
        return s;
    Status status;
    if (Object *o = find_object(handle, kind, api, status))
        retire(*o, "destroyed");
    return status;
}

void destroy_objects(int device, const char *why) {
    for (Object &o : objects())
        if (!o.gone && o.device == device)
            retire(o, why);
}

static bool is_default(void *stream) {
    return reinterpret_cast<uintptr_t>(stream) <= 2;
}

// The live stream behind a handle, nullptr for a default stream (which belongs to the current device and creates its
// context).
static Object *use_stream(void *stream, const char *api, Status &status) {
    if (is_default(stream)) {
        status = use_context(api);
        return nullptr;
    }
    Object *o = find_object(stream, Kind::stream, api, status);
    if (o && is_lost(o->device))
        status = Status::launch_failure;
    return o;
}

Status check_stream(void *stream, const char *api) {
    Lock lock;
    Status status;
    use_stream(stream, api, status);
    return status;
}

int stream_device(void *stream) {
    Lock lock;
    const Object *o = object_at(stream);
    return o && !o->gone ? o->device : -1;
}

bool is_capturing(void *stream) {
    Lock lock;
    const Object *o = object_at(stream);
    return o && o->capture && o->capture->open;
}

Status synchronize_stream(void *stream, const char *api) {
    Lock lock;
    Status status;
    use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    return is_capturing(stream) ? Status::capture_unsupported : Status::ok;
}

Status wait_event(void *stream, void *event, const char *api) {
    Lock lock;
    Status status;
    Object *s = use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    Object *e = find_object(event, Kind::event, api, status);
    // Waiting for an event of a capture makes the waiting stream part of it.
    if (e && s && e->capture && e->capture->open)
        s->capture = e->capture;
    return status;
}

Status record_event(void *event, void *stream, const char *api) {
    Lock lock;
    Status status;
    Object *s = use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    Object *e = find_object(event, Kind::event, api, status);
    if (!e)
        return status;
    const int device = s ? s->device : current_device();
    if (e->device != device)
        return fault(FaultClass::misuse, "event", api, Status::invalid_handle,
                     "event of device %d recorded in a stream of device %d", e->device, device);
    e->capture = s ? s->capture : nullptr;
    return status;
}

Status check_event(void *event, const char *api) {
    Lock lock;
    Status status;
    Object *e = find_object(event, Kind::event, api, status);
    return e && is_lost(e->device) ? Status::launch_failure : status;
}

Status begin_capture(void *stream, const char *api) {
    Lock lock;
    Status status;
    Object *s = use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    if (!s || is_capturing(stream))
        return fault(FaultClass::misuse, "stream", api, Status::capture_unsupported,
                     "this stream cannot begin a capture");
    s->capture = std::make_shared<Capture>();
    s->stream = stream;
    return Status::ok;
}

Status end_capture(void *stream, void **graph, const char *api) {
    Lock lock;
    Status status;
    Object *s = use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    if (!s || !is_capturing(stream) || s->stream != stream)
        return fault(FaultClass::misuse, "stream", api, Status::invalid_value, "this stream did not begin a capture");
    s->capture->open = false; // which other streams that joined it see
    s->stream = nullptr;
    *graph = new_object(Kind::graph, std::move(s->capture));
    return Status::ok;
}

Status instantiate(void **exec, void *graph, const char *api) {
    Lock lock;
    if (Status s = use_context(api); s != Status::ok)
        return s;
    Status status;
    Object *g = find_object(graph, Kind::graph, api, status);
    if (!g)
        return status == Status::ok ? Status::invalid_handle : status; // there is nothing to hand out
    *exec = new_object(Kind::graph_exec, g->capture);
    return Status::ok;
}

Status update_exec(void *exec, void *graph, const char *api) {
    Lock lock;
    Status status;
    Object *x = find_object(exec, Kind::graph_exec, api, status);
    if (!x)
        return status;
    Object *g = find_object(graph, Kind::graph, api, status);
    if (g)
        x->capture = g->capture;
    return status;
}

void record(Node node, void *stream) {
    if (is_capturing(stream)) {
        object_at(stream)->capture->nodes.push_back(std::move(node));
        return;
    }
    trace().hash = mix(trace().hash, node.hash);
    trace().launches++;
}

Status launch_graph(void *exec, void *stream, const char *api) {
    Lock lock;
    Status status;
    use_stream(stream, api, status);
    if (status != Status::ok)
        return status;
    Object *x = find_object(exec, Kind::graph_exec, api, status);
    if (!x)
        return status;
    for (const Node &node : x->capture->nodes) {
        for (const void *pointer : node.pointers)
            if (Status s = check_argument(pointer, node.kernel, api); s != Status::ok)
                return s;
        Node again;
        again.hash = node.hash;
        record(again, stream);
    }
    return Status::ok;
}

} // namespace sim
