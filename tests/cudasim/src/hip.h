// What the files of the simulated libamdhip64 share.
#pragma once

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#include <hip/hip_runtime_api.h>

#include "core.h"

static_assert(static_cast<int>(sim::Status::out_of_memory) == hipErrorOutOfMemory, "status numbers");
static_assert(static_cast<int>(sim::Status::not_initialized) == hipErrorNotInitialized, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_configuration) == hipErrorInvalidConfiguration, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_device_function) == hipErrorInvalidDeviceFunction,
              "status numbers");
static_assert(static_cast<int>(sim::Status::no_device) == hipErrorNoDevice, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_device) == hipErrorInvalidDevice, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_context) == hipErrorInvalidContext, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_handle) == hipErrorInvalidHandle, "status numbers");
static_assert(static_cast<int>(sim::Status::illegal_address) == hipErrorIllegalAddress, "status numbers");
static_assert(static_cast<int>(sim::Status::peer_already_enabled) == hipErrorPeerAccessAlreadyEnabled,
              "status numbers");
static_assert(static_cast<int>(sim::Status::host_not_registered) == hipErrorHostMemoryNotRegistered, "status numbers");
static_assert(static_cast<int>(sim::Status::launch_failure) == hipErrorLaunchFailure, "status numbers");
static_assert(static_cast<int>(sim::Status::unknown) == hipErrorUnknown, "status numbers");

// Every failure also becomes this thread's last error.
hipError_t result(sim::Status status);
