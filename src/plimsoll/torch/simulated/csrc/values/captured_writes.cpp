#include "values/captured_writes.h"

#include <mutex>
#include <unordered_map>

namespace plimsoll::simulated {
namespace {

std::mutex captures_mutex;  // protects `captures`
auto* const captures = new std::unordered_map<std::uint64_t, std::vector<CapturedWrite>>;

}  // namespace

void note_captured(const at::Tensor& tensor, std::size_t begin, const Contents::Part& part) {
  const std::lock_guard lock(captures_mutex);
  (*captures)[part.capture].push_back({tensor.storage().getWeakStorageImpl(), begin, part});
}

std::vector<CapturedWrite> captured_writes(std::uint64_t capture) {
  const std::lock_guard lock(captures_mutex);
  const auto place = captures->find(capture);
  return place == captures->end() ? std::vector<CapturedWrite>() : place->second;
}

void forget_writes(std::uint64_t capture) {
  const std::lock_guard lock(captures_mutex);
  captures->erase(capture);
}

}  // namespace plimsoll::simulated
