// calls BACKEND MODEL SCENARIO: what happens around the teardown; prints a line of JSON per step, test_calls.py judges.

#include "driver.h"

#include "ggml-alloc.h"
#include "ggml.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <thread>

extern "C" int cudaGetDeviceFlags(unsigned int *flags);

// each kind of object alone holds the device
static void refused(ggml_backend_reg_t reg) {
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, 0);
    static char memory[8192];
    auto pin = (bool (*)(void *, size_t))ggml_backend_reg_get_proc_address(reg, "ggml_backend_register_host_buffer");
    auto unpin = (void (*)(void *))ggml_backend_reg_get_proc_address(reg, "ggml_backend_unregister_host_buffer");
    auto join = (void *(*)(ggml_backend_t *, size_t))ggml_backend_reg_get_proc_address(reg, "ggml_backend_comm_init");
    auto part = (void (*)(void *))ggml_backend_reg_get_proc_address(reg, "ggml_backend_comm_free");
    ggml_backend_t backends[2];
    void *communicator = nullptr;
    const std::vector<std::pair<const char *, std::function<std::function<void()>()>>> kinds = {
        {"backend",
         [&] {
             auto b = ggml_backend_dev_init(dev, nullptr);
             return [b] { ggml_backend_free(b); };
         }},
        {"device buffer",
         [&] {
             auto b = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(dev), 4096);
             return [b] { ggml_backend_buffer_free(b); };
         }},
        {"pinned host buffer",
         [&] {
             auto b = ggml_backend_buft_alloc_buffer(ggml_backend_dev_host_buffer_type(dev), 4096);
             return [b] { ggml_backend_buffer_free(b); };
         }},
        {"host registration",
         [&] {
             pin(memory, sizeof(memory));
             return [&] { unpin(memory); };
         }},
        {"event",
         [&] {
             auto e = ggml_backend_event_new(dev);
             return [e] { ggml_backend_event_free(e); };
         }},
        {"communicator",
         [&] {
             for (int i = 0; i < 2; i++) {
                 backends[i] = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, i), nullptr);
             }
             communicator = join(backends, 2);
             return [&] {
                 part(communicator);
                 ggml_backend_free(backends[0]);
                 ggml_backend_free(backends[1]);
             };
         }},
    };
    for (auto &[name, make] : kinds) {
        const auto destroy = make();
        const bool given = ggml_backend_unload(reg);
        say_state(name, reg, 0, given);
        destroy();
        say_state("gone", reg, 0, ggml_backend_unload(reg));
        reg = load(backend_path);
    }
}

// one of two physical devices
static void one_device(ggml_backend_reg_t reg) {
    ggml_backend_dev_t first = ggml_backend_reg_dev_get(reg, 0), second = ggml_backend_reg_dev_get(reg, 1);
    model_run run;
    // the thread's current device stays the second one, so pinned memory belongs there: none of it may be needed
    ggml_backend_t other = ggml_backend_dev_init(second, nullptr);
    say_state("other refused", reg, 1, ggml_backend_dev_free(second));
    ggml_backend_free(other);
    run.load(model_path, LLAMA_SPLIT_MODE_NONE, {first});
    run.start();
    run.generate();
    say_state("first refused", reg, 0, ggml_backend_dev_free(first));
    say_state("other given", reg, 1, ggml_backend_dev_free(second));
    const int error = run.generate();
    say("first goes on", field("ok", error == 0));
    // a thread that never chose a device has the first; one whose device sleeps must not wake it
    int current = -1;
    std::thread([&] {
        ggml_backend_t b = ggml_backend_dev_init(second, nullptr);
        ggml_backend_free(b);
        const bool given = ggml_backend_dev_free(second);
        cudaGetDevice(&current);
        say_state("given by a thread", reg, 1, given);
        run.generate();
        run.close();
    }).join();
    say_state("closed by a thread", reg, 1, current == 1);
    say_state("all given", reg, 0, ggml_backend_unload(reg));
}

