// The simulated CUDA runtime of this process: devices, streams, and who asks for memory.
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

// What rules depend on. Shared with Python, as python/memory_layout.cpp says.
struct DeviceProperties {
  std::int32_t multiprocessors = 0;
  std::int32_t major = 0;
  std::int32_t minor = 0;
  std::int32_t max_threads_per_multiprocessor = 0;
  double bytes_per_ns = 0;         // device memory
  double flops_per_ns = 0;         // fp32, outside tensor cores
  double tensor_flops_per_ns = 0;  // half precision
  double copy_bytes_per_ns = 0;    // between host and device
};

// What a device did so far; times are since the start, on the simulated machine's clock. Shared
// with Python.
struct Clock {
  double ends_ns = 0;          // when all that is queued will be done
  double compute_ends_ns = 0;  // of that, all but copies from and to other places
  double busy_ns = 0;          // while anything ran
  double compute_ns = 0;       // while anything but such copies ran
  double host_ns = 0;          // that the host needed to queue all this
  std::uint64_t kernels = 0;
};
enum class Work : std::uint8_t { compute, transfer };

// What the work of a call stack took on GPUs. Shared with Python.
struct StackTime {
  double ns = 0;
};

// What a process loads on a card when it first needs it; the driver takes memory for each, beside
// PyTorch's. Python has the same order: engine/gpus/card_files.py, CONTEXT_PARTS.
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
  std::atomic<std::uint64_t> live_bytes = 0;  // as asked for
  std::atomic<bool> is_used = false;          // it has a context
  std::atomic<std::uint32_t> loaded = 0;      // a bit for each Library
  std::atomic<std::uint64_t> capture = 0;     // the graph's that is under way; 0 for none
  Clock clock;
  std::vector<StackTime> stack_times;  // by the stack's number
};

// Why memory was asked for; a new value is a new entry in python/memory_layout.cpp. Both are shared
// with Python.
enum class Role : std::uint8_t { output, temporary, workspace, input, copy };
enum class Phase : std::uint8_t { forward, backward };

// Who asked for memory; the history stores its number. Shared with Python.
struct Site {
  std::uint32_t stack = 0;
  std::uint32_t operation = 0;
  Role role = Role::output;
  Phase phase = Phase::forward;
  bool grad_enabled = false;
  bool reserved = false;
};

// Something the program read or needed that a simulation cannot know. Shared with Python.
struct Assumption {
  std::uint32_t stack = 0;
  std::uint32_t operation = 0;
  std::uint32_t what = 0;  // a name's number
  std::uint32_t count = 0;
  std::uint64_t bytes = 0;  // of memory that is not known: of the largest call's tensors
};

// Memory that a kernel takes and gives back at once, whose size is not certain. Shared with Python.
struct UncertainMemory {
  std::uint64_t allocations = 0;  // of the device until then
  std::uint64_t stream = 0;
  std::uint64_t kind = 0;   // of one kind all have the same size
  std::uint64_t bytes = 0;  // what was taken, which may be nothing; the ends of its range
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  std::int32_t device = 0;
  std::uint32_t reserved = 0;
};

// Assumptions that the report lists.
constexpr std::string_view kReadsUnknown = "the host read values that nobody knows";
constexpr std::string_view kMappedUnknown =
    "a kernel wrote to memory of the host, which keeps the values from before";
constexpr std::string_view kReadsRandom = "the host read random numbers, of another generator";
constexpr std::string_view kSizeOfUnknown = "its size depends on values that nobody knows";
constexpr std::string_view kSizeOfRandom =
    "its size depends on random numbers, of another generator";
constexpr std::string_view kBeyondBudget = "its values were not computed: there are many";
constexpr std::string_view kUndecidedCheck =
    "plimsoll could not decide the kernel's check of its data: the values were not computed";
// The first line of CUDA's error for a check that failed on the device.
constexpr const char* kDeviceAssert = "CUDA error: device-side assert triggered";
constexpr std::string_view kWaits = "a loop waited for it, so it changed as in a healthy run";

// Functions of Python's that the library calls; all take the interpreter's lock.
struct Callbacks {
  Callback first_use;      // of a device
  Callback load;           // of a device, what is loaded there: a Library's number
  Callback out_of_memory;  // of a device, the bytes asked for
  // Whether the calling thread's program is in a loop without an end of its own.
  Callback is_in_open_loop;
  // Whether a condition of the calling thread's program depends on the value that it reads now.
  Callback is_tested;
  // Whether the program is to be stopped, which waits at a call stack for a value that will not
  // come.
  Callback waits_for_ever;
  // Called when `most_events` is reached.
  Callback bound_reached;
  // Exchanges bytes with the other ranks of a group; see collectives/exchange.h.
  Callback exchange;
};

// The exception that ends the program's main thread, as soon as that runs Python's code again.
struct Ending {
  unsigned long thread = 0;  // as Python numbers it
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
  std::atomic<bool> keeps_history = false;  // as a program asks PyTorch to, with call stacks
  bool record_stacks = false;
  bool is_over = false;  // the interpreter ends: engines are gone
  std::atomic<std::uint64_t> events = 0;
  std::uint64_t most_events = 0;          // 0 for no bound
  std::atomic<bool> has_failed = false;   // a check, on a device
  std::atomic<bool> is_bad_fork = false;  // a child of a process that has used CUDA

  [[nodiscard]] const Device& device(c10::DeviceIndex index) const {
    return devices[static_cast<std::size_t>(index)];
  }

