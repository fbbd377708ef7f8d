// The log of ggml and llama.cpp, and why a call failed.

#include "guard.h"

#include "ggml.h"
#include "llama.h"
#include "log.h"
#include "mtmd-helper.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <deque>

namespace {

std::atomic<pyggml_log_sink> sink{nullptr};
std::atomic<int> threshold{GGML_LOG_LEVEL_WARN};
std::atomic<bool> stop{false};

// Everything a thread needs to know of its own lines and its own failure.
struct thread_state {
    int depth = 0; // of guards
    bool no_memory = false;
    std::deque<std::string> lines;
    std::string error;
    std::string line; // llama.cpp logs in pieces
    int level = GGML_LOG_LEVEL_INFO;
    void (*redirect)(void *, int, const char *) = nullptr;
    void *target = nullptr;
};
thread_local thread_state state;

void on_log(ggml_log_level level, const char *text, void *) {
    if (level != GGML_LOG_LEVEL_CONT) {
        state.level = level;
        state.line.clear();
    }
    const bool wanted = state.level >= threshold.load(std::memory_order_relaxed);
    const bool kept = state.depth > 0 && state.level >= GGML_LOG_LEVEL_WARN;
    if (!wanted && !kept) {
        return;
    }
    state.line += text;
    if (state.line.empty() || state.line.back() != '\n') {
        return;
    }
    state.line.pop_back();
    if (kept) {
        remember_log_line(state.line);
    }
    const auto to = sink.load();
    if (wanted && state.redirect) {
        state.redirect(state.target, state.level, state.line.c_str());
    } else if (wanted && to) {
        to(state.level, &state.line[0]);
    }
    state.line.clear();
}

// What llama.cpp's common library and its server log.
void on_common_log(ggml_log_level level, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    std::string text(vsnprintf(nullptr, 0, format, args), '\0');
    vsnprintf(&text[0], text.size() + 1, format, again);
    va_end(again);
    on_log(level == GGML_LOG_LEVEL_NONE ? GGML_LOG_LEVEL_INFO : level, text.c_str(), nullptr);
}

void on_abort(const char *message) {
    if (state.depth > 0 && std::uncaught_exceptions() == 0) {
        throw ggml_aborted(message);
    }
    fprintf(stderr, "%s\n", message);
}

} // namespace

void guard_enter() {
    if (state.depth++ == 0) {
        state.lines.clear();
        state.error.clear();
        state.no_memory = false;
    }
}

void guard_leave() {
    state.depth--;
}

void note_no_memory() {
    state.no_memory = true;
}

bool stopped() {
    return stop.load(std::memory_order_relaxed);
}

void remember_log_line(const std::string &line) {
    state.lines.push_back(line);
    if (state.lines.size() > 6) {
        state.lines.pop_front();
    }
}

enum pyggml_status fail(enum pyggml_status status, const std::string &reason) {
    state.error = reason;
    for (const auto &line : state.lines) {
        state.error += "\n  " + line;
    }
    return status == PYGGML_FAILED && state.no_memory ? PYGGML_NO_MEMORY : status;
}

const char *pyggml_error(void) {
    return state.error.c_str();
}

void pyggml_start(void) {
    llama_log_set(on_log, nullptr);
    mtmd_helper_log_set(on_log, nullptr);
    common_log_set_sink(on_common_log); // else it would print, from a thread of its own
    log_level_restore();
    ggml_set_abort_callback(on_abort);
    watch_memory();
}

void pyggml_stop(void) {
    stop = true;
    sink = nullptr;
}

void pyggml_log_set(pyggml_log_sink to, int level) {
    threshold = level;
    sink = to;
    log_level_restore();
}

void log_redirect_set(void (*call)(void *, int, const char *), void *target) {
    state.redirect = call;
    state.target = target;
}

void log_level_restore() {
    // not below warnings, which pyggml_error() may want
    const int level = threshold;
    common_log_set_verbosity_thold(level <= GGML_LOG_LEVEL_DEBUG  ? LOG_LEVEL_DEBUG
                                   : level <= GGML_LOG_LEVEL_INFO ? LOG_LEVEL_INFO
                                                                  : LOG_LEVEL_WARN);
}
