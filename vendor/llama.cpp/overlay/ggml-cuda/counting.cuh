#pragma once

// What the overlay's own files share about counting: see teardown.cuh for what the backend calls.

#include "ggml-cuda/common.cuh" // before anything of CUDA: it maps the names for HIP and MUSA

// ggml_cuda_acquire() and ggml_cuda_release() by physical device
bool ggml_cuda_acquire_physical(enum ggml_backend_cuda_object kind, int device);
void ggml_cuda_release_physical(enum ggml_backend_cuda_object kind, int device);
// of the calling thread; does not create a context
int ggml_cuda_current_device();
