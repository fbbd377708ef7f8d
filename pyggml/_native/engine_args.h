#pragma once

// llama-server's arguments, and what they come to.

#include "common.h"

#include <list>
#include <string>
#include <vector>

// Parses them as llama-server does, less what would print and exit. Throws std::invalid_argument.
common_params engine_params(const std::vector<std::string> &args, bool env);

// What the first load made of the parameters, so that every wake is the same however much memory is free then.
struct engine_fit {
    void remember(const common_params &params);
    void apply(common_params &params);

  private:
    struct override_t {
        std::string pattern, buffer_type; // by name: the buffer type itself may go with its backend
    };
    bool fitted_ = false;
    int n_gpu_layers_ = 0, n_ctx_ = 0;
    std::vector<float> tensor_split_;
    std::list<override_t> overrides_; // a list, since parameters point into it
};
