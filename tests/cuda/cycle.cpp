// cycle BACKEND MODEL CYCLES [layer|tensor|none] [no-flash-attention]: load, generate, free, give back, as often as
// asked.

#include "driver.h"

int main(int argc, char **argv) {
    if (argc < 4) {
        return 2;
    }
    const std::string mode = argc > 4 ? argv[4] : "layer";
    const auto split = mode == "tensor" ? LLAMA_SPLIT_MODE_TENSOR
                       : mode == "none" ? LLAMA_SPLIT_MODE_NONE
                                        : LLAMA_SPLIT_MODE_LAYER;
    const int cycles = atoi(argv[3]);
    llama_log_set(only_warnings, nullptr);
    llama_backend_init(); // the CPU backend, from its own directory
    say("start");
    for (int cycle = 0; cycle < cycles; cycle++) {
        ggml_backend_reg_t reg = load(argv[1]);
        if (cycle == 0) {
            say("enumerated", field("devices", ggml_backend_reg_dev_count(reg)));
        }
        cudasim_trace_reset();
        model_run run;
        if (!run.load(argv[2], split) || !run.start(argc <= 5)) {
            return 3;
        }
        if (int error = run.generate()) {
            fprintf(stderr, "decoding failed: %d\n", error);
            return 4;
        }
        say("in use");
        run.close();
        say("closed");
        const bool given = give_back(reg);
        say("given back", field("ok", given));
    }
}
