// The simulated CUDA runtime of this process: its devices, its streams, and the call sites at which
// the program requests memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/callback.h"
#include "plimsoll/device_api.h"
#include "plimsoll/engine_api.h"
#include "plimsoll/recorder_api.h"

namespace plimsoll::simulated {

// Properties of a device. plimsoll uses them to find the memory and the time that a kernel takes.
// Shared with Python (see python/memory_layout.cpp).
struct DeviceProperties {
  std::int32_t multiprocessors = 0;
  std::int32_t major = 0;
  std::int32_t minor = 0;
  std::int32_t max_threads_per_multiprocessor = 0;
  double bytes_per_ns = 0;         // device memory's bandwidth
  double flops_per_ns = 0;         // fp32, outside tensor cores
  double tensor_flops_per_ns = 0;  // half precision, on tensor cores
  double copy_bytes_per_ns = 0;    // bus between host and device
};

// Sums up a device's work so far, in ns of the simulated clock. The fields with `ends` are
// points in time, counted from the start of the simulation; the other fields in ns are durations.
// Shared with Python.
struct Clock {
  double ends_ns = 0;            // when all queued work will be done
  double compute_ends_ns = 0;    // like ends_ns, but only of `compute`
  double no_copies_ends_ns = 0;  // like ends_ns, but ignores `transfer`
  double busy_ns = 0;            // the time during which the device had any work
  double compute_ns = 0;         // the time during which it had `compute` work
  double no_copies_ns = 0;       // the time during which it had other work than `transfer`
  double collective_ns = 0;      // the times of all collectives
  double network_ns = 0;         // the times of those collectives that cross the network
  double host_ns = 0;            // the time that the host took to queue the work
  std::uint64_t kernels = 0;
};
// `compute` is kernels and copies within the device. `collective` is a collective on one machine,
// and `network` one across machines. `transfer` is a copy that enters or leaves the device.
enum class Work : std::uint8_t { compute, collective, network, transfer };

// The GPU time of the work queued from one call stack. Shared with Python.
struct StackTime {
  double ns = 0;
};

// The parts of a process's CUDA context. The driver adds a part when the process first uses it.
// Each part takes memory of the card outside PyTorch's allocator. The order is the same as in
// CONTEXT_PARTS of engine/gpus/card_files.py.
enum class Library : std::uint8_t {
  kernels,
  streams,
  blas,
  blas_handle,
  stacks,
  solver,
  solver_handle,
  fourier
};

struct Device {
  plimsoll_engine* engine = nullptr;
  plimsoll_device* gpu = nullptr;
  DeviceProperties properties;
  std::atomic<std::uint64_t> allocations = 0;
  std::atomic<std::uint64_t> live_bytes = 0;  // as requested, before the allocator rounds sizes up
  std::atomic<bool> is_used = false;          // the device has a context
  std::atomic<std::uint32_t> loaded = 0;      // one bit for each Library
  std::atomic<std::uint64_t> capture = 0;     // number of the graph capture under way; 0 for none
  Clock clock;
  std::vector<StackTime> stack_times;  // indexed by stack number
};

// Role is the purpose of a request for memory; Phase is the pass in which it is made. Both enums
// are shared with Python, so a new value needs an entry in python/memory_layout.cpp.
enum class Role : std::uint8_t { output, temporary, workspace, input, copy };
enum class Phase : std::uint8_t { forward, backward };

// The thread's current operation; the thread's allocations are attributed to it.
struct CurrentOperation {
  std::uint32_t name = 0;
  Role role = Role::output;
  bool has_grad_fn = false;  // the memory is for the result of an operation that autograd records
};

// The call site of a request for memory. The memory history refers to a site by its number. Shared
// with Python.
struct Site {
  std::uint32_t stack = 0;
  std::uint32_t operation = 0;
  Role role = Role::output;
  Phase phase = Phase::forward;
  bool grad_enabled = false;
  bool has_grad_fn = false;  // the memory is for the result of an operation that autograd records
};

// An assumption that plimsoll made about something that a simulation cannot know, such as the value
// of a tensor. Shared with Python.
struct Assumption {
  std::uint32_t stack = 0;
  std::uint32_t operation = 0;
  std::uint32_t what = 0;  // Runtime::name_at() returns the assumption's text for this number
  std::uint32_t count = 0;
  // The bytes of memory that the assumption is about, or 0. If a kernel's internal memory is
  // unknown, this is the size of the call's arguments and results. If plimsoll makes the assumption
  // several times, this is the largest of the sizes.
  std::uint64_t bytes = 0;
};

// Describes memory of uncertain size that a kernel allocates for its own use, and frees immediately
// afterwards. Shared with Python.
struct UncertainMemory {
  // The numbers of the device's allocations and frees before this memory is allocated.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t stream = 0;
  std::uint64_t kind = 0;   // on a real GPU, all requests of one kind have the same size
  std::uint64_t bytes = 0;  // the size that the simulation takes, which may be 0
  // A real GPU takes from `least` to `most` bytes.
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  std::int32_t device = 0;
  std::uint32_t reserved = 0;
};

// Texts of assumptions, as the report prints them.
constexpr std::string_view kReadsUnknown =
    "plimsoll made up the values that the script reads here, such as a printed loss";
constexpr std::string_view kReadsWithoutContents =
    "plimsoll keeps no contents of large host tensors; the script read zeros";
constexpr std::string_view kComputesWithoutContents =
    "plimsoll keeps no contents of large host tensors, and made up this result of them";
constexpr std::string_view kMappedUnknown =
    "this kernel wrote to host memory; plimsoll left the old values there";
constexpr std::string_view kReadsRandom =
    "the random numbers that the script reads here differ from a real GPU's";
constexpr std::string_view kSizeOfUnknown =
    "the size of its result depends on data that plimsoll did not compute";
constexpr std::string_view kSizeOfRandom =
    "the size of its result depends on random numbers, and a real GPU draws others";
constexpr std::string_view kTakenAsFinite =
    "the scaler skips no step here, although a new one often skips its first";
constexpr std::string_view kBeyondBudget =
    "plimsoll did not compute its result, which would take too much time or memory";
constexpr std::string_view kUndecidedCheck =
    "plimsoll assumes that this kernel's check passes: it did not compute the checked data";
// The first line of CUDA's error once an assertion in a kernel has failed.
constexpr const char* kDeviceAssert = "CUDA error: device-side assert triggered";
constexpr std::string_view kWaits =
    "a loop waited for this value, so plimsoll changed it as in a healthy run";

// Python functions that the library calls. Each call takes the interpreter's lock.
struct Callbacks {
  Callback first_use;      // takes a device
  Callback load;           // takes a device and the number of a Library
  Callback out_of_memory;  // takes a device and the requested bytes
  // Returns whether the calling thread is inside a `while` loop of the program's Python code.
  Callback is_in_open_loop;
  // Returns whether the calling thread reads a value for a condition, such as that of an `if`.
  Callback is_tested;
  // Returns whether to stop the program because, at this call stack, it polls for a value that will
  // never come.
  Callback waits_for_ever;
  // Called when `Runtime::events` reaches `Runtime::most_events`.
  Callback bound_reached;
  // Exchanges bytes with the other ranks of a group; see collectives/exchange.h.
  Callback exchange;
};

// The exception that ends the program. It is raised in the main thread as soon as that thread runs
// Python code again.
struct Ending {
  unsigned long thread = 0;  // Python's number of the thread
  void* exception = nullptr;
};

class Runtime {
 public:
  static Runtime& instance();

