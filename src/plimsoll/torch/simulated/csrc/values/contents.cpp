#include "values/contents.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "device/host_account.h"
#include "values/budget.h"

namespace plimsoll::simulated {

Contents::Contents(std::size_t size) : size_(size) {
  Part& whole = parts_.emplace_back();
  whole.end = size;
  whole.is_unwritten = true;
  whole.series = next_series();
}

Contents::Contents(std::size_t size, std::shared_ptr<std::byte[]> of_host)
    : size_(size), are_mapped_(true), memory_(std::move(of_host)) {
  Part& whole = parts_.emplace_back();
  whole.end = size;
  whole.source = Source::computed;
}

void Contents::give_room_back() { memory_.reset(); }

bool Contents::make_room(at::ScalarType type) {
  if (memory_ != nullptr) return true;
  if (are_few(size_, type)) {
    note_extra(static_cast<std::int64_t>(size_));
    memory_ = std::shared_ptr<std::byte[]>(new std::byte[size_](), [size = size_](std::byte* few) {
      delete[] few;
      note_extra(-static_cast<std::int64_t>(size));
    });
    return true;
  }
  if (!Budget::instance().take_bytes(size_)) return false;
  void* const made = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(made != MAP_FAILED, "the host has no address space for ", size_, " bytes");
  note_extra(static_cast<std::int64_t>(size_));
  memory_ = std::shared_ptr<std::byte[]>(static_cast<std::byte*>(made),
                                         [size = size_](std::byte* memory) {
                                           ::munmap(memory, size);
                                           Budget::instance().give_bytes(size);
                                           note_extra(-static_cast<std::int64_t>(size));
                                         });
  return true;
}

void Contents::cut(std::size_t at, std::size_t item) {
  std::size_t start = 0;
  for (auto place = parts_.begin(); place != parts_.end(); ++place) {
    if (at == start || at >= size_) return;
    if (at < place->end) {
      place->description.reaches_bounds = false;
      Part before = *place;
      before.end = at;
      place->first += (at - start) / item;
      parts_.insert(place, before);
      return;
    }
    start = place->end;
  }
}

void Contents::take_zeros(std::size_t begin, std::size_t end, at::ScalarType type) {
  const bool are_any =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_unwritten; });
  if (!are_any || !make_room(type)) return;
  const std::size_t item = c10::elementSize(type);
  cut(begin, item);
  cut(end, item);
  std::size_t start = 0;
  for (Part& part : parts_) {
    if (part.is_unwritten && start >= begin && part.end <= end) {
      part = {part.end, Source::computed, Description::of_type(type), type};
    }
    start = part.end;
  }
}

void Contents::take_over(const Contents& other) {
  const std::size_t kept = std::min(size_, other.size_);
  if (other.memory_ != nullptr && make_room(c10::ScalarType::Byte)) {
    std::copy_n(other.memory(), kept, memory());
  }
  std::size_t start = 0;
  for (Part part : other.parts_) {
    if (start >= kept) return;
    const std::size_t begin = start;
    start = part.end;
    part.end = std::min(part.end, kept);
    if (memory_ == nullptr && part.source != Source::described) continue;
    write(begin, part);
  }
}

void Contents::write(std::size_t begin, const Part& part) {
  if (are_mapped_) return;
  if (begin == 0 && part.end >= size_) {
    parts_.assign(1, part);
    parts_[0].end = size_;
    if (part.source == Source::described) give_room_back();
    return;
  }
  const std::size_t item = c10::elementSize(part.type);
  cut(begin, item);
  cut(part.end, item);
  std::size_t start = 0;
  auto first = parts_.begin();
  while (first != parts_.end() && start < begin) start = (first++)->end;
  auto last = first;
  while (last != parts_.end() && last->end <= part.end) ++last;
  parts_.insert(parts_.erase(first, last), part);
}

}  // namespace plimsoll::simulated
