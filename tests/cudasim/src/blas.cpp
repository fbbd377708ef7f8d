// BLAS handles, for cuBLAS and hipBLAS alike.
#include "core.h"
#include "shared.h"

namespace sim {

Status blas_create(void **handle, const char *api) {
    return create_object(handle, Kind::blas_handle, api);
}
Status blas_destroy(void *handle, const char *api) {
    return destroy_object(handle, Kind::blas_handle, api);
}

Status blas_set_stream(void *handle, void *stream, const char *api) {
    Lock lock;
    Status status;
    Object *h = find_object(handle, Kind::blas_handle, api, status);
    if (!h)
        return status;
    if (Status s = check_stream(stream, api); s != Status::ok)
        return s;
    h->stream = stream;
    return Status::ok;
}

Status blas_check(void *handle, const void *pointer, size_t size, const char *api) {
    Lock lock;
    Status status;
    find_object(handle, Kind::blas_handle, api, status);
    return status == Status::ok && pointer ? check_range(pointer, size, true, api) : status;
}

// rocBLAS loads code objects at its first use that stay on the device until the process ends.
static Status leave_residue(int device) {
    if (!config().residual_bytes)
        return Status::ok;
    {
        FileLock file_lock;
        if (own_use(physical(device)).residual)
            return Status::ok;
    }
    return take_bytes(device, config().residual_bytes, &DeviceUse::residual) ? Status::ok : Status::out_of_memory;
}

Status blas_use(void *handle, const void *a, const void *b, const void *c, const char *api) {
    Lock lock;
    Status status;
    Object *h = find_object(handle, Kind::blas_handle, api, status);
    if (!h)
        return status;
    void *stream = h->stream;
    if (Status s = check_device(h->device); s != Status::ok)
        return s;
    if (Status s = leave_residue(h->device); s != Status::ok)
        return s;
    if (Status s = check_stream(stream, api); s != Status::ok)
        return s;
    Node node;
    node.kernel = api;
    node.hash = hash_text(api);
    for (const void *pointer : {a, b, c}) {
        if (!pointer)
            continue;
        if (Status s = check_range(pointer, 1, true, api); s != Status::ok)
            return s;
        node.pointers.push_back(pointer);
    }
    record(std::move(node), stream);
    return Status::ok;
}

} // namespace sim
