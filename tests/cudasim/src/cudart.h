// What the files of the simulated libcudart share.
#pragma once

#include <cuda_runtime_api.h>

#include "core.h"

static_assert(static_cast<int>(sim::Status::out_of_memory) == cudaErrorMemoryAllocation, "status numbers");
static_assert(static_cast<int>(sim::Status::not_initialized) == cudaErrorInitializationError, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_configuration) == cudaErrorInvalidConfiguration, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_device_function) == cudaErrorInvalidDeviceFunction,
              "status numbers");
static_assert(static_cast<int>(sim::Status::no_device) == cudaErrorNoDevice, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_device) == cudaErrorInvalidDevice, "status numbers");
static_assert(static_cast<int>(sim::Status::invalid_handle) == cudaErrorInvalidResourceHandle, "status numbers");
static_assert(static_cast<int>(sim::Status::not_ready) == cudaErrorNotReady, "status numbers");
static_assert(static_cast<int>(sim::Status::illegal_address) == cudaErrorIllegalAddress, "status numbers");
static_assert(static_cast<int>(sim::Status::peer_already_enabled) == cudaErrorPeerAccessAlreadyEnabled,
              "status numbers");
static_assert(static_cast<int>(sim::Status::peer_not_enabled) == cudaErrorPeerAccessNotEnabled, "status numbers");
static_assert(static_cast<int>(sim::Status::host_already_registered) == cudaErrorHostMemoryAlreadyRegistered,
              "status numbers");
static_assert(static_cast<int>(sim::Status::host_not_registered) == cudaErrorHostMemoryNotRegistered, "status numbers");
static_assert(static_cast<int>(sim::Status::launch_failure) == cudaErrorLaunchFailure, "status numbers");
static_assert(static_cast<int>(sim::Status::not_supported) == cudaErrorNotSupported, "status numbers");
static_assert(static_cast<int>(sim::Status::capture_unsupported) == cudaErrorStreamCaptureUnsupported,
              "status numbers");
static_assert(static_cast<int>(sim::Status::unknown) == cudaErrorUnknown, "status numbers");

// Every failure also becomes this thread's last error.
cudaError_t result(sim::Status status);
