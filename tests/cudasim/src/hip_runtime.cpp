// Simulated libamdhip64: memory, streams, events, graphs, kernels; the same core as libcudart's under HIP's names.
#include "hip.h"

using sim::Copy;
using sim::Kind;
using sim::Lock;
using sim::Size3;
using sim::Status;

static Copy direction(hipMemcpyKind kind) {
    switch (kind) {
    case hipMemcpyHostToHost:
        return Copy::host_to_host;
    case hipMemcpyHostToDevice:
        return Copy::host_to_device;
    case hipMemcpyDeviceToHost:
        return Copy::device_to_host;
    case hipMemcpyDeviceToDevice:
        return Copy::device_to_device;
    default:
        return Copy::any;
    }
}

static Size3 size3(dim3 d) {
    return {d.x, d.y, d.z};
}

extern "C" {

// ------------------------------------------------------------------------------------------------------------ memory

hipError_t hipMalloc(void **pointer, size_t size) {
    return result(sim::allocate(pointer, size, Kind::device_memory, "hipMalloc"));
}

hipError_t hipMallocManaged(void **pointer, size_t size, unsigned) {
    return result(sim::allocate(pointer, size, Kind::managed_memory, "hipMallocManaged"));
}

hipError_t hipHostMalloc(void **pointer, size_t size, unsigned) {
    return result(sim::allocate(pointer, size, Kind::pinned_memory, "hipHostMalloc"));
}

hipError_t hipFree(void *pointer) {
    return result(sim::release(pointer, Kind::device_memory, "hipFree"));
}
hipError_t hipHostFree(void *pointer) {
    return result(sim::release(pointer, Kind::pinned_memory, "hipHostFree"));
}

hipError_t hipHostRegister(void *pointer, size_t size, unsigned) {
    return result(sim::register_host(pointer, size, "hipHostRegister"));
}

hipError_t hipHostUnregister(void *pointer) {
    return result(sim::unregister_host(pointer, "hipHostUnregister"));
}

hipError_t hipHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return result(sim::check_range(host, 1, true, "hipHostGetDevicePointer"));
}

hipError_t hipMemGetInfo(size_t *free, size_t *total) {
    Lock lock;
    if (Status s = sim::use_context("hipMemGetInfo"); s != Status::ok)
        return result(s);
    *free = sim::free_memory(sim::current_device());
    *total = sim::device_config(sim::current_device()).memory;
    return hipSuccess;
}

hipError_t hipMemcpyAsync(void *to, const void *from, size_t size, hipMemcpyKind kind, hipStream_t stream) {
    return result(sim::copy(to, from, size, direction(kind), stream, "hipMemcpyAsync"));
}

hipError_t hipMemcpy(void *to, const void *from, size_t size, hipMemcpyKind kind) {
    return result(sim::copy(to, from, size, direction(kind), nullptr, "hipMemcpy"));
}

hipError_t hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                              hipStream_t stream) {
    return result(sim::copy_peer(to, to_device, from, from_device, size, stream, "hipMemcpyPeerAsync"));
}

hipError_t hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t stream) {
    return result(
        sim::copy_2d(to, to_pitch, from, from_pitch, width, height, direction(kind), stream, "hipMemcpy2DAsync"));
}

hipError_t hipMemsetAsync(void *pointer, int value, size_t size, hipStream_t stream) {
    return result(sim::fill(pointer, value, size, stream, "hipMemsetAsync"));
}

hipError_t hipMemset(void *pointer, int value, size_t size) {
    return result(sim::fill(pointer, value, size, nullptr, "hipMemset"));
}

hipError_t hipMemAdvise(const void *pointer, size_t size, hipMemoryAdvise, int) {
    return result(sim::check_range(pointer, size, true, "hipMemAdvise"));
}

// ------------------------------------------------------------------------------------------ streams, events and graphs

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned) {
    return result(sim::create_object(reinterpret_cast<void **>(stream), Kind::stream, "hipStreamCreate"));
}

hipError_t hipStreamDestroy(hipStream_t stream) {
    return result(sim::destroy_object(stream, Kind::stream, "hipStreamDestroy"));
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
    return result(sim::synchronize_stream(stream, "hipStreamSynchronize"));
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
    return result(sim::wait_event(stream, event, "hipStreamWaitEvent"));
}

hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned) {
    return result(sim::create_object(reinterpret_cast<void **>(event), Kind::event, "hipEventCreate"));
}

hipError_t hipEventDestroy(hipEvent_t event) {
    return result(sim::destroy_object(event, Kind::event, "hipEventDestroy"));
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return result(sim::record_event(event, stream, "hipEventRecord"));
}

hipError_t hipEventSynchronize(hipEvent_t event) {
    return result(sim::check_event(event, "hipEventSynchronize"));
}
hipError_t hipEventQuery(hipEvent_t event) {
    return result(sim::check_event(event, "hipEventQuery"));
}

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode) {
    return result(sim::begin_capture(stream, "hipStreamBeginCapture"));
}

hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph) {
    return result(sim::end_capture(stream, reinterpret_cast<void **>(graph), "hipStreamEndCapture"));
}

hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *capture) {
    *capture = sim::is_capturing(stream) ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    return result(sim::check_stream(stream, "hipStreamIsCapturing"));
}

hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph, hipGraphNode_t *, char *, size_t) {
    return result(sim::instantiate(reinterpret_cast<void **>(exec), graph, "hipGraphInstantiate"));
}

hipError_t hipGraphExecUpdate(hipGraphExec_t exec, hipGraph_t graph, hipGraphNode_t *, hipGraphExecUpdateResult *info) {
    const Status s = sim::update_exec(exec, graph, "hipGraphExecUpdate");
    *info = s == Status::ok ? hipGraphExecUpdateSuccess : hipGraphExecUpdateError;
    return result(s);
}

hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
    return result(sim::launch_graph(exec, stream, "hipGraphLaunch"));
}

hipError_t hipGraphDestroy(hipGraph_t graph) {
    return result(sim::destroy_object(graph, Kind::graph, "hipGraphDestroy"));
}

hipError_t hipGraphExecDestroy(hipGraphExec_t exec) {
    return result(sim::destroy_object(exec, Kind::graph_exec, "hipGraphExecDestroy"));
}

// ------------------------------------------------------------------------------------------------------------ kernels

void **__hipRegisterFatBinary(const void *binary) {
    return new void *(const_cast<void *>(binary));
}
void __hipRegisterVar(void **, void *, char *, char *, int, size_t, int, int) {}

void __hipUnregisterFatBinary(void **module) {
    sim::forget_module(module);
    delete module;
}

void __hipRegisterFunction(void **module, const void *function, char *, const char *mangled, unsigned, void *, void *,
                           void *, void *, int *) {
    sim::register_function(module, function, mangled);
}

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
    sim::push_call({size3(grid), size3(block), shared, stream});
    return hipSuccess;
}

hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, hipStream_t *stream) {
    sim::CallConfiguration call;
    if (!sim::pop_call(&call))
        return hipErrorMissingConfiguration;
    *grid = dim3(call.grid.x, call.grid.y, call.grid.z);
    *block = dim3(call.block.x, call.block.y, call.block.z);
    *shared = call.shared;
    *stream = static_cast<hipStream_t>(call.stream);
    return hipSuccess;
}

hipError_t hipLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream) {
    return result(sim::launch(f, size3(grid), size3(block), arguments, shared, stream, "hipLaunchKernel"));
}

hipError_t hipLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **arguments, unsigned shared,
                                      hipStream_t stream) {
    return result(sim::launch(f, size3(grid), size3(block), arguments, shared, stream, "hipLaunchCooperativeKernel"));
}

hipError_t hipFuncSetAttribute(const void *f, hipFuncAttribute attribute, int value) {
    if (attribute == hipFuncAttributeMaxDynamicSharedMemorySize)
        return result(sim::set_shared_limit(f, value, "hipFuncSetAttribute"));
    return result(sim::known_function(f, "hipFuncSetAttribute"));
}

hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *f) {
    Lock lock;
    *attributes = {};
    if (Status s = sim::use_context("hipFuncGetAttributes"); s != Status::ok)
        return result(s);
    if (Status s = sim::known_function(f, "hipFuncGetAttributes"); s != Status::ok)
        return result(s);
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(sim::shared_limit(f));
    return hipSuccess;
}

hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t shared) {
    return result(sim::occupancy(blocks, f, threads, shared, "hipOccupancyMaxActiveBlocksPerMultiprocessor"));
}
}
