// launches BACKEND N: a graph like a transformer's is computed N times, launch by launch: the launch path, to be
// measured. No model, because the CPU backend that it needs may have instructions that the measuring tool does not
// know.

#include "driver.h"

#include "ggml-alloc.h"
#include "ggml.h"

static ggml_tensor *layer(ggml_context *ctx, ggml_tensor *x, int n_tokens) {
    x = ggml_rms_norm(ctx, x, 1e-5f);
    ggml_tensor *q = ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_1, 1024, 1024), x);
    ggml_tensor *k = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 128, 512, 4, 1);
    ggml_tensor *v = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 128, 512, 4, 1);
    ggml_tensor *mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 512, GGML_PAD(n_tokens, 64), 1, 1);
    q = ggml_permute(ctx, ggml_reshape_3d(ctx, q, 128, 8, n_tokens), 0, 2, 1, 3);
    x = ggml_reshape_2d(ctx, ggml_flash_attn_ext(ctx, q, k, v, mask, 0.1f, 0.0f, 0.0f), 1024, n_tokens);
    return ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, 1024, 1024), x);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    llama_log_set(only_warnings, nullptr);
    ggml_backend_t backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(load(argv[1]), 0), nullptr);
    for (int n_tokens : {1, 128}) { // other kernels for one token than for many
        ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true});
        ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1024, n_tokens);
        for (int i = 0; i < 8; i++) {
            x = layer(ctx, x, n_tokens);
        }
        ggml_cgraph *graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, x);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        for (int i = 0; i < atoi(argv[2]); i++) {
            ggml_backend_graph_compute(backend, graph);
        }
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    ggml_backend_free(backend);
    printf("%llu\n", cudasim_trace_launches());
}
