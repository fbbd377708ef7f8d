/*
 * Force-included (-include compat.h) when ggml-hip is compiled, host code only, with the headers of Debian's
 * libamdhip64-dev (HIP 5.2): what newer HIP or an older clang would have. Device functions are only parsed, never run.
 */
#ifndef CUDASIM_ROCM_COMPAT_H
#define CUDASIM_ROCM_COMPAT_H

#define __AMDGCN_WAVEFRONT_SIZE 32
#define __llvm_amdgcn_rcp_f16(x) (static_cast<_Float16>(1) / (x))
#define __llvm_amdgcn_rcp_2f16(x) (x)

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#define hipHostRegisterReadOnly 0x08

__device__ inline __half __hmax(__half a, __half b) {
    return __hgt(a, b) ? a : b;
}
__device__ inline __half2 __shfl_xor(__half2 value, int, int = 0) {
    return value;
}
__device__ inline __half2 __shfl_up(__half2 value, unsigned, int = 0) {
    return value;
}
inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event) {
    return hipStreamWaitEvent(stream, event, 0);
}

#endif
