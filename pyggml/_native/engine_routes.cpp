#include "engine_routes.h"

#include "engine.h"
#include "server-stream.h"

#include <sstream>

// llama-server's, less those of its router, its web pages, its tools and its proxy.
std::vector<engine_route> engine_routes(server_routes &r) {
    using kind = route_kind;
    return {
        {"GET", "/health", kind::INSTANT, r.get_health},
        {"GET", "/v1/health", kind::INSTANT, r.get_health},
        {"GET", "/props", kind::INSTANT, r.get_props},
        {"GET", "/models", kind::INSTANT, r.get_models},
        {"GET", "/v1/models", kind::INSTANT, r.get_models},
        {"GET", "/metrics", kind::LIVE, r.get_metrics},
        {"GET", "/slots", kind::LIVE, r.get_slots},
        {"POST", "/props", kind::LIGHT, r.post_props},
        {"POST", "/completion", kind::MODEL, r.post_completions},
        {"POST", "/completions", kind::MODEL, r.post_completions},
        {"POST", "/v1/completions", kind::MODEL, r.post_completions_oai},
        {"POST", "/chat/completions", kind::MODEL, r.post_chat_completions},
        {"POST", "/v1/chat/completions", kind::MODEL, r.post_chat_completions},
        {"POST", "/chat/completions/input_tokens", kind::LIGHT, r.post_chat_completions_tok},
        {"POST", "/v1/chat/completions/input_tokens", kind::LIGHT, r.post_chat_completions_tok},
        {"POST", "/v1/chat/completions/control", kind::LIGHT, r.post_control},
        {"POST", "/responses", kind::MODEL, r.post_responses_oai},
        {"POST", "/v1/responses", kind::MODEL, r.post_responses_oai},
        {"POST", "/responses/input_tokens", kind::LIGHT, r.post_responses_tok_oai},
        {"POST", "/v1/responses/input_tokens", kind::LIGHT, r.post_responses_tok_oai},
        {"POST", "/audio/transcriptions", kind::MODEL, r.post_transcriptions_oai},
        {"POST", "/v1/audio/transcriptions", kind::MODEL, r.post_transcriptions_oai},
        {"POST", "/v1/messages", kind::MODEL, r.post_anthropic_messages},
        {"POST", "/v1/messages/count_tokens", kind::LIGHT, r.post_anthropic_count_tokens},
        {"POST", "/infill", kind::MODEL, r.post_infill},
        {"POST", "/embedding", kind::MODEL, r.post_embeddings},
        {"POST", "/embeddings", kind::MODEL, r.post_embeddings},
        {"POST", "/v1/embeddings", kind::MODEL, r.post_embeddings_oai},
        {"POST", "/rerank", kind::MODEL, r.post_rerank},
        {"POST", "/reranking", kind::MODEL, r.post_rerank},
        {"POST", "/v1/rerank", kind::MODEL, r.post_rerank},
        {"POST", "/v1/reranking", kind::MODEL, r.post_rerank},
        {"POST", "/tokenize", kind::LIGHT, r.post_tokenize},
        {"POST", "/detokenize", kind::LIGHT, r.post_detokenize},
        {"POST", "/apply-template", kind::LIGHT, r.post_apply_template},
        {"GET", "/lora-adapters", kind::LIGHT, r.get_lora_adapters},
        {"POST", "/lora-adapters", kind::LIGHT, r.post_lora_adapters},
        {"POST", "/slots/:id_slot", kind::MODEL, r.post_slots},
        {"GET", "/v1/stream", kind::STREAM, server_stream_make_get_handler()},
        {"DELETE", "/v1/stream", kind::STREAM, server_stream_make_delete_handler()},
        {"POST", "/v1/streams/lookup", kind::STREAM, server_stream_make_lookup_handler()},
    };
}

static bool matches(const std::string &pattern, const std::string &path, std::map<std::string, std::string> &params) {
    std::istringstream left(pattern), right(path);
    std::map<std::string, std::string> found;
    std::string a, b;
    while (true) {
        const bool more = bool(std::getline(left, a, '/'));
        if (more != bool(std::getline(right, b, '/'))) {
            return false;
        }
        if (!more) {
            break;
        }
        if (a.size() > 1 && a[0] == ':') {
            found[a.substr(1)] = b;
        } else if (a != b) {
            return false;
        }
    }
    for (auto &[name, value] : found) {
        params[name] = value;
    }
    return true;
}

const engine_route *find_route(const std::vector<engine_route> &routes, const std::string &method,
                               const std::string &path, std::map<std::string, std::string> &params, bool *known_path) {
    *known_path = false;
    for (const auto &route : routes) {
        if (route.path == path || (route.path.find(':') != std::string::npos && matches(route.path, path, params))) {
            *known_path = true;
            if (route.method == method) {
                return &route;
            }
        }
    }
    return nullptr;
}

const char *pyggml_engine_routes(void) {
    static const std::string *text = [] {
        common_params params;
        server_context context;
        server_routes routes(params, context);
        auto *lines = new std::string;
        for (const auto &route : engine_routes(routes)) {
            *lines += route.method + " " + route.path + "\n";
        }
        return lines;
    }();
    return text->c_str();
}
