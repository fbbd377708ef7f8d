/*
 * bfloat16 as far as ggml-hip's host code must be parsed: HIP packages before 6.0 have no such header. Nothing here is
 * executed on a device.
 */
#ifndef CUDASIM_HIP_BF16_H
#define CUDASIM_HIP_BF16_H

#include <hip/hip_runtime.h>

struct __hip_bfloat16 {
    unsigned short data;
    __hip_bfloat16() = default;
    __host__ __device__ __hip_bfloat16(float value) {
        unsigned bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        data = static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    __host__ __device__ operator float() const {
        const unsigned bits = static_cast<unsigned>(data) << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof value);
        return value;
    }
};

struct __hip_bfloat162 {
    __hip_bfloat16 x, y;
};

__host__ __device__ inline __hip_bfloat16 __float2bfloat16(float value) {
    return __hip_bfloat16(value);
}
__host__ __device__ inline float __bfloat162float(__hip_bfloat16 value) {
    return value;
}
__host__ __device__ inline float __low2float(__hip_bfloat162 value) {
    return value.x;
}
__host__ __device__ inline float __high2float(__hip_bfloat162 value) {
    return value.y;
}
__host__ __device__ inline __hip_bfloat16 __low2bfloat16(__hip_bfloat162 value) {
    return value.x;
}
__host__ __device__ inline __hip_bfloat16 __high2bfloat16(__hip_bfloat162 value) {
    return value.y;
}
__host__ __device__ inline float2 __bfloat1622float2(__hip_bfloat162 value) {
    return {value.x, value.y};
}
__host__ __device__ inline __hip_bfloat162 __float22bfloat162_rn(float2 value) {
    return {value.x, value.y};
}
__host__ __device__ inline __hip_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {x, y};
}

#endif
