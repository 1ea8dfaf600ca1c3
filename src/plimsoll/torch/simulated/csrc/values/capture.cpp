#include "capture.h"

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "../runtime.h"
#include "../timing/timing.h"

namespace plimsoll::simulated {
namespace {

struct Write {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::size_t begin;
  Contents::Part part;
};

// What a graph's kernels take, one after the other.
struct CapturedWork {
  c10::DeviceIndex device = 0;
  double ns = 0;
};

std::mutex captures_mutex;  // of all that follows
std::uint64_t last_capture = 0;
auto* const under_way = new std::unordered_map<c10::DeviceIndex, std::uint64_t>;
auto* const captures = new std::unordered_map<std::uint64_t, std::vector<Write>>;
auto* const captured_work = new std::unordered_map<std::uint64_t, CapturedWork>;

}  // namespace

std::uint64_t current_capture(c10::DeviceIndex device) {
  if (!runtime().device(device).is_capturing) return 0;
  const std::lock_guard lock(captures_mutex);
  const auto place = under_way->find(device);
  return place == under_way->end() ? 0 : place->second;
}

std::uint64_t set_capturing(c10::DeviceIndex device, bool on) {
  const std::lock_guard lock(captures_mutex);
  if (on) (*under_way)[device] = ++last_capture;
  runtime().devices[static_cast<std::size_t>(device)].is_capturing = on;
  return (*under_way)[device];
}

void note_captured_work(c10::DeviceIndex device, double ns) {
  const std::lock_guard lock(captures_mutex);
  CapturedWork& work = (*captured_work)[(*under_way)[device]];
  work.device = device;
  work.ns += ns;
}

void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part) {
  const std::lock_guard lock(captures_mutex);
  (*captures)[part.capture].push_back({tensor.storage().getWeakStorageImpl(), begin, part});
}

void replay(std::uint64_t capture) {
  std::vector<Write> writes;
  CapturedWork work;
  {
    const std::lock_guard lock(captures_mutex);
    if (const auto done = captured_work->find(capture); done != captured_work->end()) {
      work = done->second;
    }
    const auto place = captures->find(capture);
    if (place != captures->end()) writes = place->second;
  }
  if (work.ns > 0) {
    runtime().pass_host_time(work.device, kGraphHostNs);
    runtime().launch(work.device, Work::compute, work.ns);
  }
  std::unordered_map<std::uint64_t, std::uint64_t> renewed;  // series: copies stay copies
  for (Write& write : writes) {
    const auto storage = write.storage.lock();
    if (!storage) continue;
    std::uint64_t& series = renewed[write.part.series];
    if (series == 0) series = next_series();
    write.part.series = series;
    write.part.capture = 0;
    write.part.origin = {};
    note_again(*storage, write.begin, write.part);
  }
}

void forget_capture(std::uint64_t capture) {
  const std::lock_guard lock(captures_mutex);
  captures->erase(capture);
  captured_work->erase(capture);
}

}  // namespace plimsoll::simulated
