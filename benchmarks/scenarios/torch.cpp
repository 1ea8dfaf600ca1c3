// Plays the scenarios on a GPU, in a process that runs PyTorch, under plimsoll's allocator and
// PyTorch's own. Both are called through the interface that PyTorch itself uses.
//
// allocator.py compiles this against the installed PyTorch, and calls it.

#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <utility>

#include "scenarios.h"

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace torch_allocator = c10::cuda::CUDACachingAllocator;
using torch_allocator::CUDAAllocator;

class InTorch final : public plimsoll::benchmark::Subject {
 public:
  InTorch(CUDAAllocator& allocator, std::vector<cudaStream_t> streams)
      : allocator_(allocator), streams_(std::move(streams)) {}

  std::uint64_t allocate(std::uint64_t size, std::uint32_t stream) override {
    return reinterpret_cast<std::uint64_t>(
        allocator_.raw_alloc_with_stream(size, streams_[stream]));
  }
  void free(std::uint64_t address) override {
    allocator_.raw_delete(reinterpret_cast<void*>(address));
  }
  void empty_cache() override { allocator_.emptyCache({0, 0}); }
  [[nodiscard]] std::uint64_t driver_calls() const override {
    const auto statistics = allocator_.getDeviceStats(0);
    return static_cast<std::uint64_t>(statistics.num_device_alloc + statistics.num_device_free);
  }

 private:
  CUDAAllocator& allocator_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

// Returns the allocator that PyTorch uses at present.
PLIMSOLL_EXPORT void* plimsoll_benchmark_allocator() { return torch_allocator::get(); }

// Plays all scenarios on device 0, and calls `print` for each line of the results. `streams` must
// hold eight streams. Returns false if something failed. Then the last printed line says why.
PLIMSOLL_EXPORT bool plimsoll_benchmark_compare(void* ours, void* torch, const uint64_t* streams,
                                                size_t stream_count, const char* const* traces,
                                                size_t trace_count, int repetitions,
                                                void (*print)(const char* line)) {
  try {
    plimsoll::benchmark::Options options;
    options.repetitions = repetitions;
    options.traces.assign(traces, traces + trace_count);
    options.print = [print](const std::string& line) { print(line.c_str()); };
    std::vector<cudaStream_t> handles;
    for (size_t i = 0; i < stream_count; ++i) {
      handles.push_back(reinterpret_cast<cudaStream_t>(streams[i]));
    }
    InTorch first(*static_cast<CUDAAllocator*>(ours), handles);
    InTorch second(*static_cast<CUDAAllocator*>(torch), handles);
    const std::vector<plimsoll::benchmark::Team> teams{{"plimsoll", {&first}},
                                                       {"PyTorch", {&second}}};
    plimsoll::benchmark::compare_requests(teams, options);
    options.print("");
    plimsoll::benchmark::compare_threads(teams, options);
  } catch (const std::exception& error) {
    print(error.what());
    return false;
  }
  return true;
}