  const plimsoll_engine_api* engines = nullptr;
  const plimsoll_device_api* gpus = nullptr;
  const plimsoll_recorder_api* recorder = nullptr;
  Callbacks callbacks;
  Ending ending;
  std::deque<Device> devices;
  int torch_version = 0;  // 211 for PyTorch 2.11
  bool record_sites = false;
  std::atomic<bool> keeps_history = false;  // PyTorch records its memory history, with call stacks
  bool record_stacks = false;
  bool is_over = false;  // the interpreter is ending; frees and kernels are no longer simulated
  std::atomic<std::uint64_t> events = 0;
  std::uint64_t most_events = 0;          // the bound on `events`; 0 for none
  std::atomic<bool> has_failed = false;   // an assertion in a kernel failed
  std::atomic<bool> is_bad_fork = false;  // this is a child of a process that has used CUDA

  [[nodiscard]] const Device& device(c10::DeviceIndex index) const {
    return devices[static_cast<std::size_t>(index)];
  }

  // Notes that the process uses CUDA. Children that it forks from now on must not use CUDA.
  void initialize();
  // Makes a device's context if this is its first use.
  void use(c10::DeviceIndex index);
  // Takes the memory of one part of a device's context, unless this process has already taken it.
  void load(c10::DeviceIndex index, Library library);
  // Takes the memory of a part that a process may load several times, such as a library's handle.
  void load_again(c10::DeviceIndex index, Library library);
  // Makes the host wait for the current stream of a device.
  void synchronize(c10::DeviceIndex index);
  // Advances the simulated clock by the time of the host's work.
  void pass_host_time(c10::DeviceIndex index, double ns);
  // Queues work on the current stream of a device.
  void launch(c10::DeviceIndex index, Work work, double ns);
  // Returns the time at which all work queued on the current stream of a device will be done.
  [[nodiscard]] double done_at(c10::DeviceIndex index) const;
  // Makes a stream wait until a time, such as the time of another device's event. All devices have
  // the same clock.
  void wait_until(c10::DeviceIndex index, c10::StreamId stream, double ns);
  // Records that an assertion in a kernel failed: every later CUDA call fails too.
  void fail(const std::string& why);
  // The first failed assertion in a kernel. `stack` is the number of the program's call stack when
  // the assertion failed.
  struct Failure {
    std::string why;
    std::uint32_t stack = 0;
  };
  [[nodiscard]] std::optional<Failure> failure();
  // Throws c10::AcceleratorError if an assertion in a kernel has failed.
  void refuse_after_failure();
  // Throws, as CUDA does, if a CUDA graph is being captured on the device. Captured work does not
  // run, so the host must not wait for it.
  void refuse_while_capturing(c10::DeviceIndex index) const;

