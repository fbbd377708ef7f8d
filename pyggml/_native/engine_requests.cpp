// Requests: from the caller to a worker, and from there into a channel.

#include "engine_core.h"

#include "guard.h"

#include "server-common.h"
#include "server-stream.h"

#include <cstring>
#include <system_error>

void worker_pool::submit(request_ptr request) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(request));
    if (idle_ < waiting_.size() && threads_.size() < max_ && !closing_) {
        threads_.emplace_back([this] { loop(); });
        running_++;
    }
    changed_.notify_one();
}

void worker_pool::loop() {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "pyggml-worker");
#endif
    start_();
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        idle_++;
        changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
        idle_--;
        if (waiting_.empty()) {
            running_--;
            changed_.notify_all();
            return;
        }
        auto request = std::move(waiting_.front());
        waiting_.pop_front();
        lock.unlock();
        run_(request);
        request.reset();
        lock.lock();
    }
}

void worker_pool::join(const std::function<void()> &nudge) {
    std::unique_lock<std::mutex> lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    while (running_ > 0) {
        lock.unlock();
        nudge();
        lock.lock();
        changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return running_ == 0; });
    }
    auto threads = std::move(threads_);
    threads_.clear();
    lock.unlock();
    for (auto &thread : threads) {
        thread.join();
    }
}

size_t worker_pool::size() {
    std::lock_guard<std::mutex> lock(mutex_);
    return threads_.size();
}

// -- the caller's side ------------------------------------------------------------------------------------------------

uint64_t pyggml_engine::request(const std::shared_ptr<event_queue> &events, const pyggml_request &from) {
    auto request = std::make_shared<engine_request>();
    request->events = events;
    request->path = from.path;
    request->query = from.query ? from.query : "";
    request->body.assign(from.body ? from.body : "", from.body_size);
    for (size_t i = 0; i < from.n_params; i++) {
        request->params[from.params[2 * i]] = from.params[2 * i + 1];
    }
    for (size_t i = 0; i < from.n_headers; i++) {
        request->headers[from.headers[2 * i]] = from.headers[2 * i + 1];
    }
    request->conversation = server_stream_conv_id_from_headers(request->headers);
    for (size_t i = 0; i < from.n_files; i++) {
        auto file = from.files[i];
        const auto keep = [&](const char *text, size_t size) {
            request->storage.emplace_back(text ? text : "", size);
            return request->storage.back().c_str();
        };
        file.field = keep(file.field, strlen(file.field));
        file.filename = keep(file.filename, file.filename ? strlen(file.filename) : 0);
        file.content_type = keep(file.content_type, file.content_type ? strlen(file.content_type) : 0);
        file.data = keep(file.data, file.size);
        request->files.push_back(file);
    }
    bool known_path;
    request->route = find_route(routes_, from.method, request->path, request->params, &known_path);
    bool accepted;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        request->id = next_id_++;
        accepted = !stopping_ && request->route && state_ != PYGGML_ENGINE_LOADING;
        requests_[request->id] = request;
    }
    events->add(request);
    if (!request->route) {
        answer_error(request, 404, ERROR_TYPE_NOT_FOUND,
                     known_path ? "This path has no such method" : "There is no such path");
    } else if (!accepted) {
        answer_error(request, 503, ERROR_TYPE_UNAVAILABLE, why_not());
    }
    if (!accepted) {
        finish(request, true);
        return request->id;
    }
    if (!request->conversation.empty()) {
        server_stream_session_manager_start(); // it has a thread, which nobody else needs
    }
    switch (request->route->kind) {
    case route_kind::INSTANT:
        run(request);
        break;
    case route_kind::LIVE:
        live_->submit(request);
        break;
    case route_kind::LIGHT:
        light_->submit(request);
        break;
    default:
        compute_->submit(request);
    }
    return request->id;
}

std::string pyggml_engine::why_not() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_.empty()) {
        return "The engine failed: " + error_;
    }
    return stopping_ ? "The engine is closed" : "Loading model";
}

void pyggml_engine::cancel(uint64_t id) {
    request_ptr request;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = requests_.find(id);
        if (found == requests_.end()) {
            return;
        }
        request = found->second;
    }
    request->cancelled = true;
    request->stop = true;
    request->events->wake_writers();
    context_.poke();
}

void pyggml_engine::end_all() {
    std::vector<request_ptr> all;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto &[id, request] : requests_) {
            all.push_back(request);
        }
    }
    for (auto &request : all) {
        request->stop = true;
        request->events->wake_writers();
        if (!request->conversation.empty()) {
            // its generation goes on without a client, until its stream is deleted
            const std::function<bool()> stop = [] { return true; };
            server_http_req what{{{"conv_id", request->conversation}}, {}, "", "", "", {}, stop};
            server_stream_make_delete_handler()(what);
        }
    }
    context_.poke();
}

