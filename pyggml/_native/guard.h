#pragma once

// Keeps C++ exceptions and, where that is possible, ggml's aborts inside the shim.

#include "pyggml.h"

#include <exception>
#include <new>
#include <string>

// What ggml_abort() becomes on a thread that is inside a guard. The stack is unwound through ggml's C code, for which
// the platforms' ABIs provide; what such code held is lost, but the process is not.
struct ggml_aborted : std::exception {
    explicit ggml_aborted(const char *text) : text_(text) {}
    const char *what() const noexcept override { return text_.c_str(); }

  private:
    std::string text_;
};

// Notes why a call failed. Returns `status`.
enum pyggml_status fail(enum pyggml_status status, const std::string &reason);
// Between these two, warnings and errors logged by this thread are kept for pyggml_error().
void guard_enter();
void guard_leave();
void remember_log_line(const std::string &line);
// Lines of this thread go there instead of to the sink of pyggml_log_set(): for threads that must not wait for Python.
void log_redirect_set(void (*call)(void *target, int level, const char *line), void *target);
// A parser of arguments has set what llama.cpp's common library logs.
void log_level_restore();
// A failure of this call comes from missing memory, whatever the code above the allocation makes of it.
void note_no_memory();
// Whether pyggml_stop() was called.
bool stopped();
// Refuses allocations of host memory that the machine does not have. Once per process.
void watch_memory();

struct guard_scope {
    guard_scope() { guard_enter(); }
    ~guard_scope() { guard_leave(); }
};

template <typename Call> enum pyggml_status guard(Call call) {
    guard_scope scope;
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return fail(PYGGML_NO_MEMORY, "out of memory");
    } catch (const std::exception &error) {
        return fail(PYGGML_FAILED, error.what());
    } catch (...) {
        return fail(PYGGML_FAILED, "unknown C++ exception");
    }
}
