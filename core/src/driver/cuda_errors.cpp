#include "plimsoll/driver/cuda_errors.h"

#include <algorithm>
#include <array>

namespace plimsoll::cuda {
namespace {

using enum Status;

// Sorted by code. Errors that say "restart" are sticky: every later call in the process fails too.
constexpr std::array kErrors = std::to_array<Error>({
    {1, "CUDA_ERROR_INVALID_VALUE", invalid_value,
     "an argument is wrong: an address, a size or a handle that the driver does not know"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", out_of_memory, "there is not enough memory left"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", failed,
     "CUDA is not initialized in this process; after a fork it never is: start the process with "
     "the 'spawn' method"},
    {4, "CUDA_ERROR_DEINITIALIZED", driver_gone,
     "the process is ending and the driver has shut down already"},
    {5, "CUDA_ERROR_PROFILER_DISABLED", failed,
     "the profiler cannot be steered while another profiling tool runs the program"},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", failed, "the profiler was not initialized"},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", failed, "the profiler runs already"},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", failed, "the profiler is stopped already"},
    {34, "CUDA_ERROR_STUB_LIBRARY", not_supported,
     "the libcuda that was found is the toolkit's stub: take its folder out of LD_LIBRARY_PATH, so "
     "that the installed driver is found"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", not_supported,
     "the installed NVIDIA driver is too old for this call: update it"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", failed,
     "the GPU is taken: another process uses it in exclusive mode, or its compute mode is "
     "'prohibited' (nvidia-smi -q -d COMPUTE)"},
    {100, "CUDA_ERROR_NO_DEVICE", failed,
     "the driver sees no GPU: check nvidia-smi and that CUDA_VISIBLE_DEVICES does not hide it"},
    {101, "CUDA_ERROR_INVALID_DEVICE", invalid_value, "there is no GPU of this number"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", failed,
     "the virtual GPU has no licence: check the license server that it is configured with"},
    {200, "CUDA_ERROR_INVALID_IMAGE", failed, "a kernel's binary cannot be read"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", failed,
     "the GPU's context is not valid: it was destroyed or reset"},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", failed, "the context is current already"},
    {205, "CUDA_ERROR_MAP_FAILED", failed, "the driver could not map memory"},
    {206, "CUDA_ERROR_UNMAP_FAILED", failed, "the driver could not unmap memory"},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED", invalid_value, "the array is mapped, so it must stay"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", invalid_value, "something is mapped there already"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", not_supported,
     "a library holds no kernels for this GPU: it needs a build for its compute capability"},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED", invalid_value, "the resource was acquired already"},
    {211, "CUDA_ERROR_NOT_MAPPED", invalid_value, "nothing is mapped there"},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", invalid_value,
     "the resource is mapped, but not as an array"},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", invalid_value,
     "the resource is mapped, but not as a pointer"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", device_lost,
     "the GPU's memory had an error that ECC could not correct: restart the process, and have the "
     "card checked if it comes back (nvidia-smi -q -d ECC)"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", not_supported, "this GPU does not have this limit"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", failed,
     "the context is bound to another thread and can serve only one"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", not_permitted,
     "these two GPUs cannot reach each other's memory: copy through the host instead"},
    {218, "CUDA_ERROR_INVALID_PTX", failed, "a kernel's PTX could not be compiled"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", failed,
     "the OpenGL or DirectX context is not valid"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", device_lost,
     "NVLink had an error that it could not correct: restart the process, and have the link "
     "checked if it comes back (nvidia-smi nvlink -e)"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", failed,
     "the driver's PTX compiler is missing: install libnvidia-ptxjitcompiler"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", not_supported,
     "a kernel's PTX is newer than the installed NVIDIA driver: update the driver"},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", not_supported,
     "compiling PTX is switched off (CUDA_DISABLE_PTX_JIT)"},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", not_supported,
     "this GPU cannot be divided that way"},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", not_supported,
     "a kernel calls cudaDeviceSynchronize, which GPUs of today do not offer to kernels"},
    {226, "CUDA_ERROR_CONTAINED", device_lost,
     "the GPU contained a hardware error or an invalid access over NVLink: restart the process"},
    {300, "CUDA_ERROR_INVALID_SOURCE", failed, "a kernel's source is not valid"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", failed, "the driver misses a file"},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", failed,
     "parts of the NVIDIA driver do not fit together: reinstall it"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", failed,
     "a part of the NVIDIA driver did not start: reinstall it"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", failed,
     "the operating system refused the driver something: check the limits of the process and the "
     "container (ulimit, devices, cgroups)"},
    {400, "CUDA_ERROR_INVALID_HANDLE", invalid_value,
     "a stream, event or memory handle is not valid, or was destroyed"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", failed,
     "a resource is in a state that does not allow this call"},
    {402, "CUDA_ERROR_LOSSY_QUERY", not_supported,
     "the object uses features that this way of asking cannot describe"},
    {500, "CUDA_ERROR_NOT_FOUND", invalid_value, "nothing of this name was found"},
    {600, "CUDA_ERROR_NOT_READY", not_ready, "the work is not done yet"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", device_lost,
     "a kernel touched memory that is not mapped: restart the process, and find the kernel with "
     "compute-sanitizer or CUDA_LAUNCH_BLOCKING=1"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", failed,
     "a kernel asked for more threads, registers or arguments than the GPU has"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", device_lost,
     "a kernel ran longer than the display's watchdog allows: restart the process, and use a card "
     "without a display or shorter kernels"},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", failed,
     "a kernel was launched with a texturing mode that does not fit"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", invalid_value,
     "access between these two GPUs is enabled already"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", invalid_value,
     "access between these two GPUs was not enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", failed,
     "the GPU is in use by this process already, so this can no longer be changed"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", driver_gone,
     "the GPU's context was destroyed or reset, and all its memory with it"},
    {710, "CUDA_ERROR_ASSERT", device_lost,
     "an assertion in a kernel failed, often an index out of range: restart the process; what the "
     "kernel printed says which"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", not_permitted,
     "one of the GPUs has no room for access by another GPU"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", invalid_value,
     "this host memory is pinned already"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", invalid_value,
     "this host memory was not pinned"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", device_lost,
     "a kernel ran over its stack: restart the process"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", device_lost,
     "a kernel ran an instruction that this GPU does not have: restart the process"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", device_lost,
     "a kernel used an address that is not aligned for its type: restart the process"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", device_lost,
     "a kernel used an address of the wrong kind of memory: restart the process"},
    {718, "CUDA_ERROR_INVALID_PC", device_lost,
     "a kernel jumped to where there is no code: restart the process"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", device_lost,
     "a kernel crashed: restart the process, and find the kernel with compute-sanitizer"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", failed,
     "a cooperative kernel has more blocks than fit on the GPU at once"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", device_lost,
     "a kernel ended without giving back its tensor memory: restart the process"},
    {800, "CUDA_ERROR_NOT_PERMITTED", not_permitted,
     "the driver does not permit this here: check the rights of the process and the container"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", not_supported, "this GPU, driver or system cannot do this"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", failed,
     "the machine's GPU services are not running: on NVSwitch machines start nvidia-fabricmanager"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", failed,
     "the kernel module and libcuda are of different versions: reboot after a driver update, and "
     "give a container the driver of its host"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", not_supported,
     "CUDA's forward compatibility package does not support this GPU: remove it, or update the "
     "driver"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", failed,
     "the MPS server cannot be reached: check nvidia-cuda-mps-control and "
     "CUDA_MPS_PIPE_DIRECTORY"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", failed, "the MPS server did not answer: restart it"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", failed,
     "the MPS server is starting or recovering: try again in a moment"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", failed,
     "the MPS server serves as many processes as it can: end one of them"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", failed,
     "the GPU has as many connections as it can: lower CUDA_DEVICE_MAX_CONNECTIONS or end a "
     "process"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", device_lost,
     "the MPS server ended this process's work: restart the process"},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED", not_supported,
     "kernels cannot launch kernels here, for example under MPS"},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH", not_supported,
     "kernels that launch kernels were built with versions of CUDA that do not fit together"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", not_permitted,
     "this cannot be done while a CUDA graph is captured: do it before or after the capture"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", not_permitted,
     "the capture of a CUDA graph was broken by an earlier error: end it and capture again"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", not_permitted,
     "this would join two captures of CUDA graphs into one"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", not_permitted,
     "the capture of this CUDA graph began on another stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", not_permitted,
     "a stream that joined the capture of a CUDA graph was not waited for before its end"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", not_permitted,
     "a CUDA graph under capture cannot wait for work outside of it"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", not_permitted,
     "the legacy default stream cannot be used while a CUDA graph is captured on a stream that "
     "synchronizes with it: use a stream of your own"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", not_permitted,
     "the event was recorded in a CUDA graph under capture, so it cannot be asked or waited for"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", not_permitted,
     "the capture of a CUDA graph must end in the thread that began it"},
    {909, "CUDA_ERROR_TIMEOUT", failed, "the wait took longer than its time limit"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", failed,
     "the CUDA graph has changed too much to be updated: instantiate it again"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", device_lost,
     "a device that CUDA waited for reported that its data is not valid: restart the process"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", failed,
     "a kernel was launched with clusters that the GPU cannot run"},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED", failed, "a kernel was used before it was loaded"},
    {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", invalid_value,
     "the resource is of a type that this call does not take"},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", invalid_value,
     "there are too few resources, or they do not fit this call"},
    {916, "CUDA_ERROR_KEY_ROTATION", failed,
     "the exchange of keys with the GPU failed (confidential computing)"},
    {999, "CUDA_ERROR_UNKNOWN", failed,
     "the driver failed for a reason that it does not name: the system's log (dmesg, lines with "
     "'Xid') may"},
});

const Error* find(Result code) {
  const auto place = std::ranges::lower_bound(kErrors, code, {}, &Error::code);
  return place != kErrors.end() && place->code == code ? &*place : nullptr;
}

}  // namespace

std::span<const Error> errors() { return kErrors; }

Status status_of(Result code) {
  if (code == kSuccess) return success;
  const Error* const error = find(code);
  return error != nullptr ? error->status : failed;
}

std::string explain(const Api& api, Result code) {
  std::string name = "unknown error";
  std::string meaning;
  if (const Error* const error = find(code)) {
    name = error->name;
    meaning = error->meaning;
  } else {
    const char* text = nullptr;
    if (api.get_error_name(code, &text) == kSuccess && text != nullptr) name = text;
    text = nullptr;
    if (api.get_error_string(code, &text) == kSuccess && text != nullptr) meaning = text;
  }
  name += " (" + std::to_string(code) + ')';
  return meaning.empty() ? name : name + ": " + meaning;
}

}  // namespace plimsoll::cuda