  // Returns the number of the CUDA graph capture under way on the device; 0 for none.
  [[nodiscard]] std::uint64_t current_capture(c10::DeviceIndex index) const {
    return device(index).capture;
  }
  // Begins or ends the capture of a CUDA graph, and returns the capture's number.
  std::uint64_t set_capturing(c10::DeviceIndex index, bool on);
  // Queues the kernels of a captured graph, as a replay of the graph does.
  void launch_captured(std::uint64_t capture);
  void forget_capture(std::uint64_t capture);
  // Returns the number of kernels and copies in a captured graph.
  std::uint64_t captured_nodes(std::uint64_t capture);

  // Returns CUDA's error for a missing device, with advice on how to simulate it.
  [[nodiscard]] std::string no_such_device(int index) const;
  // Each thread has its own current device, and its own current stream on each device, as in
  // PyTorch.
  [[nodiscard]] c10::DeviceIndex current_device() const;
  void set_device(c10::DeviceIndex index);
  [[nodiscard]] c10::StreamId current_stream(c10::DeviceIndex index) const;
  void set_stream(c10::DeviceIndex index, c10::StreamId stream);
  [[nodiscard]] c10::StreamId new_stream(c10::DeviceIndex index, int priority);

  std::uint32_t name(std::string_view text);
  [[nodiscard]] const std::string& name_at(std::uint32_t number);
  // Each function copies up to `most` rows into `to`, and returns the total number of rows.
  std::size_t copy_sites(Site* to, std::size_t most);
  std::size_t copy_uncertain_memory(UncertainMemory* to, std::size_t most);
  std::size_t copy_assumptions(Assumption* to, std::size_t most);
  // Copies up to `most` rows into `to`, and returns the total number of rows. A row's index is the
  // number of its call stack.
  std::size_t copy_stack_times(c10::DeviceIndex index, StackTime* to, std::size_t most);
  [[nodiscard]] Clock clock(c10::DeviceIndex index);
  // Returns the number of the calling thread's call stack. In a backward pass, returns the number
  // of the forward operation's stack. With `notes`, keeps the number for the backward pass of the
  // operation that runs now.
  std::uint32_t stack(bool notes = true);
  std::uint32_t site(const CurrentOperation& operation);
  void assume(std::uint32_t operation, std::string_view what, std::uint64_t bytes = 0);

  // Notes that the calling thread's operation now takes memory of uncertain size on the device's
  // current stream. A prediction reads these notes to bound the peak memory.
  void note_uncertain(c10::DeviceIndex index, UncertainMemory memory);

  // Returns the number of the device's next allocation.
  std::uint64_t next_serial(c10::DeviceIndex device) {
    return devices[static_cast<std::size_t>(device)].allocations++;
  }
  // Ends the program early, because the simulation has all that it needs.
  void end_program() const;
  // Counts events. A request is one event, and a free is two events, as in recorded histories.
  void count_events(std::uint64_t count) {
    const std::uint64_t before = events.fetch_add(count);
    if (before >= most_events || before + count < most_events) return;
    callbacks.bound_reached();
    end_program();
  }

 private:
  [[nodiscard]] std::uint32_t stack_of_forward(std::uint64_t sequence);
  std::uint32_t joined_stack(std::uint32_t inner, std::uint32_t outer);

  std::mutex mutex_;  // protects the members below
  std::vector<Site> sites_{Site{}};
  std::vector<Assumption> assumptions_;
  std::vector<UncertainMemory> uncertain_memory_;
  std::deque<std::string> names_{""};  // a deque, so that elements keep their addresses
  std::unordered_map<std::string, std::uint32_t> name_numbers_;
  std::unordered_map<std::uint64_t, std::uint32_t> site_numbers_;
  std::unordered_map<std::uint64_t, std::size_t> assumption_places_;
  std::vector<std::uint32_t> stack_of_sequence_;
  std::unordered_map<std::uint64_t, std::uint32_t> joined_stacks_;  // by inner and outer stack
  std::optional<Failure> failure_;
  std::int64_t next_stream_ = 0;
  // The kernels and copies of a captured graph: their total time and their number.
  struct CapturedWork {
    c10::DeviceIndex device = 0;
    double ns = 0;
    std::uint64_t nodes = 0;
  };
  std::uint64_t last_capture_ = 0;
  std::unordered_map<std::uint64_t, CapturedWork> captured_work_;
};

inline Runtime& runtime() { return Runtime::instance(); }

CurrentOperation& current_operation();

class OperationScope {
 public:
  OperationScope(std::uint32_t name, Role role, bool has_grad_fn = false)
      : saved_(current_operation()) {
    current_operation() = {name, role, has_grad_fn};
  }
  ~OperationScope() { current_operation() = saved_; }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  CurrentOperation saved_;
};

// Makes a device the thread's current device while this object exists. A negative number changes
// nothing.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex index) : before_(runtime().current_device()) {
    if (index >= 0) runtime().set_device(index);
  }
  ~DeviceScope() { runtime().set_device(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  c10::DeviceIndex before_;
};

}  // namespace plimsoll::simulated
