// ops BACKEND CYCLES: one-operator graphs for every operator that raises a limit of shared memory, in all the types and
// sizes that choose another kernel. A model only reaches some of them.

#include "driver.h"

#include "ggml-alloc.h"
#include "ggml.h"

#include <functional>

using build = std::function<ggml_tensor *(ggml_context *)>;

static int n_run, n_unsupported;

// operands are zero, ids are valid: kernels do not run, but the host reads the ids back
static void fill(ggml_context *ctx, ggml_backend_buffer_t buffer) {
    ggml_backend_buffer_clear(buffer, 0);
    for (ggml_tensor *t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        if (t->type == GGML_TYPE_I32 && t->op == GGML_OP_NONE) {
            std::vector<int> ids(ggml_nelements(t));
            for (size_t i = 0; i < ids.size(); i++) {
                ids[i] = i % 8;
            }
            ggml_backend_tensor_set(t, ids.data(), 0, ggml_nbytes(t));
        }
    }
}

static void compute(ggml_backend_t backend, const build &make) {
    ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true});
    ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, make(ctx));
    bool supported = true;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        supported = supported && ggml_backend_supports_op(backend, ggml_graph_node(graph, i));
    }
    ggml_backend_buffer_t buffer = supported ? ggml_backend_alloc_ctx_tensors(ctx, backend) : nullptr;
    if (buffer) {
        fill(ctx, buffer);
        for (int i = 0; i < 3; i++) { // directly, captured, from the captured graph
            ggml_backend_graph_compute(backend, graph);
        }
        ggml_backend_synchronize(backend);
        ggml_backend_buffer_free(buffer);
    }
    (buffer ? n_run : n_unsupported)++;
    ggml_free(ctx);
}

static std::vector<ggml_type> weight_types() {
    std::vector<ggml_type> types;
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto type = (ggml_type)i;
        const bool is_weight =
            type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || ggml_is_quantized(type);
        if (is_weight && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K && ggml_type_size(type) > 0) {
            types.push_back(type);
        }
    }
    return types;
}

static void matrix_products(ggml_backend_t backend) {
    for (ggml_type type : weight_types()) {
        for (int n : {1, 4, 9, 33, 64, 128, 512}) {
            compute(backend, [&](ggml_context *ctx) {
                ggml_tensor *a = ggml_new_tensor_2d(ctx, type, 1024, 512);
                return ggml_mul_mat(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1024, n));
            });
        }
        for (int n : {1, 32, 300}) {
            compute(backend, [&](ggml_context *ctx) {
                ggml_tensor *experts = ggml_new_tensor_3d(ctx, type, 1024, 256, 8);
                ggml_tensor *b = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1024, 2, n);
                return ggml_mul_mat_id(ctx, experts, b, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, n));
            });
        }
    }
}

static void attention(ggml_backend_t backend, ggml_type type, int k_size, int v_size, int n, int gqa, float softcap) {
    compute(backend, [&](ggml_context *ctx) {
        ggml_tensor *q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, k_size, n, 2 * gqa, 1);
        ggml_tensor *k = ggml_new_tensor_4d(ctx, type, k_size, 512, 2, 1);
        ggml_tensor *v = k_size == 576 ? ggml_view_4d(ctx, k, v_size, 512, 2, 1, k->nb[1], k->nb[2], k->nb[3], 0)
                                       : ggml_new_tensor_4d(ctx, type, v_size, 512, 2, 1);
        ggml_tensor *mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 512, GGML_PAD(n, 64), 1, 1);
        return ggml_flash_attn_ext(ctx, q, k, v, mask, 0.1f, 0.0f, softcap);
    });
}

static void attentions(ggml_backend_t backend) {
    const int sizes[][2] = {{40, 40},   {64, 64},   {72, 72},   {80, 80},   {96, 96},   {112, 112},
                            {128, 128}, {192, 128}, {256, 256}, {320, 256}, {512, 512}, {576, 512}};
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_BF16}) {
        for (auto &size : sizes) {
            for (int n : {1, 3, 8, 64, 256}) {
                for (int gqa : {1, 4, 8, 16}) {
                    attention(backend, type, size[0], size[1], n, gqa, 0.0f);
                    attention(backend, type, size[0], size[1], n, gqa, 10.0f);
                }
            }
        }
    }
}

static void rows(ggml_backend_t backend) {
    for (int n : {100, 4096, 12288, 16384, 20000, 32768, 60000}) {
        const auto matrix = [n](ggml_context *ctx) { return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, 4); };
        compute(backend, [&](ggml_context *ctx) { return ggml_soft_max(ctx, matrix(ctx)); });
        compute(backend, [&](ggml_context *ctx) { return ggml_argsort(ctx, matrix(ctx), GGML_SORT_ORDER_ASC); });
        compute(backend, [&](ggml_context *ctx) { return ggml_cumsum(ctx, matrix(ctx)); });
        compute(backend, [&](ggml_context *ctx) { return ggml_sum(ctx, matrix(ctx)); });
        compute(backend, [&](ggml_context *ctx) { return ggml_mean(ctx, matrix(ctx)); });
        compute(backend, [&](ggml_context *ctx) { return ggml_cross_entropy_loss(ctx, matrix(ctx), matrix(ctx)); });
        compute(backend, [&](ggml_context *ctx) {
            ggml_tensor *gradient = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
            return ggml_cross_entropy_loss_back(ctx, gradient, matrix(ctx), matrix(ctx));
        });
    }
    compute(backend, [](ggml_context *ctx) { // cuBLAS
        ggml_tensor *a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 32);
        return ggml_out_prod(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 48, 32));
    });
    compute(backend, [](ggml_context *ctx) {
        ggml_tensor *a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 128, 128);
        return ggml_solve_tri(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 128), true, true, false);
    });
}

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    llama_log_set(only_warnings, nullptr);
    for (int cycle = 0; cycle < atoi(argv[2]); cycle++) {
        ggml_backend_reg_t reg = load(argv[1]);
        n_run = n_unsupported = 0;
        cudasim_trace_reset();
        ggml_backend_t backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 0), nullptr);
        matrix_products(backend);
        attentions(backend);
        rows(backend);
        ggml_backend_free(backend);
        say("computed", field("run", n_run) + ", " + field("unsupported", n_unsupported));
        say("given back", field("ok", give_back(reg)));
    }
}