// -- a worker's side --------------------------------------------------------------------------------------------------

void pyggml_engine::run(const request_ptr &request) {
    using lifecycle = server_lifecycle;
    const auto kind = request->route->kind;
    const auto should_stop = [&] { return request->stop.load(); };
    auto lease = lifecycle::ASLEEP; // without one: nothing of the model is used
    if (kind == route_kind::MODEL || kind == route_kind::LIGHT || kind == route_kind::LIVE) {
        lease = context_.lifecycle().acquire(kind != route_kind::LIVE, should_stop);
    }
    bool complete = false; // of one that has stopped it is not
    switch (lease) {
    case lifecycle::WAKE_FAILED:
        complete = answer_error(request, 503, ERROR_TYPE_UNAVAILABLE,
                                "The model could not be loaded again: " + context_.lifecycle().get().wake_error);
        break;
    case lifecycle::TERMINATED:
        complete = answer_error(request, 503, ERROR_TYPE_UNAVAILABLE, why_not());
        break;
    case lifecycle::STOPPED:
        break;
    default:
        try {
            complete = answer(request);
        } catch (const std::exception &error) {
            complete = answer_error(request, 500, ERROR_TYPE_SERVER, error.what());
        }
    }
    if (lease == lifecycle::LEASED) {
        context_.lifecycle().release(kind != route_kind::LIVE);
    }
    finish(request, complete);
}

static std::string head_of(const server_http_res &response) {
    std::string head = "content-type: " + response.content_type;
    for (const auto &[name, value] : response.headers) {
        head += "\n" + name + ": " + value;
    }
    return head;
}

bool pyggml_engine::answer(const request_ptr &request) {
    const std::function<bool()> should_stop = [request] { return request->stop.load(); };
    std::map<std::string, uploaded_file> files;
    for (const auto &file : request->files) {
        files[file.field] = {raw_buffer(file.data, file.data + file.size), file.filename, file.content_type};
    }
    server_http_req what{std::move(request->params), request->headers, request->path, request->query,
                         std::move(request->body),   std::move(files), should_stop};
    server_http_res_ptr response;
    {
        guard_scope scope; // an assertion about what a client sent is his error, not the end of the process
        try {
            response = request->route->handler(what);
        } catch (const ggml_aborted &error) {
            return answer_error(request, 500, ERROR_TYPE_SERVER, error.what());
        } catch (const std::bad_alloc &) {
            return answer_error(request, 503, ERROR_TYPE_UNAVAILABLE, "out of memory");
        } catch (const std::system_error &error) {
            return answer_error(request, 500, ERROR_TYPE_SERVER, error.what());
        } catch (const common_json_error &error) {
            // what could not be parsed is quoted there, which is nobody's business
            const std::string text = error.what();
            const bool syntax = text.find("parse_error") != std::string::npos;
            return answer_error(request, 400, ERROR_TYPE_INVALID_REQUEST,
                                syntax ? "The request is not valid JSON" : text);
        } catch (const std::exception &error) {
            return answer_error(request, 400, ERROR_TYPE_INVALID_REQUEST, error.what());
        }
    }
    auto &events = *request->events;
    bool more = response->is_stream();
    // llama-server says 200 and nothing to one that was stopped
    const bool stopped = request->stop && !more && response->data.empty();
    if (!stopped) {
        events.head(request, response->status, head_of(*response));
        events.data(request, response->data.data(), more ? 0 : response->data.size(), SIZE_MAX);
        std::string chunk;
        while (more && !request->stop) {
            chunk.clear();
            more = response->next(chunk);
            events.data(request, chunk.data(), chunk.size(), max_undelivered_);
        }
    }
    const bool complete = !stopped && !more && !(request->stop && response->is_stream());
    response->on_complete(); // may compute on, for a client that comes back
    return complete;
}

bool pyggml_engine::answer_error(const request_ptr &request, int status, error_type type, const std::string &message) {
    auto error = format_error_response(message, type);
    error["code"] = status;
    const auto body = safe_json_to_str({{"error", error}});
    request->events->head(request, status, "content-type: application/json; charset=utf-8");
    request->events->data(request, body.data(), body.size(), SIZE_MAX);
    return true;
}

void pyggml_engine::finish(const request_ptr &request, bool complete) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        requests_.erase(request->id);
    }
    request->events->end(request, complete ? 0 : request->cancelled ? 499 : 503);
}
