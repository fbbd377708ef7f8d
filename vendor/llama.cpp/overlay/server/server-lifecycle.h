#pragma once

// When a server sleeps, and who keeps it awake.
//
// A request holds the server awake from before it waits until it is done, so the model cannot go from under it. A wake
// that fails leaves the server asleep: all that wait for it are told, and the next request tries again. Sleep can be
// asked for: then new requests wait, the running ones end, and whoever waits wakes the server again after it.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

struct common_params;
struct server_queue;

struct server_lifecycle {
    enum lease { LEASED, ASLEEP, STOPPED, BUSY, WAKE_FAILED, TERMINATED };

    struct facts {
        bool sleeping = false;
        int leases = 0;
        uint64_t n_sleeps = 0, n_wakes = 0, n_wake_failures = 0;
        double sleep_seconds = 0, wake_seconds = 0; // what the last one took
        std::string sleep_reason;                   // "idle" or "request"
        std::string wake_error;                     // of the last attempt
    };

    explicit server_lifecycle(server_queue &queue) : queue(queue) {}

    // -- set before the loop starts, called by the thread that runs it

    // The model is gone; also when a sleep is asked for while asleep.
    std::function<void()> on_asleep;
    // Bring `params` up to date and call `load`. Returns why it failed, or nothing.
    std::function<std::string(common_params &params, const std::function<bool()> &load)> on_wake;

    // -- from any thread

    // LEASED: to be given back by release(). With `wake` a sleeping server is woken, without it is ASLEEP.
    lease acquire(bool wake, const std::function<bool()> &should_stop);
    void release(bool resets_idle_timer);
    // BUSY: requests were still running after `timeout_ms`, and it stays awake; ASLEEP: done.
    lease request_sleep(int64_t timeout_ms, const std::function<bool()> &should_stop);
    void set_idle_ms(int64_t value); // negative: never
    facts get();

    // -- for the queue, which holds its mutex

    bool terminated = false;
    void start(int64_t idle);
    void terminate();
    bool should_sleep() const;
    std::chrono::milliseconds time_to_sleep() const;
    // Sleeps until a request comes or the queue is terminated.
    void sleep(std::unique_lock<std::mutex> &lock);
    bool load(common_params &params, const std::function<bool()> &load_model);

  private:
    void settled();

    server_queue &queue;
    std::condition_variable
        changed; // for those that wait here; the queue's own is for its loop, which must not miss a notification
    int64_t idle_ms = INT64_MIN; // not set yet
    int sleepers = 0;            // that asked for it
    bool sleep_wanted = false;
    int n_waiting = 0; // for a wake; each gets a lease with it
    uint64_t n_settled = 0;
    std::string load_error;
    facts state;
};