  // CUDA is in use from now on, so children of this process may not use it.
  void initialize();
  // Before a device is used, whose context is made when that happens first.
  void use(c10::DeviceIndex index);
  // Loads a library on a device, if the process has not.
  void load(c10::DeviceIndex index, Library library);
  // Takes what a part of the context takes each time.
  void load_again(c10::DeviceIndex index, Library library);
  // Makes the host wait for the current stream of a device.
  void synchronize(c10::DeviceIndex index);
  // The host works for a time.
  void pass_host_time(c10::DeviceIndex index, double ns);
  // Queues work on the current stream of a device.
  void launch(c10::DeviceIndex index, Work work, double ns);
  // Ends the use of CUDA: a check failed on the device, and every later call fails too.
  void fail(const std::string& why);
  // Why, with the call stack; none where no check failed.
  struct Failure {
    std::string why;
    std::uint32_t stack = 0;
  };
  [[nodiscard]] std::optional<Failure> failure();
  // Throws c10::AcceleratorError once a check has failed on the device.
  void refuse_after_failure();
  // Refuses to wait for a stream that is captured, which runs nothing.
  void refuse_while_capturing(c10::DeviceIndex index) const;

  // The capture of a CUDA graph that is under way on the device; 0 for none.
  [[nodiscard]] std::uint64_t current_capture(c10::DeviceIndex index) const {
    return device(index).capture;
  }
  // Begins or ends one, and returns its number.
  std::uint64_t set_capturing(c10::DeviceIndex index, bool on);
  // Queues the kernels of a captured graph, as its replay does.
  void launch_captured(std::uint64_t capture);
  void forget_capture(std::uint64_t capture);
  // How many kernels and copies it has.
  std::uint64_t captured_nodes(std::uint64_t capture);

  // Streams and devices are per thread, as in CUDA.
  // CUDA's error for a device that is not there, and how to have it.
  [[nodiscard]] std::string no_such_device(int index) const;
  [[nodiscard]] c10::DeviceIndex current_device() const;
  void set_device(c10::DeviceIndex index);
  [[nodiscard]] c10::StreamId current_stream(c10::DeviceIndex index) const;
  void set_stream(c10::DeviceIndex index, c10::StreamId stream);
  [[nodiscard]] c10::StreamId new_stream(c10::DeviceIndex index, int priority);

  std::uint32_t name(std::string_view text);
  [[nodiscard]] const std::string& name_at(std::uint32_t number);
  // Copies what there is, at most `most` rows, and says how much there is.
  std::size_t copy_sites(Site* to, std::size_t most);
  std::size_t copy_uncertain_memory(UncertainMemory* to, std::size_t most);
  std::size_t copy_assumptions(Assumption* to, std::size_t most);
  // By the stack's number.
  std::size_t copy_stack_times(c10::DeviceIndex index, StackTime* to, std::size_t most);
  [[nodiscard]] Clock clock(c10::DeviceIndex index);
  // The number of the calling thread's stack, or in a backward pass that of the forward operation.
  // Its backward pass will have that number too, if `notes` says so.
  std::uint32_t stack(bool notes = true);
  std::uint32_t site(std::uint32_t operation, Role role);
  void assume(std::uint32_t operation, std::string_view what, std::uint64_t bytes = 0);

  // Notes what the calling thread's stream takes next, for a prediction.
  void note_uncertain(c10::DeviceIndex index, UncertainMemory memory);

  // The number of the device's next allocation.
  std::uint64_t next_serial(c10::DeviceIndex device) {
    return devices[static_cast<std::size_t>(device)].allocations++;
  }
  // Ends the program: it has given its answer.
  void end_program() const;
  // Counts requests and frees; a free is two events, as histories have them.
  void count_events(std::uint64_t count) {
    const std::uint64_t before = events.fetch_add(count);
    if (before >= most_events || before + count < most_events) return;
    callbacks.bound_reached();
    end_program();
  }

 private:
  std::mutex mutex_;  // of all that follows
  std::vector<Site> sites_{Site{}};
  std::vector<Assumption> assumptions_;
  std::vector<UncertainMemory> uncertain_memory_;
  std::deque<std::string> names_{""};  // their places stay
  std::unordered_map<std::string, std::uint32_t> name_numbers_;
  std::unordered_map<std::uint64_t, std::uint32_t> site_numbers_;
  std::unordered_map<std::uint64_t, std::size_t> assumption_places_;
  std::vector<std::uint32_t> stack_of_sequence_;
  std::optional<Failure> failure_;
  std::int64_t next_stream_ = 0;
  // A graph's kernels and copies, with their time one after the other.
  struct CapturedWork {
    c10::DeviceIndex device = 0;
    double ns = 0;
    std::uint64_t nodes = 0;
  };
  std::uint64_t last_capture_ = 0;
  std::unordered_map<std::uint64_t, CapturedWork> captured_work_;
};

inline Runtime& runtime() { return Runtime::instance(); }

// The operation this thread is in, for the allocations it makes.
struct CurrentOperation {
  std::uint32_t name = 0;
  Role role = Role::output;
};
CurrentOperation& current_operation();

class OperationScope {
 public:
  OperationScope(std::uint32_t name, Role role) : saved_(current_operation()) {
    current_operation() = {name, role};
  }
  ~OperationScope() { current_operation() = saved_; }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  CurrentOperation saved_;
};

// Lets a device be the thread's current one; none if the number is negative.
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
