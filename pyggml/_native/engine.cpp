// The engine's own thread: it loads, computes, sleeps and wakes.

#include "engine_core.h"

#include "guard.h"

#include "ggml-backend-lifecycle.h"
#include "log.h"

#include <cstring>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// What was freed goes back to the system: a sleeping engine is there to hold little.
static void trim_memory() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void log_line(void *events, int level, const char *line) {
    static_cast<event_queue *>(events)->note(PYGGML_EVENT_LOG, level, line);
}

void pyggml_engine::redirect_log() {
    if (events_) {
        log_redirect_set(log_line, events_.get());
    }
}

// Fitting parameters to the memory changes llama.cpp's logger for that time, and two at once would count the same
// memory.
static std::mutex loading;

static const auto never = [] { return false; };

pyggml_engine::pyggml_engine(const pyggml_engine_options &o)
    : args_(o.args, o.args + o.n_args), env_(o.env), idle_seconds_(o.sleep_idle_seconds),
      max_undelivered_(o.max_undelivered), events_(o.events ? o.events->events : nullptr), callback_(o.callback),
      data_(o.data), params_(engine_params(args_, env_)), sleep_mode_(o.sleep_mode), next_sleep_mode_(o.sleep_mode) {
    handlers_ = std::make_unique<server_routes>(params_, context_);
    routes_ = engine_routes(*handlers_);
    const auto start = [this] { redirect_log(); };
    const auto run = [this](const request_ptr &request) { this->run(request); };
    // More than that wait in a queue: every thread that waits for a token is woken by every token.
    const size_t n = std::max(params_.n_parallel + 8, params_.n_threads_http);
    compute_ = std::make_unique<worker_pool>(n, start, run);
    light_ = std::make_unique<worker_pool>(8, start, run);
    live_ = std::make_unique<worker_pool>(2, start, run);
    thread_ = std::thread([this] { main(); });
}

pyggml_engine::~pyggml_engine() {
    stop();
    thread_.join();
}

void pyggml_engine::main() {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "pyggml-engine");
#endif
    redirect_log();
    std::string error = load();
    if (error.empty()) {
        try {
            context_.start_loop();
        } catch (const std::exception &exception) {
            error = exception.what();
        } catch (...) {
            error = "unknown C++ exception";
        }
    }
    if (!error.empty()) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            error_ = error;
        }
        set_state(PYGGML_ENGINE_FAILED, error);
        LOG_ERR("the engine failed: %s\n", error.c_str());
    }
    stopping_ = true;
    context_.terminate();
    const auto nudge = [this] { end_all(); };
    compute_->join(nudge);
    light_->join(nudge);
    live_->join(nudge);
    // on this thread, as the load
    context_.unload();
    trim_memory();
    if (error.empty()) {
        set_state(PYGGML_ENGINE_CLOSED, "");
    }
    log_redirect_set(nullptr, nullptr);
}

std::string pyggml_engine::load() {
    const auto start = ggml_time_us();
    std::lock_guard<std::mutex> one_at_a_time(loading);
    guard_scope scope;
    try {
        ggml_backend_lifecycle_shared lifecycle;
        if (pyggml_backends_load() == 0) {
            return "no backend could be loaded: the installation of pyggml is not complete";
        }
        if (params_.numa != GGML_NUMA_STRATEGY_DISABLED) {
            llama_numa_init(params_.numa);
        }
        context_.set_state_callback([this](server_state state, json progress) {
            if (state == SERVER_STATE_LOADING && events_) {
                events_->note(PYGGML_EVENT_STATE, state_, progress.dump());
            }
        });
        if (!context_.load_model(params_)) {
            return failed(stopping_ ? "cancelled" : "llama.cpp could not load the model");
        }
        fit_.remember(params_);
        handlers_->update_meta(context_);
    } catch (const std::exception &error) {
        return failed(error.what());
    }
    if (idle_seconds_ >= 0) {
        set_idle(idle_seconds_);
    }
    context_.lifecycle().on_asleep = [this] { asleep(); };
    context_.lifecycle().on_wake = [this](common_params &params, const std::function<bool()> &load) {
        return reload(params, load);
    };
    {
        std::lock_guard<std::mutex> lock(mutex_);
        load_seconds_ = (ggml_time_us() - start) / 1e6;
    }
    set_state(PYGGML_ENGINE_READY, "");
    return "";
}

// With the log lines that say more.
std::string pyggml_engine::failed(const std::string &why) {
    const bool no_memory = fail(PYGGML_FAILED, why) == PYGGML_NO_MEMORY;
    std::lock_guard<std::mutex> lock(mutex_);
    no_memory_ = no_memory;
    return pyggml_error();
}

void pyggml_engine::asleep() {
    trim_memory();
    int mode;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        mode = next_sleep_mode_;
    }
    const int reached = tell(PYGGML_ENGINE_ASLEEP, mode);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        reached_mode_ = std::max(reached_mode_, reached);
    }
    set_state(PYGGML_ENGINE_SLEEPING, "");
}

