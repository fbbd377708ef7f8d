#include "ggml-backend-entries.h"
#include "ggml-impl.h"

#include <algorithm>
#include <condition_variable>

namespace {

class lifecycle_lock {
  public:
    void lock_shared() {
        if (depth_ == 0 && exclusive_depth_ == 0) {
            std::unique_lock<std::mutex> guard(mutex_);
            // a waiting writer does not hold back readers: unloading while models load back to back would find them in
            // use anyway
            changed_.wait(guard, [&] { return !writer_; });
            readers_++;
        }
        depth_++;
    }

    void unlock_shared() {
        GGML_ASSERT(depth_ > 0);
        if (--depth_ == 0 && exclusive_depth_ == 0) {
            std::lock_guard<std::mutex> guard(mutex_);
            readers_--;
            changed_.notify_all();
        }
    }

    bool lock() {
        if (exclusive_depth_ == 0) {
            if (depth_ > 0) {
                return false; // it would wait for itself
            }
            std::unique_lock<std::mutex> guard(mutex_);
            changed_.wait(guard, [&] { return !writer_ && readers_ == 0; });
            writer_ = true;
        }
        exclusive_depth_++;
        return true;
    }

    void unlock() {
        GGML_ASSERT(exclusive_depth_ > 0);
        if (--exclusive_depth_ == 0) {
            std::lock_guard<std::mutex> guard(mutex_);
            writer_ = false;
            changed_.notify_all();
        }
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t readers_ = 0;
    bool writer_ = false;
    static thread_local size_t depth_;
    static thread_local size_t exclusive_depth_;
};

thread_local size_t lifecycle_lock::depth_ = 0;
thread_local size_t lifecycle_lock::exclusive_depth_ = 0;

lifecycle_lock &lifecycle() {
    static lifecycle_lock *lock =
        new lifecycle_lock; // never destroyed: threads may still come by while the process exits
    return *lock;
}

} // namespace

void ggml_backend_lifecycle_lock_shared(void) {
    lifecycle().lock_shared();
}
void ggml_backend_lifecycle_unlock_shared(void) {
    lifecycle().unlock_shared();
}
bool ggml_backend_lifecycle_lock(void) {
    return lifecycle().lock();
}
void ggml_backend_lifecycle_unlock(void) {
    lifecycle().unlock();
}

bool ggml_backend_reg_can_free(ggml_backend_reg_t reg) {
    return reg->iface.free != nullptr;
}

void ggml_backend_entries::add(ggml_backend_reg_t reg, dl_handle_ptr handle) {
    std::vector<ggml_backend_dev_t> own;
    for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); i++) {
        own.push_back(ggml_backend_reg_dev_get(reg, i));
    }
    backends.push_back({reg, std::move(handle), std::move(own), next_order++});
    list_devices();
}

ggml_backend_reg_t ggml_backend_entries::revive(ggml_backend_reg_t reg) {
    for (auto &entry : backends) {
        if (entry.reg == reg) {
            return reg;
        }
    }
    for (auto it = unloaded.begin(); it != unloaded.end(); ++it) {
        if (it->reg == reg) {
            auto place =
                std::find_if(backends.begin(), backends.end(), [&](auto &entry) { return entry.order > it->order; });
            backends.insert(place, std::move(*it));
            unloaded.erase(it);
            list_devices();
            return reg;
        }
    }
    return nullptr;
}

ggml_backend_reg_t ggml_backend_entries::revive(const dl_handle *handle) {
    for (const auto *entries : {&backends, &unloaded}) {
        for (const auto &entry : *entries) {
            if (entry.handle && entry.handle.get() == handle) {
                return revive(entry.reg);
            }
        }
    }
    return nullptr;
}

void ggml_backend_entries::revive_all() {
    std::vector<ggml_backend_reg_t> regs;
    for (auto &entry : unloaded) {
        auto score =
            entry.handle ? (ggml_backend_score_t)dl_get_sym(entry.handle.get(), "ggml_backend_score") : nullptr;
        if (!score || score() > 0) {
            regs.push_back(entry.reg);
        }
    }
    for (auto *reg : regs) {
        revive(reg);
    }
}