// The runtime creates a context on the calling thread's current device in most calls. Each call here is made by a
// thread whose current device sleeps, for an object of the other device.
static void sleeping_current(ggml_backend_reg_t reg) {
    ggml_backend_dev_t first = ggml_backend_reg_dev_get(reg, 0), second = ggml_backend_reg_dev_get(reg, 1);
    ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 2, nullptr, true});
    ggml_tensor *a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64), *b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    ggml_backend_t backend = ggml_backend_dev_init(first, nullptr);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_buffer_t pinned = ggml_backend_buft_alloc_buffer(ggml_backend_dev_host_buffer_type(first), 4096);
    ggml_backend_event_t event = ggml_backend_event_new(first);
    float data[64] = {};
    const std::vector<std::pair<const char *, std::function<void()>>> calls = {
        {"write later", [&] { ggml_backend_tensor_set_async(backend, a, data, 0, sizeof(data)); }},
        {"read later", [&] { ggml_backend_tensor_get_async(backend, a, data, 0, sizeof(data)); }},
        {"copy later", [&] { ggml_backend_tensor_copy_async(backend, backend, a, b); }},
        {"write", [&] { ggml_backend_tensor_set(a, data, 0, sizeof(data)); }},
        {"read", [&] { ggml_backend_tensor_get(a, data, 0, sizeof(data)); }},
        {"copy", [&] { ggml_backend_tensor_copy(a, b); }},
        {"clear", [&] { ggml_backend_buffer_clear(buffer, 0); }},
        {"synchronize", [&] { ggml_backend_synchronize(backend); }},
        {"record", [&] { ggml_backend_event_record(event, backend); }},
        {"wait", [&] { ggml_backend_event_wait(backend, event); }},
        {"synchronize event", [&] { ggml_backend_event_synchronize(event); }},
        {"free event", [&] { ggml_backend_event_free(event); }},
        {"free buffer", [&] { ggml_backend_buffer_free(buffer); }},
        {"free pinned", [&] { ggml_backend_buffer_free(pinned); }},
        {"free backend", [&] { ggml_backend_free(backend); }},
    };
    for (auto &[name, call] : calls) {
        std::thread([&] {
            ggml_backend_free(ggml_backend_dev_init(second, nullptr));
            ggml_backend_dev_free(second);
            int current = -1;
            cudaGetDevice(&current);
            call();
            say_state("call", reg, 1, current == 1);
        }).join();
    }
    ggml_free(ctx);
}

static void virtual_devices(ggml_backend_reg_t reg) {
    ggml_backend_dev_t first = ggml_backend_reg_dev_get(reg, 0), second = ggml_backend_reg_dev_get(reg, 1);
    auto buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(second), 4096);
    say_state("sibling lives", reg, 0, ggml_backend_dev_free(first));
    ggml_backend_buffer_free(buffer);
    say_state("nothing lives", reg, 0, ggml_backend_dev_free(first));
}

// everything that only looks
static void look(ggml_backend_reg_t reg) {
    llama_backend_init();
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(dev, &props);
        size_t free = 0, total = 0;
        ggml_backend_dev_memory(dev, &free, &total);
        ggml_backend_dev_description(dev);
        if (ggml_backend_dev_backend_reg(dev) == reg) {
            say("memory", field("free", free) + ", " + field("total", total));
        }
    }
    auto features = (ggml_backend_get_features_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features");
    features(reg);
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, 0);
    ggml_backend_dev_buffer_type(dev);
    ggml_backend_dev_host_buffer_type(dev);
    ggml_context *ctx = ggml_init({ggml_tensor_overhead() * 8, nullptr, true});
    ggml_tensor *a = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 256, 256);
    ggml_backend_dev_supports_op(dev, ggml_mul_mat(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 256, 32)));
    ggml_tensor *q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 64, 32, 8, 1),
                *k = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 64, 512, 2, 1);
    ggml_tensor *mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 512, 64, 1, 1);
    ggml_backend_dev_supports_op(dev, ggml_flash_attn_ext(ctx, q, k, k, mask, 0.1f, 0.0f, 0.0f));
    ggml_free(ctx);
}

static void asleep(ggml_backend_reg_t reg) {
    look(reg);
    say("looked before the first use");
    model_run run;
    run.load(model_path, LLAMA_SPLIT_MODE_LAYER);
    run.start();
    run.generate();
    look(reg);
    run.close();
    for (size_t i = 0; i < ggml_backend_reg_dev_count(reg); i++) {
        ggml_backend_dev_free(ggml_backend_reg_dev_get(reg, i)); // still loaded, so that everything can be asked
    }
    say_state("given back", reg, 0);
    look(reg);
    say_state("looked asleep", reg, 0);
}