std::string pyggml_engine::reload(common_params &params, const std::function<bool()> &load_model) {
    set_state(PYGGML_ENGINE_WAKING, "");
    if (!tell(PYGGML_ENGINE_WAKES, 0)) {
        set_state(PYGGML_ENGINE_SLEEPING, "");
        return "the engine is closing";
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        no_memory_ = false;
        reached_mode_ = -1; // backends come back now
    }
    std::string error;
    {
        std::lock_guard<std::mutex> one_at_a_time(loading);
        guard_scope scope;
        try {
            ggml_backend_lifecycle_shared lifecycle;
            pyggml_backends_load();
            // From the original arguments: a load changes its parameters, and they name devices that may be new ones.
            auto fresh = engine_params(args_, env_);
            for (size_t i = 0; i < std::min(fresh.lora_adapters.size(), params.lora_adapters.size()); i++) {
                fresh.lora_adapters[i].scale = params.lora_adapters[i].scale; // may have been set by a request
            }
            fit_.apply(fresh);
            char reason[1024];
            if (pyggml_gguf_check(fresh.model.path.c_str(), reason, sizeof reason) != PYGGML_GGUF_OK) {
                error = fresh.model.path + ": " + reason;
            } else {
                params = std::move(fresh);
                if (!load_model()) {
                    error = failed("llama.cpp could not load the model");
                }
            }
        } catch (const std::exception &exception) {
            error = failed(exception.what());
        } catch (...) {
            error = "unknown C++ exception";
        }
    }
    tell(error.empty() ? PYGGML_ENGINE_AWAKE : PYGGML_ENGINE_NOT_AWAKE, 0);
    if (error.empty()) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            next_sleep_mode_ = sleep_mode_;
        }
        set_state(PYGGML_ENGINE_READY, "");
    }
    return error;
}

int pyggml_engine::tell(int moment, int mode) {
    if (callback_) {
        return callback_(data_, moment, mode);
    }
    return moment == PYGGML_ENGINE_WAKES ? 1 : PYGGML_SLEEP_FREE;
}

void pyggml_engine::set_state(int state, const std::string &text) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        state_ = state;
        changed_.notify_all();
    }
    if (events_) {
        events_->note(PYGGML_EVENT_STATE, state, text);
    }
}

void pyggml_engine::stop() {
    stopping_ = true;
    context_.cancel_load();
    context_.terminate();
    end_all();
}

int pyggml_engine::wait(int timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                      [&] { return state_ != PYGGML_ENGINE_LOADING || stopping_; });
    return state_;
}

static int result_of(server_lifecycle::lease lease) {
    switch (lease) {
    case server_lifecycle::LEASED:
    case server_lifecycle::ASLEEP:
        return PYGGML_ENGINE_DONE;
    case server_lifecycle::BUSY:
        return PYGGML_ENGINE_BUSY;
    case server_lifecycle::WAKE_FAILED:
        return PYGGML_ENGINE_NOT_LOADED;
    default:
        return PYGGML_ENGINE_GONE;
    }
}

int pyggml_engine::sleep(int mode, double timeout_seconds) {
    if (stopping_ || state_ == PYGGML_ENGINE_LOADING) {
        return stopping_ ? PYGGML_ENGINE_GONE : PYGGML_ENGINE_BUSY;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        next_sleep_mode_ = mode < 0 ? sleep_mode_ : mode;
    }
    const auto lease = context_.lifecycle().request_sleep((int64_t)(timeout_seconds * 1000), never);
    if (lease == server_lifecycle::BUSY) {
        std::lock_guard<std::mutex> lock(mutex_);
        next_sleep_mode_ = sleep_mode_;
    }
    return result_of(lease);
}

int pyggml_engine::wake() {
    if (stopping_ || state_ == PYGGML_ENGINE_LOADING) {
        return stopping_ ? PYGGML_ENGINE_GONE : PYGGML_ENGINE_DONE;
    }
    auto &lifecycle = context_.lifecycle();
    const auto lease = lifecycle.acquire(true, never);
    if (lease == server_lifecycle::LEASED) {
        lifecycle.release(true);
    } else if (lease == server_lifecycle::WAKE_FAILED) {
        fail(PYGGML_FAILED, lifecycle.get().wake_error);
    }
    return result_of(lease);
}

void pyggml_engine::set_idle(double seconds) {
    if (!stopping_) {
        context_.lifecycle().set_idle_ms(seconds < 0 ? -1 : (int64_t)(seconds * 1000));
    }
}

void pyggml_engine::info(pyggml_engine_info &out) {
    out = {};
    const auto facts = context_.lifecycle().get();
    std::lock_guard<std::mutex> lock(mutex_);
    out.state = state_;
    out.sleep_mode = state_ == PYGGML_ENGINE_SLEEPING ? reached_mode_ : -1;
    out.n_slots = params_.n_parallel;
    out.n_requests = (int)requests_.size();
    out.n_busy = facts.leases;
    out.n_workers = (int)(compute_->size() + light_->size() + live_->size());
    out.n_sleeps = facts.n_sleeps;
    out.n_wakes = facts.n_wakes;
    out.n_wake_failures = facts.n_wake_failures;
    out.load_seconds = load_seconds_;
    out.sleep_seconds = facts.sleep_seconds;
    out.wake_seconds = facts.wake_seconds;
    out.no_memory = no_memory_;
    snprintf(out.sleep_reason, sizeof out.sleep_reason, "%s", facts.sleep_reason.c_str());
    snprintf(out.error, sizeof out.error, "%s", error_.empty() ? facts.wake_error.c_str() : error_.c_str());
}
