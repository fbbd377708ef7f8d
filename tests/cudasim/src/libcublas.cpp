// Simulated libcublas: the handle, its stream, workspace and matrices are checked, nothing is computed.
#include <cublas_v2.h>

#include "core.h"

using sim::Status;

static cublasStatus_t result(Status status) {
    switch (status) {
    case Status::ok:
        return CUBLAS_STATUS_SUCCESS;
    case Status::out_of_memory:
        return CUBLAS_STATUS_ALLOC_FAILED;
    case Status::invalid_handle:
        return CUBLAS_STATUS_NOT_INITIALIZED;
    case Status::invalid_value:
        return CUBLAS_STATUS_INVALID_VALUE;
    default:
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    return result(sim::blas_create(reinterpret_cast<void **>(handle), "cublasCreate"));
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    return result(sim::blas_destroy(handle, "cublasDestroy"));
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    return result(sim::blas_set_stream(handle, stream, "cublasSetStream"));
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t size) {
    return result(sim::blas_check(handle, workspace, size, "cublasSetWorkspace"));
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t) {
    return result(sim::blas_check(handle, nullptr, 0, "cublasSetMathMode"));
}

const char *cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    default:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    }
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int, const float *,
                           const float *a, int, const float *b, int, const float *, float *c, int) {
    return result(sim::blas_use(handle, a, b, c, "cublasSgemm"));
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                  const float *, const float *const a[], int, const float *const b[], int,
                                  const float *, float *const c[], int, int) {
    return result(sim::blas_use(handle, a, b, c, "cublasSgemmBatched"));
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                         const float *, const float *a, int, long long, const float *b, int, long long,
                                         const float *, float *c, int, long long, int) {
    return result(sim::blas_use(handle, a, b, c, "cublasSgemmStridedBatched"));
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                            const void *a, cudaDataType, int, const void *b, cudaDataType, int, const void *, void *c,
                            cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "cublasGemmEx"));
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                   const void *, const void *const a[], cudaDataType, int, const void *const b[],
                                   cudaDataType, int, const void *, void *const c[], cudaDataType, int, int,
                                   cublasComputeType_t, cublasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "cublasGemmBatchedEx"));
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                          const void *, const void *a, cudaDataType, int, long long, const void *b,
                                          cudaDataType, int, long long, const void *, void *c, cudaDataType, int,
                                          long long, int, cublasComputeType_t, cublasGemmAlgo_t) {
    return result(sim::blas_use(handle, a, b, c, "cublasGemmStridedBatchedEx"));
}

cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t, cublasFillMode_t, cublasOperation_t,
                                  cublasDiagType_t, int, int, const float *, const float *const a[], int,
                                  float *const b[], int, int) {
    return result(sim::blas_use(handle, a, nullptr, b, "cublasStrsmBatched"));
}
}