// another process has the card, this one only looks
static void asleep_shared(ggml_backend_reg_t reg) {
    int ready[2];
    if (pipe(ready)) {
        return;
    }
    const pid_t other = fork();
    if (other == 0) {
        void *memory = nullptr;
        cudaSetDevice(0);
        cudaMalloc(&memory, 200 << 20);
        close(ready[1]); // says that it is done
        pause();
    }
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) == 0) {
        look(reg);
        say("looked");
    }
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
}

static void foreign(ggml_backend_reg_t reg) {
    say_state("before", reg, 0);
    void *theirs = nullptr;
    cudaSetDevice(0);
    cudaMalloc(&theirs, 1 << 20);
    say_state("theirs, not ours", reg, 0);
    ggml_backend_t backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 0), nullptr);
    say_state("theirs and ours", reg, 0);
    ggml_backend_free(backend);
    cudaFree(theirs);
    say_state("given", reg, 0, ggml_backend_unload(reg));
    reg = load(backend_path);
    backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 0), nullptr);
    say_state("only ours", reg, 0);
    ggml_backend_free(backend);
    ggml_backend_unload(reg);
}

static void failing_reset(ggml_backend_reg_t reg) {
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, 0);
    for (const char *label : {"first", "second"}) {
        model_run run;
        run.load(model_path, LLAMA_SPLIT_MODE_LAYER);
        run.start();
        const int error = run.generate();
        run.close();
        const bool given = ggml_backend_dev_free(dev);
        say_state(label, reg, 0, given && !error);
    }
}

static void lost(ggml_backend_reg_t reg) {
    ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, 0);
    ggml_backend_free(ggml_backend_dev_init(dev, nullptr));
    cudasim_lose_device(0);
    say_state("lost", reg, 0, ggml_backend_dev_free(dev));
}

// The count of running captures is the library's own; a test cannot hold a real one open.
static void capture(ggml_backend_reg_t reg) {
    void *library = dlopen(backend_path, RTLD_NOW | RTLD_NOLOAD);
    auto captures = (std::atomic<int> *)dlsym(library, "ggml_cuda_lock_counter");
    auto changed = (std::condition_variable *)dlsym(library, "ggml_cuda_lock_cv");
    ggml_backend_free(ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 0), nullptr));
    const auto timed = [&](const char *label) {
        const auto begin = std::chrono::steady_clock::now();
        const bool given = ggml_backend_dev_free(ggml_backend_reg_dev_get(reg, 0));
        const auto end = std::chrono::steady_clock::now();
        say(label, field("ok", given) + ", " +
                       field("ms", std::chrono::duration_cast<std::chrono::milliseconds>(end - begin).count()) + ", " +
                       state_fields(reg, 0));
    };
    captures->store(1);
    timed("does not end");
    std::thread ending([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        captures->store(0);
        changed->notify_all();
    });
    timed("ends");
    ending.join();
}

static void set_up(ggml_backend_reg_t reg) {
    unsigned int flags = 0;
    for (int cycle = 0; cycle < 2; cycle++) {
        ggml_backend_t first = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 0), nullptr);
        say("first", state_fields(reg, 0));
        ggml_backend_t second = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 1), nullptr);
        cudaGetDeviceFlags(&flags);
        say("both", state_fields(reg, 1) + ", " + field("flags", flags));
        ggml_backend_free(second);
        say_state("second given", reg, 1, ggml_backend_dev_free(ggml_backend_reg_dev_get(reg, 1)));
        second = ggml_backend_dev_init(ggml_backend_reg_dev_get(reg, 1), nullptr);
        say("both again", state_fields(reg, 1));
        ggml_backend_free(first);
        ggml_backend_free(second);
        say("given", field("ok", ggml_backend_unload(reg)));
        reg = load(backend_path);
    }
}

int main(int argc, char **argv) {
    return run_scenario(argc, argv,
                        {{"refused", refused},
                         {"one-device", one_device},
                         {"sleeping-current", sleeping_current},
                         {"virtual", virtual_devices},
                         {"asleep", asleep},
                         {"asleep-shared", asleep_shared},
                         {"foreign", foreign},
                         {"failing-reset", failing_reset},
                         {"lost", lost},
                         {"capture", capture},
                         {"set-up", set_up}});
}
