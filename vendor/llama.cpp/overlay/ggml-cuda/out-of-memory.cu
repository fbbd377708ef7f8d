// Running out of device memory while a graph is computed: an error of that computation, not the end of the process.

#include "ggml-cuda/common.cuh"

#include <new>

void ggml_cuda_throw_out_of_memory(int device, size_t size) {
    (void)cudaGetLastError();
    GGML_LOG_ERROR("%s: device %d has no room for another %.2f MiB\n", __func__, device, size / 1024.0 / 1024.0);
    throw std::bad_alloc();
}

void ggml_cuda_abandon_graph(ggml_backend_cuda_context &ctx, bool capturing, const void *graph_key) {
    ctx.curr_stream_no = 0;
#ifdef USE_CUDA_GRAPH
    if (capturing) {
        cudaGraph_t graph = nullptr;
        (void)cudaStreamEndCapture(ctx.stream(), &graph);
        if (graph != nullptr) {
            (void)cudaGraphDestroy(graph);
        }
        ctx.cuda_graphs.erase(graph_key); // half a capture says nothing about the whole: warm up again
        std::lock_guard<std::mutex> lock(ggml_cuda_lock);
        if (ggml_cuda_lock_counter.fetch_sub(1) == 1) {
            ggml_cuda_lock_cv.notify_all();
        }
    }
#else
    GGML_UNUSED(capturing);
    GGML_UNUSED(graph_key);
#endif
    // what was launched before still reads its operands, which the caller may free now
    for (cudaStream_t stream : ctx.streams[ctx.device]) {
        if (stream != nullptr) {
            (void)cudaStreamSynchronize(stream);
        }
    }
    (void)cudaGetLastError();
}
