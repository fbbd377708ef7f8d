#pragma once

// What an engine is made of.

#include "engine_args.h"
#include "engine_channel.h"
#include "engine_routes.h"

#include <thread>
#include <unordered_map>

// Threads that run requests, made as they are needed.
class worker_pool {
  public:
    worker_pool(size_t max_threads, std::function<void()> start, std::function<void(const request_ptr &)> run)
        : max_(max_threads), start_(std::move(start)), run_(std::move(run)) {}
    void submit(request_ptr request);
    // Once all are told to end, calls `nudge` until they have.
    void join(const std::function<void()> &nudge);
    size_t size();

  private:
    void loop();

    const size_t max_;
    const std::function<void()> start_; // of a thread
    const std::function<void(const request_ptr &)> run_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<request_ptr> waiting_;
    std::vector<std::thread> threads_;
    size_t idle_ = 0, running_ = 0;
    bool closing_ = false;
};

struct pyggml_engine {
    explicit pyggml_engine(const pyggml_engine_options &options);
    ~pyggml_engine();

    void stop();
    int wait(int timeout_ms);
    uint64_t request(const std::shared_ptr<event_queue> &events, const pyggml_request &from);
    void cancel(uint64_t id);
    int sleep(int mode, double timeout_seconds);
    int wake();
    void set_idle(double seconds);
    void info(pyggml_engine_info &out);

  private:
    void main(); // of the engine's thread
    void redirect_log();
    std::string load();
    std::string failed(const std::string &why);
    void asleep();
    std::string reload(common_params &params, const std::function<bool()> &load_model);
    int tell(int moment, int mode);
    void set_state(int state, const std::string &text);

    void run(const request_ptr &request);    // of a worker
    bool answer(const request_ptr &request); // whether all of it was said
    bool answer_error(const request_ptr &request, int status, error_type type, const std::string &message);
    void finish(const request_ptr &request, bool complete);
    std::string why_not(); // it takes no request
    void end_all();

    const std::vector<std::string> args_;
    const bool env_;
    const double idle_seconds_;
    const size_t max_undelivered_;
    const std::shared_ptr<event_queue> events_;
    const pyggml_engine_callback callback_;
    void *const data_;

    common_params params_; // of the first load; the routes refer to it
    engine_fit fit_;
    server_context context_;
    std::unique_ptr<server_routes> handlers_;
    std::vector<engine_route> routes_;
    std::unique_ptr<worker_pool> compute_, light_, live_;

    std::mutex mutex_; // of what follows
    std::condition_variable changed_;
    std::unordered_map<uint64_t, request_ptr> requests_;
    uint64_t next_id_ = 1;
    std::string error_;
    bool no_memory_ = false;
    double load_seconds_ = 0;
    int sleep_mode_, next_sleep_mode_, reached_mode_ = -1;

    std::atomic<int> state_{PYGGML_ENGINE_LOADING};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};
