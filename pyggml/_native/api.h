#pragma once

// Everything Python can call: the public headers of llama.cpp and ggml, and our own. build_cffi.py reads it.

#include "ggml.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"
#include "llama.h"
#include "mtmd-helper.h"
#include "mtmd.h"

#include "engine.h"
#include "ggml-backend-lifecycle.h"
#include "pyggml.h"
