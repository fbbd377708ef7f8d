#pragma once

// The serving core of llama.cpp in this process: its slots, its batching and its routes, without its HTTP server.
//
// An engine has a thread of its own that loads the model and computes, and a pool of workers that run requests. What
// comes out of them waits in the channel that the request named, whose descriptor becomes readable. Any number of
// threads may use an engine at once; nobody may use it after pyggml_engine_free().

#include "pyggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pyggml_engine;
struct pyggml_channel;

// -- channels ---------------------------------------------------------------------------------------------------------

enum pyggml_event_kind {
    PYGGML_EVENT_HEAD = 1,  // status: HTTP's; the payload is lines of "name: value", content-type first
    PYGGML_EVENT_DATA = 2,  // a part of the body
    PYGGML_EVENT_END = 3,   // nothing more comes for this request; status: 0, 499 cancelled, 503 the engine is gone
    PYGGML_EVENT_LOG = 4,   // status: ggml_log_level; id 0
    PYGGML_EVENT_STATE = 5, // status: pyggml_engine_state; the payload: why it failed, or JSON about progress; id 0
};

struct pyggml_event {
    uint64_t id; // of the request
    int32_t kind;
    int32_t status;
    uint64_t size; // of the payload
};

PYGGML_API enum pyggml_status pyggml_channel_new(struct pyggml_channel **channel);
// An engine that still has events for it keeps what it needs.
PYGGML_API void pyggml_channel_free(struct pyggml_channel *channel);
// An eventfd that is readable while events wait.
PYGGML_API int pyggml_channel_fd(const struct pyggml_channel *channel);
// Takes at most `capacity` events (at least 3). Their payloads follow each other in `data`, which is valid until the
// next call.
PYGGML_API size_t pyggml_channel_poll(struct pyggml_channel *channel, struct pyggml_event *events, size_t capacity,
                                      const char **data, size_t *size);

// While paused nothing of a request is delivered, and in the end its worker waits.
PYGGML_API void pyggml_channel_pause(struct pyggml_channel *channel, uint64_t id, bool paused);

// -- engines ----------------------------------------------------------------------------------------------------------

enum pyggml_engine_state {
    PYGGML_ENGINE_LOADING = 0,
    PYGGML_ENGINE_READY = 1,
    PYGGML_ENGINE_SLEEPING = 2,
    PYGGML_ENGINE_WAKING = 3,
    PYGGML_ENGINE_FAILED = 4,
    PYGGML_ENGINE_CLOSED = 5,
};

enum pyggml_sleep_mode { PYGGML_SLEEP_FREE = 0, PYGGML_SLEEP_RESET = 1 };

enum pyggml_engine_moment {
    PYGGML_ENGINE_ASLEEP = 0, // the model is gone; `mode` is wanted, returned is the pyggml_sleep_mode that was reached
    PYGGML_ENGINE_WAKES = 1,  // backends are about to be needed; 0: do not wake
    PYGGML_ENGINE_AWAKE = 2,  // it is loaded
    PYGGML_ENGINE_NOT_AWAKE = 3, // it could not be loaded
};
// Called by the engine's own thread. It must not wait for that engine.
typedef int (*pyggml_engine_callback)(void *data, int moment, int mode);

struct pyggml_engine_options {
    const char *const *args; // llama-server's, without the name of the program
    size_t n_args;
    bool env;                        // whether LLAMA_ARG_* variables and llama.cpp's config files count
    double sleep_idle_seconds;       // negative: as in the arguments
    int sleep_mode;                  // when it falls asleep by itself
    size_t max_undelivered;          // bytes of one answer that wait for being polled; then its worker waits
    struct pyggml_channel *events;   // for log lines and states; may be NULL
    pyggml_engine_callback callback; // may be NULL: then sleep is PYGGML_SLEEP_FREE
    void *data;
};

// Starts loading and returns. PYGGML_FAILED: the arguments are not valid.
PYGGML_API enum pyggml_status pyggml_engine_new(const struct pyggml_engine_options *options,
                                                struct pyggml_engine **engine);
// Ends requests, waits and load; the calls below return. May be called more than once.
PYGGML_API void pyggml_engine_stop(struct pyggml_engine *engine);
// Waits until all threads have ended.
PYGGML_API void pyggml_engine_free(struct pyggml_engine *engine);
// Waits until it is not loading any more, at most so long. Returns the state.
PYGGML_API int pyggml_engine_wait(struct pyggml_engine *engine, int timeout_ms);

struct pyggml_file {
    const char *field, *filename, *content_type;
    const char *data;
    size_t size;
};

struct pyggml_request {
    const char *method, *path, *query; // the query only for routes that want it as it was
    const char *const *params;         // names and values in turn: of the query, decoded
    size_t n_params;                   // pairs
    const char *const *headers;        // names and values in turn
    size_t n_headers;                  // pairs
    const char *body;
    size_t body_size;
    const struct pyggml_file *files;
    size_t n_files;
};

// The routes as lines of "METHOD /path", ":name" being a part that varies.
PYGGML_API const char *pyggml_engine_routes(void);
// Everything is copied. The answer comes through `channel`, also that there is no such route.
PYGGML_API enum pyggml_status pyggml_engine_request(struct pyggml_engine *engine, struct pyggml_channel *channel,
                                                    const struct pyggml_request *request, uint64_t *id);
// The request ends soon (499). Nothing happens for one that has ended.
PYGGML_API void pyggml_engine_cancel(struct pyggml_engine *engine, uint64_t id);

enum pyggml_engine_result {
    PYGGML_ENGINE_DONE = 0,
    PYGGML_ENGINE_BUSY = 1,       // requests were still running after the timeout
    PYGGML_ENGINE_NOT_LOADED = 2, // see pyggml_error()
    PYGGML_ENGINE_GONE = 3,       // stopped or failed
};
// Both wait. `mode` -1 is that of the options. A sleeping engine may be sent to a deeper sleep.
PYGGML_API int pyggml_engine_sleep(struct pyggml_engine *engine, int mode, double timeout_seconds);
PYGGML_API int pyggml_engine_wake(struct pyggml_engine *engine);
PYGGML_API void pyggml_engine_set_idle(struct pyggml_engine *engine, double seconds);

struct pyggml_engine_info {
    int state;
    int sleep_mode; // that was reached; -1: awake
    int n_slots;
    int n_requests; // accepted and not answered
    int n_busy;     // that hold it awake
    int n_workers;
    uint64_t n_sleeps, n_wakes, n_wake_failures;
    double load_seconds, sleep_seconds, wake_seconds; // what the last one took
    char sleep_reason[16];
    bool no_memory;   // that was missing for the load or the last wake
    char error[2048]; // why the load or the last wake failed
};
PYGGML_API void pyggml_engine_get_info(struct pyggml_engine *engine, struct pyggml_engine_info *info);

#ifdef __cplusplus
}
#endif