bool ggml_backend_entries::unload(ggml_backend_reg_t reg) {
    auto it = std::find_if(backends.begin(), backends.end(), [&](auto &entry) { return entry.reg == reg; });
    if (it == backends.end()) {
        return std::any_of(unloaded.begin(), unloaded.end(), [&](auto &entry) { return entry.reg == reg; });
    }
    if (reg->iface.free && !reg->iface.free(reg, -1)) {
        GGML_LOG_WARN("%s: the %s backend is in use and stays loaded\n", __func__, ggml_backend_reg_name(reg));
        return false;
    }
    unloaded.push_back(std::move(*it));
    backends.erase(it);
    list_devices();
    return true;
}

void ggml_backend_entries::list_devices() {
    const auto contains = [](const std::vector<ggml_backend_dev_t> &list, ggml_backend_dev_t device) {
        return std::find(list.begin(), list.end(), device) != list.end();
    };
    const auto owned = [&](ggml_backend_dev_t device) {
        const auto owns = [&](const ggml_backend_reg_entry &entry) { return contains(entry.devices, device); };
        return std::any_of(backends.begin(), backends.end(), owns) ||
               std::any_of(unloaded.begin(), unloaded.end(), owns);
    };
    for (auto *device : devices) {
        if (!owned(device) && !contains(strangers, device)) {
            strangers.push_back(device);
        }
    }
    devices.clear();
    for (auto &entry : backends) {
        devices.insert(devices.end(), entry.devices.begin(), entry.devices.end());
    }
    devices.insert(devices.end(), strangers.begin(), strangers.end());
}

// Runs `change` on the registry's lists while nobody loads anything. False at once from within a load, which would wait
// for itself.
template <typename Change> static bool exclusively(Change change) {
    if (!lifecycle().lock()) {
        GGML_LOG_WARN("%s: nothing is unloaded from within a load\n", __func__);
        return false;
    }
    auto &entries = ggml_backend_registry_entries();
    bool changed;
    {
        std::lock_guard<std::recursive_mutex> guard(entries.mutex);
        changed = change(entries);
    }
    lifecycle().unlock();
    return changed;
}

bool ggml_backend_unload(ggml_backend_reg_t reg) {
    return exclusively([&](ggml_backend_entries &entries) { return entries.unload(reg); });
}

bool ggml_backend_unload_all(void) {
    return exclusively([](ggml_backend_entries &entries) {
        bool all = true;
        for (size_t i = entries.backends.size(); i-- > 0;) {
            all = entries.unload(entries.backends[i].reg) && all;
        }
        return all;
    });
}

bool ggml_backend_dev_free(ggml_backend_dev_t device) {
    return exclusively([&](ggml_backend_entries &entries) {
        for (auto &entry : entries.backends) {
            auto place = std::find(entry.devices.begin(), entry.devices.end(), device);
            if (place != entry.devices.end()) {
                auto *hook = entry.reg->iface.free;
                return hook && hook(entry.reg, (int)(place - entry.devices.begin()));
            }
        }
        return false;
    });
}

bool ggml_backend_dev_state(ggml_backend_dev_t device, struct ggml_backend_device_state *state) {
    auto &entries = ggml_backend_registry_entries();
    std::lock_guard<std::recursive_mutex> guard(entries.mutex);
    for (const auto *list : {&entries.backends, &entries.unloaded}) {
        for (const auto &entry : *list) {
            auto place = std::find(entry.devices.begin(), entry.devices.end(), device);
            if (place != entry.devices.end()) {
                auto ask = (ggml_backend_device_state_t)ggml_backend_reg_get_proc_address(entry.reg,
                                                                                          "ggml_backend_device_state");
                return ask && ask(entry.reg, (int)(place - entry.devices.begin()), state);
            }
        }
    }
    return false;
}

size_t ggml_backend_unloaded_count(void) {
    auto &entries = ggml_backend_registry_entries();
    std::lock_guard<std::recursive_mutex> guard(entries.mutex);
    return entries.unloaded.size();
}

fs::path ggml_backend_own_directory() {
#ifdef _WIN32
    HMODULE module = nullptr;
    GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                       (LPCWSTR)&ggml_backend_own_directory, &module);
    std::wstring name(32768, L'\0');
    name.resize(GetModuleFileNameW(module, &name[0], (DWORD)name.size()));
    return fs::path(name).parent_path();
#else
    Dl_info info;
    return dladdr((void *)&ggml_backend_own_directory, &info) ? fs::path(info.dli_fname).parent_path() : fs::path();
#endif
}

const char *ggml_backend_directory(void) {
    static const std::string *directory = new std::string(ggml_backend_own_directory().string());
    return directory->c_str();
}
