// Times requests and frees without a GPU. plimsoll's allocators run over simulated drivers. The
// program calls the allocators through virtual functions, since PyTorch's calls are indirect too.
//
//     allocator [--repetitions N] [TRACE...]
//
// allocator.py writes the traces. On a GPU it compares plimsoll's allocators with PyTorch's. The
// program counts driver calls and heap allocations during the timing. Both counts should be 0.

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>

#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/native/native.h"
#include "plimsoll/simulated/driver.h"
#include "scenarios/scenarios.h"

namespace {

std::atomic<std::uint64_t> heap_allocations{0};

}  // namespace

// Not inlined: otherwise the compiler would see `malloc` and `delete` together, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace plimsoll::benchmark {
namespace {

class OnSimulatedGpu final : public Subject {
 public:
  using Make = std::unique_ptr<ProgramAllocator> (*)(Driver&);

  explicit OnSimulatedGpu(Make make)
      : driver_(host_, 80 * 1024 * kMebi), allocator_(make(driver_)) {}

  std::uint64_t allocate(std::uint64_t size, std::uint32_t stream) override {
    return allocator_->allocate(size, stream);
  }
  void free(std::uint64_t address) override { allocator_->free(address); }
  void empty_cache() override { allocator_->hold()->empty_cache({}); }
  [[nodiscard]] std::uint64_t driver_calls() const override {
    std::uint64_t sum = 0;
    for (std::size_t call = 0; call < kCallCount; ++call) {
      sum += driver_.calls(static_cast<Call>(call));
    }
    return sum;
  }

 private:
  SimulatedHost host_{0};
  SimulatedDriver driver_;
  std::unique_ptr<ProgramAllocator> allocator_;
};

std::unique_ptr<ProgramAllocator> make_elastic(Driver& driver) {
  return std::make_unique<ElasticAllocator>(driver, AllocatorConfig{});
}

std::unique_ptr<ProgramAllocator> make_native(Driver& driver) {
  return std::make_unique<LockedAllocator>(
      std::make_unique<NativeAllocator>(driver, AllocatorConfig{}));
}

void run(const Options& options) {
  OnSimulatedGpu elastic(&make_elastic);
  OnSimulatedGpu native(&make_native);
  std::vector<Team> teams{{"elastic", {&elastic}}, {"native, one lock", {&native}}};
  compare_requests(teams, options);
  options.print("");

  // One allocator for each thread shows how fast the machine is if threads share nothing.
  constexpr std::size_t kThreads = 8;
  std::vector<std::unique_ptr<OnSimulatedGpu>> own;
  Team apart{"elastic, one a thread", {}};
  for (std::size_t i = 0; i < kThreads; ++i) {
    own.push_back(std::make_unique<OnSimulatedGpu>(&make_elastic));
    apart.subjects.push_back(own.back().get());
  }
  teams.push_back(apart);
  compare_threads(teams, options);
}

}  // namespace
}  // namespace plimsoll::benchmark

int main(int count, char** arguments) {
  plimsoll::benchmark::Options options;
  options.heap_allocations = [] { return heap_allocations.load(std::memory_order_relaxed); };
  options.print = [](const std::string& line) {
    std::puts(line.c_str());
    std::fflush(stdout);
  };
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--repetitions" && i + 1 < count) {
      const std::string_view number = arguments[++i];
      std::from_chars(number.begin(), number.end(), options.repetitions);
    } else {
      options.traces.emplace_back(argument);
    }
  }
  if (options.repetitions < 1) {
    std::fputs("at least one repetition is needed\n", stderr);
    return 2;
  }
  try {
    plimsoll::benchmark::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
