#pragma once

// Requests, and what of them waits for being polled.

#include "engine.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

struct engine_route;
struct event_queue;

struct engine_request {
    uint64_t id = 0;
    const engine_route *route = nullptr;
    std::string path, query, body, conversation;
    std::map<std::string, std::string> params, headers;
    std::vector<pyggml_file> files; // their pointers are into the strings below
    std::deque<std::string> storage;
    std::shared_ptr<event_queue> events;
    std::atomic<bool> stop{false}; // asked to end: cancelled, or the engine stops
    std::atomic<bool> cancelled{false};

    // guarded by the mutex of `events`
    std::string head, pending; // not yet polled
    int status = 0, end_status = 0;
    bool has_head = false, ended = false, ready = false, paused = false;
};
using request_ptr = std::shared_ptr<engine_request>;

struct event_queue {
    event_queue();
    ~event_queue();

    const int fd;

    // from whoever makes requests, from workers and the engine's thread
    void add(const request_ptr &request);
    void head(const request_ptr &request, int status, std::string head);
    // Waits while more than `limit` bytes of this request were not polled.
    void data(const request_ptr &request, const char *data, size_t size, size_t limit);
    void end(const request_ptr &request, int status);
    void note(pyggml_event_kind kind, int status, std::string text);

    // from whoever polls
    size_t poll(pyggml_event *events, size_t capacity, const char **data, size_t *size);
    void pause(uint64_t id, bool paused);
    void close(); // nobody polls any more
    void wake_writers();

  private:
    struct note_t {
        pyggml_event_kind kind;
        int status;
        std::string text;
    };
    void make_ready(const request_ptr &request);
    void signal(bool was_empty);

    std::mutex mutex_;
    std::condition_variable polled_;
    std::unordered_map<uint64_t, request_ptr> requests_; // whose end was not polled
    std::deque<request_ptr> ready_;
    std::deque<note_t> notes_;
    size_t dropped_ = 0;
    std::string out_;
    bool closed_ = false;
};

struct pyggml_channel {
    std::shared_ptr<event_queue> events = std::make_shared<event_queue>();
};
