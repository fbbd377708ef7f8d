// Simulated libcudart: registration of kernels and launches, as nvcc's and clang's host code make them.
#include "cudart.h"

using sim::Lock;
using sim::Size3;
using sim::Status;

static Size3 size3(dim3 d) {
    return {d.x, d.y, d.z};
}

extern "C" {

void **CUDARTAPI __cudaRegisterFatBinary(void *binary) {
    return new void *(binary);
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void **) {}
char CUDARTAPI __cudaInitModule(void **) {
    return 1;
}
void CUDARTAPI __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

void CUDARTAPI __cudaUnregisterFatBinary(void **module) {
    sim::forget_module(module);
    delete module;
}

void CUDARTAPI __cudaRegisterFunction(void **module, const char *function, char *mangled, const char *, int, uint3 *,
                                      uint3 *, dim3 *, dim3 *, int *) {
    sim::register_function(module, function, mangled);
}

unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    sim::push_call({size3(grid), size3(block), shared, stream});
    return 0;
}

cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    sim::CallConfiguration call;
    if (!sim::pop_call(&call))
        return cudaErrorMissingConfiguration;
    *grid = dim3(call.grid.x, call.grid.y, call.grid.z);
    *block = dim3(call.block.x, call.block.y, call.block.z);
    *shared = call.shared;
    *static_cast<void **>(stream) = call.stream;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared,
                                       cudaStream_t stream) {
    return result(sim::launch(f, size3(grid), size3(block), arguments, shared, stream, "cudaLaunchKernel"));
}

cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t *kernel, const void *f) {
    *kernel = static_cast<cudaKernel_t>(const_cast<void *>(f));
    return cudaSuccess;
}

cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **arguments, size_t shared,
                                         cudaStream_t stream) {
    return cudaLaunchKernel(f, grid, block, arguments, shared, stream);
}

cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared,
                                                  cudaStream_t stream) {
    return result(sim::launch(f, size3(grid), size3(block), arguments, shared, stream, "cudaLaunchCooperativeKernel"));
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **arguments) {
    return result(sim::launch(f, size3(c->gridDim), size3(c->blockDim), arguments, c->dynamicSmemBytes, c->stream,
                              "cudaLaunchKernelExC"));
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    if (Status s = sim::check_stream(stream, "cudaLaunchHostFunc"); s != Status::ok)
        return result(s);
    if (!sim::is_capturing(stream))
        function(data); // without the lock: it may call in
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *f, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
        return result(sim::set_shared_limit(f, value, "cudaFuncSetAttribute"));
    Lock lock;
    if (Status s = sim::use_context("cudaFuncSetAttribute"); s != Status::ok)
        return result(s);
    return result(sim::known_function(f, "cudaFuncSetAttribute"));
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *f) {
    Lock lock;
    *attributes = {};
    if (Status s = sim::use_context("cudaFuncGetAttributes"); s != Status::ok)
        return result(s);
    if (Status s = sim::known_function(f, "cudaFuncGetAttributes"); s != Status::ok)
        return result(s);
    // CUB asks its empty kernel which architecture was compiled, and must hear one of the list it was built for.
    attributes->ptxVersion = attributes->binaryVersion = sim::is_cub_probe(f) ? 75 : sim::config().ptx;
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(sim::shared_limit(f));
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int threads,
                                                                             size_t shared, unsigned) {
    return result(sim::occupancy(blocks, f, threads, shared, "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads,
                                                                    size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
}
