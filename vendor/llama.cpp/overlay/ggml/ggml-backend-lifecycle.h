#pragma once

// How backends go and come back: the lifecycle lock, unloading with release, and what the registry keeps of an unloaded
// backend.

#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Who needs the backends to stay (loading a backend, a model, creating a context) holds the lock shared; unloading
// takes it exclusively. A thread may take it shared again while it holds it. A thread that holds it shared never gets
// it exclusively.
GGML_API void ggml_backend_lifecycle_lock_shared(void);
GGML_API void ggml_backend_lifecycle_unlock_shared(void);
GGML_API bool ggml_backend_lifecycle_lock(void);
GGML_API void ggml_backend_lifecycle_unlock(void);

// Whether unloading releases anything: the backend has a free() hook.
GGML_API bool ggml_backend_reg_can_free(ggml_backend_reg_t reg);
// Give back one device. Its backend stays loaded and the device comes back at its next use. False, and nothing has
// changed, where objects of it live or its backend has no hook.
GGML_API bool ggml_backend_dev_free(ggml_backend_dev_t device);
// Unload every backend that allows it, last loaded first. False if any refused.
GGML_API bool ggml_backend_unload_all(void);
// The directory where backends are looked for: that of this library.
GGML_API const char *ggml_backend_directory(void);
// How many backends are unloaded and would come back with ggml_backend_load_all().
GGML_API size_t ggml_backend_unloaded_count(void);

// What a backend with a free() hook tells of a device without touching it. ggml_backend_reg_get_proc_address() finds
// the function by the name "ggml_backend_device_state"; it answers for unloaded backends, too.
struct ggml_backend_device_state {
    uint32_t generation;    // one more after each release
    int32_t live_objects;   // backends, buffers, events ... that refer to it
    int64_t held;           // bytes of these, -1: not known
    int32_t context_active; // 1: this process has a context on it, 0: it has none, -1: cannot be known
    int32_t
        foreign_context; // 1: there was one before our first use, so it is somebody else's, 0: no, -1: cannot be known
    int32_t error;       // of the last release, in the backend's own numbers; 0: none
};
typedef bool (*ggml_backend_device_state_t)(ggml_backend_reg_t reg, int device,
                                            struct ggml_backend_device_state *state);
// The same through the device. False: the backend does not tell.
GGML_API bool ggml_backend_dev_state(ggml_backend_dev_t device, struct ggml_backend_device_state *state);

#ifdef __cplusplus
}

struct ggml_backend_lifecycle_shared {
    ggml_backend_lifecycle_shared() { ggml_backend_lifecycle_lock_shared(); }
    ~ggml_backend_lifecycle_shared() { ggml_backend_lifecycle_unlock_shared(); }
    ggml_backend_lifecycle_shared(const ggml_backend_lifecycle_shared &) = delete;
    ggml_backend_lifecycle_shared &operator=(const ggml_backend_lifecycle_shared &) = delete;
};

#endif
