#include "server-lifecycle.h"

#include "server-queue.h"

#include "log.h"

#include <algorithm>
#include <chrono>

// how soon somebody who waits notices that his client is gone
static constexpr auto STOP_POLL = std::chrono::milliseconds(100);

server_lifecycle::lease server_lifecycle::acquire(bool wake, const std::function<bool()> &should_stop) {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    while (true) {
        if (terminated) {
            return TERMINATED;
        }
        if (should_stop()) {
            return STOPPED;
        }
        if (!queue.sleeping) {
            if (!sleep_wanted || !wake) {
                state.leases++;
                return LEASED;
            }
            changed.wait_for(lock, STOP_POLL);
            continue;
        }
        if (!wake) {
            return ASLEEP;
        }
        const auto wakes = state.n_wakes, failures = state.n_wake_failures;
        queue.req_stop_sleeping = true;
        queue.condition_tasks.notify_all();
        n_waiting++;
        while (state.n_wakes == wakes && state.n_wake_failures == failures && !terminated && !should_stop()) {
            changed.wait_for(lock, STOP_POLL);
        }
        if (state.n_wakes != wakes) {
            return LEASED; // granted with the wake, so that a sleep asked for meanwhile cannot come first
        }
        n_waiting--;
        if (state.n_wake_failures != failures) {
            return WAKE_FAILED;
        }
    }
}

void server_lifecycle::release(bool resets_idle_timer) {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    state.leases--;
    if (resets_idle_timer) {
        queue.time_last_task = ggml_time_ms();
    }
    if (state.leases == 0 && sleep_wanted) {
        queue.condition_tasks.notify_all();
    }
}

server_lifecycle::lease server_lifecycle::request_sleep(int64_t timeout_ms, const std::function<bool()> &should_stop) {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    const auto seen = n_settled;
    sleepers++;
    sleep_wanted = true;
    queue.condition_tasks.notify_all();
    lease result = ASLEEP;
    while (n_settled == seen) {
        const auto now = std::chrono::steady_clock::now();
        // once it is falling asleep there is no way back
        const bool given_up = now >= deadline && !queue.sleeping && state.leases > 0;
        if (terminated || should_stop() || given_up) {
            result = terminated ? TERMINATED : given_up ? BUSY : STOPPED;
            break;
        }
        changed.wait_for(lock,
                         now < deadline ? std::min<std::chrono::nanoseconds>(STOP_POLL, deadline - now) : STOP_POLL);
    }
    if (--sleepers == 0 && n_settled == seen) {
        sleep_wanted = false;
        changed.notify_all();
    }
    return result;
}

void server_lifecycle::set_idle_ms(int64_t value) {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    idle_ms = value;
    queue.condition_tasks.notify_all();
}

server_lifecycle::facts server_lifecycle::get() {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    state.sleeping = queue.sleeping;
    return state;
}

void server_lifecycle::start(int64_t idle) {
    std::unique_lock<std::mutex> lock(queue.mutex_tasks);
    queue.running = !terminated; // that may have come before
    queue.time_last_task = ggml_time_ms();
    if (idle_ms == INT64_MIN) {
        idle_ms = idle;
    }
}

void server_lifecycle::terminate() {
    terminated = true;
    changed.notify_all();
}

bool server_lifecycle::should_sleep() const {
    if (terminated || state.leases > 0) {
        return false;
    }
    return sleep_wanted || (idle_ms >= 0 && ggml_time_ms() - queue.time_last_task >= idle_ms);
}

std::chrono::milliseconds server_lifecycle::time_to_sleep() const {
    int64_t wait = 1000;
    if (idle_ms >= 0) {
        // while requests run it is not known when the last one ends
        wait = state.leases > 0 ? idle_ms : queue.time_last_task + idle_ms - ggml_time_ms();
    }
    return std::chrono::milliseconds(std::clamp<int64_t>(wait, 10, 1000));
}

void server_lifecycle::settled() {
    sleep_wanted = false;
    n_settled++;
    changed.notify_all();
}

void server_lifecycle::sleep(std::unique_lock<std::mutex> &lock) {
    auto &callbacks = queue.callback_sleeping_state;
    state.sleep_reason = sleep_wanted ? "request" : "idle";
    LOG_INF("falling asleep (%s)\n", state.sleep_reason.c_str());
    auto start = ggml_time_us();
    // The first one is that of the routes: what they answer while asleep must be there before anybody can see that it
    // is.
    callbacks.front()(true);
    queue.sleeping = true;
    lock.unlock();
    for (size_t i = 1; i < callbacks.size(); i++) {
        callbacks[i](true);
    }
    on_asleep();
    lock.lock();
    state.n_sleeps++;
    state.sleep_seconds = (ggml_time_us() - start) / 1e6;
    settled();
    while (true) {
        queue.condition_tasks.wait(lock, [&] { return terminated || sleep_wanted || queue.req_stop_sleeping; });
        if (terminated) {
            return;
        }
        if (sleep_wanted) {
            lock.unlock();
            on_asleep();
            lock.lock();
            settled();
            continue;
        }
        start = ggml_time_us();
        load_error.clear();
        lock.unlock();
        for (size_t i = callbacks.size(); i > 0 && load_error.empty(); i--) {
            callbacks[i - 1](false);
        }
        if (!load_error.empty()) {
            LOG_ERR("could not wake up: %s\n", load_error.c_str());
            on_asleep();
        }
        lock.lock();
        queue.req_stop_sleeping = false;
        state.wake_error = load_error;
        if (load_error.empty()) {
            break;
        }
        state.n_wake_failures++;
        changed.notify_all();
    }
    state.n_wakes++;
    state.wake_seconds = (ggml_time_us() - start) / 1e6;
    state.leases += n_waiting;
    n_waiting = 0;
    queue.sleeping = false;
    queue.time_last_task = ggml_time_ms();
    changed.notify_all();
    queue.condition_tasks.notify_all();
    LOG_INF("awake again after %.3f s\n", state.wake_seconds);
}

bool server_lifecycle::load(common_params &params, const std::function<bool()> &load_model) {
    load_error = on_wake(params, load_model);
    return load_error.empty();
}
