#include "engine_args.h"

#include "guard.h"

#include "arg.h"
#include "fit.h"
#include "ggml-backend.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>

// These print something and end the process.
static const std::set<std::string> PRINTING = {"-h",  "--help",       "--usage",        "--version",
                                               "-cl", "--cache-list", "--list-devices", "--completion-bash"};
// The log goes to Python's logging.
static const std::set<std::string> LOGGING = {"--log-disable",   "--log-file",       "--log-jsonl",
                                              "--no-log-jsonl",  "--log-colors",     "--log-prefix",
                                              "--no-log-prefix", "--log-timestamps", "--no-log-timestamps"};

static void refuse(const std::vector<std::string> &args) {
    common_params unused;
    auto context = common_params_parser_init(unused, LLAMA_EXAMPLE_SERVER);
    for (size_t i = 0; i < args.size(); i++) {
        auto name = args[i];
        if (name.compare(0, 2, "--") == 0) {
            std::replace(name.begin(), name.end(), '_', '-');
        }
        if (PRINTING.count(name)) {
            throw std::invalid_argument(name + " prints something and ends the process; an engine cannot take it");
        }
        if (LOGGING.count(name)) {
            throw std::invalid_argument(
                name + " has no meaning here: lines go to the logger \"pyggml.native\" of Python's logging");
        }
        for (const auto &option : context.options) {
            const auto has_name = [&](const char *known) { return name == known; };
            if (std::any_of(option.args.begin(), option.args.end(), has_name)) {
                i += option.handler_str_str                        ? 2
                     : option.handler_string || option.handler_int ? 1
                                                                   : 0; // values are not names
                break;
            }
        }
    }
}

static bool is_remote(const common_params_model &model) {
    return !model.url.empty() || !model.hf_repo.empty() || !model.docker_repo.empty();
}

common_params engine_params(const std::vector<std::string> &args, bool env) {
    refuse(args);
    std::vector<std::string> copy = args;
    std::vector<char *> argv = {const_cast<char *>("pyggml")};
    for (auto &arg : copy) {
        argv.push_back(&arg[0]);
    }
    argv.push_back(nullptr);
    common_params params;
    try {
        common_params_parse_strict((int)argv.size() - 1, argv.data(), params, LLAMA_EXAMPLE_SERVER, env);
        log_level_restore();
    } catch (const std::exception &error) {
        std::string text = error.what();
        text.erase(text.find_last_not_of(" \n") + 1);
        log_level_restore();
        throw std::invalid_argument(text);
    }
    if (is_remote(params.model) || is_remote(params.mmproj) || is_remote(params.speculative.draft.mparams)) {
        throw std::invalid_argument("an engine loads files; what is on a hub has to be downloaded first");
    }
    if (params.model.path.empty()) {
        throw std::invalid_argument("there is no model: give the path of a GGUF file");
    }
    if (!params.server_tools.empty() || !params.mcp_servers_config.empty() || !params.mcp_servers_json.empty()) {
        throw std::invalid_argument("server tools and MCP servers are not part of an engine");
    }
    // From here on it is what llama-server does after parsing.
    params.offline = true;
    common_models_handler handler;
    common_models_handler_apply(handler, params); // looks at the draft model for the kind of speculation
    if (params.embedding && params.n_batch > params.n_ubatch) {
        params.n_batch = params.n_ubatch; // an embedding is computed in one piece
    }
    if (params.n_parallel < 0) {
        params.n_parallel = 4;
        params.kv_unified = true;
    }
    if (params.kv_unified_per_slot > 0 && params.n_ctx == 0 && (uint32_t)params.fit_params_min_ctx != UINT32_MAX) {
        params.n_ctx = params.n_parallel * params.kv_unified_per_slot;
    }
    if (params.model_alias.empty() && !params.model.get_name().empty()) {
        params.model_alias.insert(params.model.get_name());
    }
    return params;
}

void engine_fit::remember(const common_params &params) {
    fitted_ = params.fit_params;
    if (!fitted_) {
        return;
    }
    const auto outcome = common_fit_last();
    n_gpu_layers_ = outcome.n_gpu_layers;
    n_ctx_ = (int)outcome.n_ctx;
    tensor_split_.assign(std::begin(params.tensor_split), std::end(params.tensor_split));
    for (const auto &one : params.tensor_buft_overrides) {
        if (!one.pattern) {
            break;
        }
        overrides_.push_back({one.pattern, ggml_backend_buft_name(one.buft)});
    }
}

static ggml_backend_buffer_type_t find_buffer_type(const std::string &name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        auto *device = ggml_backend_dev_get(i);
        for (auto *type : {ggml_backend_dev_buffer_type(device), ggml_backend_dev_host_buffer_type(device)}) {
            if (type && name == ggml_backend_buft_name(type)) {
                return type;
            }
        }
    }
    throw std::runtime_error("a part of the model was in " + name + ", which is not there any more");
}

void engine_fit::apply(common_params &params) {
    if (!fitted_) {
        return;
    }
    params.fit_params = false;
    params.n_gpu_layers = n_gpu_layers_;
    params.n_ctx = n_ctx_;
    std::copy(tensor_split_.begin(), tensor_split_.end(), std::begin(params.tensor_split));
    size_t i = 0;
    for (const auto &one : overrides_) {
        params.tensor_buft_overrides.at(i++) = {one.pattern.c_str(), find_buffer_type(one.buffer_type)};
    }
}
