#pragma once

// The layout of struct ggml_backend_reg_i is ours (it ends with a hook that upstream does not have), so its version is
// ours as well: upstream's + 1000. A module that was built for another ggml says another version and is not loaded.
#define GGML_BACKEND_API_VERSION_UPSTREAM 2
#define GGML_BACKEND_API_VERSION (GGML_BACKEND_API_VERSION_UPSTREAM + 1000)
