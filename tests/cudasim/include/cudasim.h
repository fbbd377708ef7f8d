/* What a test in the process itself can ask the simulated CUDA; exported by libcudart.so.13 (libamdhip64.so.7). */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The state as JSON (see the README), NUL-terminated where it fits. Returns the length it needs without the NUL. */
size_t cudasim_report(char *buffer, size_t size);
/* The same of any file (made, where there is none), for a process that does not use the cards. 0: it cannot be mapped.
 */
size_t cudasim_report_file(const char *path, char *buffer, size_t size);

/* Launch trace since the last reset: how many launches, and a hash of kernels, geometry and shared memory in their
 * order. */
unsigned long long cudasim_trace_hash(void);
unsigned long long cudasim_trace_launches(void);
void cudasim_trace_reset(void);

/* The n-th allocation of this process from now on fails (1: the next); 0: none. */
void cudasim_fail_alloc(long n);
/* The device is lost from now on, for all processes; _file: of another process's cards, by physical index. */
void cudasim_lose_device(int device);
int cudasim_lose_device_file(const char *path, int physical_device);

#ifdef __cplusplus
}
#endif
#endif
