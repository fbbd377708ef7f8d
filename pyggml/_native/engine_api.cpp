// The C interface of an engine.

#include "engine_core.h"

#include "guard.h"

enum pyggml_status pyggml_engine_new(const struct pyggml_engine_options *options, struct pyggml_engine **engine) {
    return guard([&] {
        *engine = new pyggml_engine(*options);
        return PYGGML_OK;
    });
}

void pyggml_engine_stop(struct pyggml_engine *engine) {
    engine->stop();
}
void pyggml_engine_free(struct pyggml_engine *engine) {
    delete engine;
}
int pyggml_engine_wait(struct pyggml_engine *engine, int timeout_ms) {
    return engine->wait(timeout_ms);
}

enum pyggml_status pyggml_engine_request(struct pyggml_engine *engine, struct pyggml_channel *channel,
                                         const struct pyggml_request *request, uint64_t *id) {
    return guard([&] {
        *id = engine->request(channel->events, *request);
        return PYGGML_OK;
    });
}

void pyggml_engine_cancel(struct pyggml_engine *engine, uint64_t id) {
    engine->cancel(id);
}

int pyggml_engine_sleep(struct pyggml_engine *engine, int mode, double timeout_seconds) {
    int result = PYGGML_ENGINE_GONE;
    guard([&] {
        result = engine->sleep(mode, timeout_seconds);
        return PYGGML_OK;
    });
    return result;
}

int pyggml_engine_wake(struct pyggml_engine *engine) {
    int result = PYGGML_ENGINE_GONE;
    guard([&] {
        result = engine->wake();
        return PYGGML_OK;
    });
    return result;
}

void pyggml_engine_set_idle(struct pyggml_engine *engine, double seconds) {
    engine->set_idle(seconds);
}
void pyggml_engine_get_info(struct pyggml_engine *engine, struct pyggml_engine_info *info) {
    engine->info(*info);
}
