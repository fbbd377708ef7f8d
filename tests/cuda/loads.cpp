// loads BACKEND MODEL SCENARIO: models loaded and given back many times, from several threads, without memory; prints a
// line of JSON per step, test_calls.py judges.

#include "driver.h"

#include <atomic>
#include <chrono>
#include <thread>

// a whole run; says where it failed
static const char *attempt(model_run &run) {
    return !run.load(model_path, LLAMA_SPLIT_MODE_LAYER) ? "load"
           : !run.start()                                ? "context"
           : run.generate()                              ? "decode"
                                                         : "none";
}

// every allocation of a whole run fails once
static void out_of_memory(ggml_backend_reg_t reg) {
    // pinned memory that fails is replaced by ordinary memory, so one success does not mean that there is no n-th
    // allocation
    for (int n = 1, successes = 0; n < 200 && successes < 8; n++) {
        cudasim_fail_alloc(n);
        model_run run;
        const std::string stage = attempt(run);
        successes = stage == "none" ? successes + 1 : 0;
        // the same context goes on once there is room
        cudasim_fail_alloc(0);
        const int retried = stage == "decode" ? run.generate() : 0;
        run.close();
        const bool given = ggml_backend_unload(reg);
        say("failed",
            field("n", n) + ", \"stage\": \"" + stage + "\", " + field("retried", retried) + ", " + field("ok", given));
        reg = load(backend_path);
    }
}

// the environment says which allocations fail
static void out_of_memory_once(ggml_backend_reg_t reg) {
    model_run run;
    const char *stage = attempt(run);
    run.close();
    say("failed", "\"stage\": \"" + std::string(stage) + "\", " + field("ok", ggml_backend_unload(reg)));
}

static void threads(ggml_backend_reg_t reg) {
    std::atomic<int> generated{0}, refusals{0}, failures{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> pool;
    for (int t = 0; t < 2; t++) {
        pool.emplace_back([&, t] {
            while (!stop) {
                model_run run;
                ggml_backend_lifecycle_lock_shared(); // else it could be unloaded again before the model is there
                const bool loaded =
                    run.load(model_path, LLAMA_SPLIT_MODE_NONE, {ggml_backend_reg_dev_get(load(backend_path), 0)});
                ggml_backend_lifecycle_unlock_shared();
                failures += !loaded || !run.start() || run.generate();
                run.close();
                generated++;
                std::this_thread::sleep_for(std::chrono::milliseconds(40 + 30 * t)); // at times nobody has a model
            }
        });
    }
    for (int t = 0; t < 2; t++) {
        pool.emplace_back([&] {
            while (!stop) {
                refusals += !ggml_backend_unload(load(backend_path));
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        });
    }
    std::this_thread::sleep_for(std::chrono::seconds(6));
    stop = true;
    for (auto &t : pool) {
        t.join();
    }
    const bool last = ggml_backend_unload(load(backend_path));
    say("joined", field("generated", generated) + ", " + field("refused", refusals) + ", " +
                      field("failures", failures) + ", " + field("ok", last) + ", " + state_fields(reg, 0));
}

static long resident() {
    long pages = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (fscanf(f, "%ld %ld", &pages, &rss) != 2) {
        rss = -1;
    }
    fclose(f);
    return rss * 4;
}

// what a teardown itself costs and leaves, without a model
static void quick(ggml_backend_reg_t reg) {
    for (int cycle = 1; cycle <= 500; cycle++) {
        ggml_backend_dev_t dev = ggml_backend_reg_dev_get(reg, 0);
        ggml_backend_t backend = ggml_backend_dev_init(dev, nullptr);
        ggml_backend_event_t event = ggml_backend_event_new(dev);
        auto buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(dev), 4096);
        ggml_backend_event_record(event, backend);
        ggml_backend_synchronize(backend);
        ggml_backend_buffer_free(buffer);
        ggml_backend_event_free(event);
        ggml_backend_free(backend);
        const bool given = ggml_backend_unload(reg);
        if (cycle == 50 || cycle == 500 || !given) {
            say_state("cycle", reg, 0, given);
            printf("{\"at\": \"resident\", \"kib\": %ld}\n", resident());
        }
        reg = load(backend_path);
    }
}

int main(int argc, char **argv) {
    return run_scenario(argc, argv,
                        {{"out-of-memory", out_of_memory},
                         {"out-of-memory-once", out_of_memory_once},
                         {"threads", threads},
                         {"quick", quick}});
}
