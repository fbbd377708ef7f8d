// The unpatched library is made of its own files where a limit is raised and of the patched ones elsewhere; these are
// the two symbols that the latter expect from files which the unpatched library does not have.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

std::atomic<uint32_t> ggml_cuda_generation[16];

[[noreturn]] void ggml_cuda_throw_out_of_memory(int, size_t) {
    abort();
}
