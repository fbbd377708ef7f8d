// Simulated libcudart: streams, events, graphs. All work is done when the call that asked for it returns.
#include "cudart.h"

using sim::Kind;
using sim::Lock;
using sim::Status;

extern "C" {

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
    return result(sim::create_object(reinterpret_cast<void **>(stream), Kind::stream, "cudaStreamCreate"));
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
    return result(sim::destroy_object(stream, Kind::stream, "cudaStreamDestroy"));
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
    return result(sim::synchronize_stream(stream, "cudaStreamSynchronize"));
}

cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) {
    return result(sim::check_stream(stream, "cudaStreamQuery"));
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return result(sim::wait_event(stream, event, "cudaStreamWaitEvent"));
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    Lock lock;
    *least = *greatest = 0;
    return result(sim::use_context("cudaDeviceGetStreamPriorityRange"));
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    return result(sim::create_object(reinterpret_cast<void **>(event), Kind::event, "cudaEventCreate"));
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
    return result(sim::destroy_object(event, Kind::event, "cudaEventDestroy"));
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return result(sim::record_event(event, stream, "cudaEventRecord"));
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) {
    return result(sim::check_event(event, "cudaEventSynchronize"));
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
    return result(sim::check_event(event, "cudaEventQuery"));
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    *milliseconds = 0;
    if (Status s = sim::check_event(from, "cudaEventElapsedTime"); s != Status::ok)
        return result(s);
    return result(sim::check_event(to, "cudaEventElapsedTime"));
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    return result(sim::begin_capture(stream, "cudaStreamBeginCapture"));
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return result(sim::end_capture(stream, reinterpret_cast<void **>(graph), "cudaStreamEndCapture"));
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *capture) {
    Lock lock;
    *capture = sim::is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return result(sim::check_stream(stream, "cudaStreamIsCapturing"));
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    return result(sim::instantiate(reinterpret_cast<void **>(exec), graph, "cudaGraphInstantiate"));
}

cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                          cudaGraphExecUpdateResultInfo *info) {
    *info = {};
    const Status s = sim::update_exec(exec, graph, "cudaGraphExecUpdate");
    info->result = s == Status::ok ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateError;
    return result(s);
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return result(sim::launch_graph(exec, stream, "cudaGraphLaunch"));
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
    return result(sim::destroy_object(graph, Kind::graph, "cudaGraphDestroy"));
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return result(sim::destroy_object(exec, Kind::graph_exec, "cudaGraphExecDestroy"));
}
}
