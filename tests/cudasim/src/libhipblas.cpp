// Simulated libhipblas: the handle, its stream and matrices are checked, nothing is computed. With CUDASIM_RESIDUAL_MIB
// the first product leaves memory behind, as rocBLAS does.
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#include <hipblas/hipblas.h>

#include "core.h"

using sim::Status;

static hipblasStatus_t result(Status status) {
    switch (status) {
    case Status::ok:
        return HIPBLAS_STATUS_SUCCESS;
    case Status::out_of_memory:
        return HIPBLAS_STATUS_ALLOC_FAILED;
    case Status::invalid_handle:
        return HIPBLAS_STATUS_NOT_INITIALIZED;
    case Status::invalid_value:
        return HIPBLAS_STATUS_INVALID_VALUE;
    default:
        return HIPBLAS_STATUS_EXECUTION_FAILED;
    }
}

extern "C" {

hipblasStatus_t hipblasCreate(hipblasHandle_t *handle) {
    return result(sim::blas_create(handle, "hipblasCreate"));
}
hipblasStatus_t hipblasDestroy(hipblasHandle_t handle) {
    return result(sim::blas_destroy(handle, "hipblasDestroy"));
}

hipblasStatus_t hipblasSetStream(hipblasHandle_t handle, hipStream_t stream) {
    return result(sim::blas_set_stream(handle, stream, "hipblasSetStream"));
}

hipblasStatus_t hipblasSgemm(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int, int,
                             const float *, const float *a, int, const float *b, int, const float *, float *c, int) {
    return result(sim::blas_use(handle, a, b, c, "hipblasSgemm"));
}

hipblasStatus_t hipblasSgemmBatched(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int, int,
                                    const float *, const float *const a[], int, const float *const b[], int,
                                    const float *, float *const c[], int, int) {
    return result(sim::blas_use(handle, a, b, c, "hipblasSgemmBatched"));
}

hipblasStatus_t hipblasSgemmStridedBatched(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int,
                                           int, const float *, const float *a, int, long long, const float *b, int,
                                           long long, const float *, float *c, int, long long, int) {
    return result(sim::blas_use(handle, a, b, c, "hipblasSgemmStridedBatched"));
}

hipblasStatus_t hipblasGemmEx(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int, int,
                              const void *, const void *a, hipblasDatatype_t, int, const void *b, hipblasDatatype_t,
                              int, const void *, void *c, hipblasDatatype_t, int, hipblasDatatype_t,
                              hipblasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "hipblasGemmEx"));
}

hipblasStatus_t hipblasGemmBatchedEx(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int, int,
                                     const void *, const void *a[], hipblasDatatype_t, int, const void *b[],
                                     hipblasDatatype_t, int, const void *, void *c[], hipblasDatatype_t, int, int,
                                     hipblasDatatype_t, hipblasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "hipblasGemmBatchedEx"));
}

hipblasStatus_t hipblasGemmStridedBatchedEx(hipblasHandle_t handle, hipblasOperation_t, hipblasOperation_t, int, int,
                                            int, const void *, const void *a, hipblasDatatype_t, int, long long,
                                            const void *b, hipblasDatatype_t, int, long long, const void *, void *c,
                                            hipblasDatatype_t, int, long long, int, hipblasDatatype_t,
                                            hipblasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "hipblasGemmStridedBatchedEx"));
}

hipblasStatus_t hipblasStrsmBatched(hipblasHandle_t handle, hipblasSideMode_t, hipblasFillMode_t, hipblasOperation_t,
                                    hipblasDiagType_t, int, int, const float *, const float *const a[], int,
                                    float *const b[], int, int) {
    return result(sim::blas_use(handle, a, nullptr, b, "hipblasStrsmBatched"));
}
}
