#pragma once

// What the registry knows of each backend, loaded or not. For ggml-backend-reg.cpp.

#include "ggml-backend-dl.h"
#include "ggml-backend-impl.h"
#include "ggml-backend-lifecycle.h"

#include <mutex>
#include <vector>

struct ggml_backend_reg_entry {
    ggml_backend_reg_t reg;
    dl_handle_ptr handle;
    std::vector<ggml_backend_dev_t> devices; // as first registered: they come back without asking the backend
    size_t order;                            // of registration, so that a backend that comes back takes its old place
};

// The lists of the registry. An entry is in `backends` or in `unloaded`, so whoever counts and gets sees only loaded
// ones.
struct ggml_backend_entries {
    std::recursive_mutex mutex;
    std::vector<ggml_backend_reg_entry> backends;
    std::vector<ggml_backend_reg_entry> unloaded;
    std::vector<ggml_backend_dev_t> devices;

    void add(ggml_backend_reg_t reg, dl_handle_ptr handle);
    // Put an unloaded backend back. Null if there is none such; the backend itself if it is loaded.
    ggml_backend_reg_t revive(ggml_backend_reg_t reg);
    ggml_backend_reg_t revive(const dl_handle *handle);
    void revive_all();
    // Calls the free() hook, then takes the entry out of sight. Never closes the library: nvcc and g++ emit unique
    // symbols that keep it mapped anyway, and the CUDA runtime does not survive it.
    bool unload(ggml_backend_reg_t reg);

  private:
    void list_devices();
    std::vector<ggml_backend_dev_t> strangers; // registered one by one, without a backend of their own
    size_t next_order = 0;
};

// The registry's lists; its mutex guards them.
ggml_backend_entries &ggml_backend_registry_entries();

// The directory of this library, which is where its backends are.
fs::path ggml_backend_own_directory();
