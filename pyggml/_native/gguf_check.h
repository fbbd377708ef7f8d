#pragma once

#include <stddef.h>

#if defined(_WIN32)
#define PYGGML_API __declspec(dllexport)
#else
#define PYGGML_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Why a file is refused. The first four are about the path, the others about what is in the file. */
enum pyggml_gguf_reason {
    PYGGML_GGUF_OK = 0,
    PYGGML_GGUF_MISSING = 1,     /* no such file */
    PYGGML_GGUF_DIRECTORY = 2,   /* a directory */
    PYGGML_GGUF_PERMISSION = 3,  /* may not be read */
    PYGGML_GGUF_UNREADABLE = 4,  /* not a regular file, or the system reports another error */
    PYGGML_GGUF_NOT_GGUF = 5,    /* empty, or does not start with the magic */
    PYGGML_GGUF_UNSUPPORTED = 6, /* a version or byte order that the loader does not read */
    PYGGML_GGUF_TRUNCATED = 7,   /* something reaches past the end of the file */
    PYGGML_GGUF_MALFORMED = 8,   /* the structure contradicts itself */
    PYGGML_GGUF_INVALID = 9,     /* well-formed, but with values that no model can have */
};

/*
 * Reads header, metadata and tensor infos of a GGUF file (and of its further splits) and decides whether the loader can
 * take it without crashing, hanging or allocating more than the file justifies. Models, vocabularies, LoRA adapters and
 * projectors are accepted. `path` is UTF-8. Returns a reason; unless it is PYGGML_GGUF_OK, `message` (of `size` bytes)
 * says why and names the key or tensor, but not the path, which the caller knows. Never throws. Safe to call from
 * several threads.
 */
PYGGML_API int pyggml_gguf_check(const char *path, char *message, size_t size);

#ifdef __cplusplus
}
#endif
