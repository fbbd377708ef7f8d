#pragma once

#include "server-context.h"

#include <string>
#include <vector>

// What a route needs of the engine.
enum class route_kind {
    INSTANT, // answered at once by whoever asks, asleep or awake: status that is not computed
    LIVE,    // asks the loop while it is awake, and is answered from memory while it sleeps; keeps nobody awake
    MODEL,   // holds the engine awake
    LIGHT,   // as MODEL, but does not wait behind requests that compute
    STREAM,  // reads what other requests left; asleep or awake
};

struct engine_route {
    std::string method, path; // a part ":name" matches anything
    route_kind kind;
    server_http_context::handler_t handler;
};

std::vector<engine_route> engine_routes(server_routes &routes);
// Fills `params` from the path. Null if there is none; `*known_path` says whether another method would have been right.
const engine_route *find_route(const std::vector<engine_route> &routes, const std::string &method,
                               const std::string &path, std::map<std::string, std::string> &params, bool *known_path);
