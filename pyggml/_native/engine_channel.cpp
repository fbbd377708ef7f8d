#include "engine_channel.h"

#include "guard.h"

#include <cstring>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

// log lines that nobody polls; more are dropped, and it is said how many
static constexpr size_t MAX_NOTES = 4096;

static int new_eventfd() {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    return fd;
}

event_queue::event_queue() : fd(new_eventfd()) {}
event_queue::~event_queue() {
    ::close(fd);
}

void event_queue::signal(bool was_empty) {
    if (was_empty) {
        const uint64_t one = 1;
        [[maybe_unused]] auto written = write(fd, &one, sizeof one);
    }
}

void event_queue::make_ready(const request_ptr &request) {
    if (request->ready || request->paused || closed_) {
        return;
    }
    const bool was_empty = ready_.empty() && notes_.empty();
    request->ready = true;
    ready_.push_back(request);
    signal(was_empty);
}

void event_queue::add(const request_ptr &request) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) {
        requests_[request->id] = request;
    }
}

void event_queue::head(const request_ptr &request, int status, std::string head) {
    std::lock_guard<std::mutex> lock(mutex_);
    request->status = status;
    request->head = std::move(head);
    request->has_head = true;
    make_ready(request);
}

void event_queue::data(const request_ptr &request, const char *data, size_t size, size_t limit) {
    if (size == 0) {
        return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    polled_.wait(lock, [&] {
        return closed_ || request->stop || request->pending.empty() || request->pending.size() + size <= limit;
    });
    if (!closed_ && !request->stop) {
        request->pending.append(data, size);
        make_ready(request);
    }
}

void event_queue::end(const request_ptr &request, int status) {
    std::lock_guard<std::mutex> lock(mutex_);
    request->ended = true;
    request->end_status = status;
    make_ready(request);
}

void event_queue::note(pyggml_event_kind kind, int status, std::string text) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
        return;
    }
    if (notes_.size() >= MAX_NOTES && kind == PYGGML_EVENT_LOG) {
        dropped_++;
        return;
    }
    const bool was_empty = ready_.empty() && notes_.empty();
    notes_.push_back({kind, status, std::move(text)});
    signal(was_empty);
}

size_t event_queue::poll(pyggml_event *events, size_t capacity, const char **data, size_t *size) {
    std::lock_guard<std::mutex> lock(mutex_);
    out_.clear();
    size_t n = 0;
    const auto put = [&](uint64_t id, pyggml_event_kind kind, int status, const std::string &payload) {
        events[n++] = {id, kind, status, payload.size()};
        out_ += payload;
    };
    while (!notes_.empty() && n + 1 < capacity) {
        put(0, notes_.front().kind, notes_.front().status, notes_.front().text);
        notes_.pop_front();
        if (dropped_ > 0 && notes_.empty()) {
            put(0, PYGGML_EVENT_LOG, GGML_LOG_LEVEL_WARN, std::to_string(dropped_) + " log lines were dropped");
            dropped_ = 0;
        }
    }
    while (!ready_.empty() && n + 3 <= capacity) {
        auto request = std::move(ready_.front());
        ready_.pop_front();
        request->ready = false;
        if (request->paused) {
            continue;
        }
        if (request->has_head) {
            request->has_head = false;
            put(request->id, PYGGML_EVENT_HEAD, request->status, request->head);
        }
        if (!request->pending.empty()) {
            put(request->id, PYGGML_EVENT_DATA, 0, request->pending);
            request->pending.clear();
        }
        if (request->ended) {
            put(request->id, PYGGML_EVENT_END, request->end_status, "");
            requests_.erase(request->id);
        }
    }
    if (ready_.empty() && notes_.empty()) {
        uint64_t count;
        [[maybe_unused]] auto got = read(fd, &count, sizeof count);
    }
    polled_.notify_all();
    *data = out_.data();
    *size = out_.size();
    return n;
}

void event_queue::pause(uint64_t id, bool paused) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) {
        return;
    }
    const auto request = found->second;
    request->paused = paused;
    if (!paused && (request->has_head || !request->pending.empty() || request->ended)) {
        make_ready(request);
    }
}

void event_queue::close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    ready_.clear();
    notes_.clear();
    requests_.clear();
    polled_.notify_all();
}

void event_queue::wake_writers() {
    std::lock_guard<std::mutex> lock(mutex_); // so that nobody is between looking and waiting
    polled_.notify_all();
}

enum pyggml_status pyggml_channel_new(struct pyggml_channel **channel) {
    return guard([&] {
        *channel = new pyggml_channel;
        return PYGGML_OK;
    });
}

void pyggml_channel_free(struct pyggml_channel *channel) {
    if (channel) {
        channel->events->close();
        delete channel;
    }
}

int pyggml_channel_fd(const struct pyggml_channel *channel) {
    return channel->events->fd;
}

void pyggml_channel_pause(struct pyggml_channel *channel, uint64_t id, bool paused) {
    channel->events->pause(id, paused);
}

size_t pyggml_channel_poll(struct pyggml_channel *channel, struct pyggml_event *events, size_t capacity,
                           const char **data, size_t *size) {
    return channel->events->poll(events, capacity, data, size);
}
