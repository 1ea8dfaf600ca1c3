#include "values/known.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "device/memory.h"
#include "device/runtime.h"
#include "device/virtual.h"
#include "values/budget.h"
#include "values/captured_writes.h"

namespace plimsoll::simulated {
namespace {

// plimsoll draws values for at most this many elements at a time.
constexpr std::int64_t kMostDrawn = std::int64_t{1} << 20;
// plimsoll searches the values of at most this many elements for their bounds.
constexpr std::int64_t kMostSearched = std::int64_t{1} << 16;
constexpr std::int64_t kMostSearchedIntegers = std::int64_t{1} << 20;
// plimsoll notes each dense piece of a strided write separately, if there are at most this many.
constexpr std::size_t kMostPieces = 256;

// Guards what plimsoll records about the contents of allocations; all threads share these records.
// Nothing guards the values themselves: a GPU does not guard them either. A thread that holds this
// lock never calls Python.
std::recursive_mutex& contents_mutex() {
  static auto* const made = new std::recursive_mutex;
  return *made;
}
using ContentsLock = std::lock_guard<std::recursive_mutex>;

// The range of bytes that contains a tensor's elements, counted from the start of the allocation.
struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_dense = false;  // the tensor has an element at each position of the range
};

Extent extent_of(const at::Tensor& tensor) {
  const std::size_t item = tensor.itemsize();
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const std::size_t begin = offset_of(tensor);
  return {begin, begin + static_cast<std::size_t>(last + 1) * item,
          last + 1 == tensor.numel() && tensor.is_non_overlapping_and_dense()};
}

// Describes the part's bytes as numbers of `type`. The part's own description holds only for
// numbers of the type that was written.
Description description_of(const Contents::Part& part, at::ScalarType type) {
  const bool is_zero = part.description.is_constant() && part.description.low == 0;
  const bool is_other = part.type != type && !is_zero;
  return part.is_unwritten || is_other ? Description::of_type(type) : part.description;
}

// Draws `count` elements of the part and writes them to `to`. They are the numbers of the part's
// random series (description.h) from position `first` on.
void draw_into(std::byte* to, const Contents::Part& part, std::uint64_t first, std::int64_t count,
               at::ScalarType type) {
  const at::Tensor drawn = at::empty({count}, at::TensorOptions().dtype(at::kDouble));
  const Description description = description_of(part, type);
  draw(description, part.series, first, type, count, drawn.mutable_data_ptr<double>());
  at::from_blob(to, {count}, at::TensorOptions().dtype(type)).copy_(drawn);
}

// Describes the dense pieces of a strided tensor: their offsets in bytes from the first element,
// and their common length. There are no offsets if the pieces are too many or overlap.
struct Pieces {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

Pieces pieces_of(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // (stride, size)
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) != 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  const std::size_t item = tensor.itemsize();
  std::int64_t covered = 1;  // how many elements the dimensions so far span
  Pieces pieces{{0}, item};
  for (const auto& [stride, size] : dims) {
    if (stride < covered) return {};
    const auto count = static_cast<std::size_t>(size);
    if (stride == covered && pieces.offsets.size() == 1) {
      pieces.bytes *= count;
    } else {
      if (pieces.offsets.size() * count > kMostPieces) return {};
      const std::vector<std::size_t> before = std::exchange(pieces.offsets, {});
      for (std::size_t i = 0; i < count; ++i) {
        for (const std::size_t offset : before) {
          pieces.offsets.push_back(offset + i * static_cast<std::size_t>(stride) * item);
        }
      }
    }
    covered = stride * (size - 1) + covered;
  }
  return pieces;
}

template <typename Each>
void for_parts_in(const Contents& contents, std::size_t begin, std::size_t end, Each each) {
  std::size_t start = 0;
  for (const Contents::Part& part : contents.parts()) {
    if (start >= end) return;
    if (part.end > begin) each(part, start);
    start = part.end;
  }
}

// Calls `each` for every overlap of a part with a dense piece of the tensor. The arguments are the
// part, the part's start, and the overlap's begin and end.
template <typename Each>
void for_parts_of(const Contents& contents, const at::Tensor& tensor, Each each) {
  const Extent extent = extent_of(tensor);
  const auto within = [&](std::size_t begin, std::size_t end) {
    for_parts_in(contents, begin, end, [&](const Contents::Part& part, std::size_t start) {
      each(part, start, std::max(start, begin), std::min(part.end, end));
    });
  };
  const Pieces pieces = extent.is_dense ? Pieces() : pieces_of(tensor);
  for (const std::size_t offset : pieces.offsets) {
    within(extent.begin + offset, extent.begin + offset + pieces.bytes);
  }
  if (pieces.offsets.empty()) within(extent.begin, extent.end);
}

Source worst_source(const Contents& contents, const at::Tensor& tensor) {
  Source worst = Source::computed;
  for_parts_of(contents, tensor,
               [&](const Contents::Part& part, std::size_t, std::size_t, std::size_t) {
                 worst = std::max(worst, part.source);
               });
  return worst;
}

// Draws values for the elements of the extent that have none.
void draw_missing(Contents& contents, const Extent& extent, at::ScalarType type, std::size_t item) {
  contents.cut(extent.begin, item);
  contents.cut(extent.end, item);
  std::size_t start = 0;
  for (Contents::Part& part : contents.parts_for_writing()) {
    if (start >= extent.begin && part.end <= extent.end && part.source == Source::described) {
      draw_into(contents.memory() + start, part, part.first,
                static_cast<std::int64_t>((part.end - start) / item), type);
      part.source = Source::assumed;
    }
    start = part.end;
  }
}

// Copies three flags of a tensor to `values`: whether it is conjugated, whether it is negated, and
// whether it was made from a Python number.
at::Tensor with_bits_of(const at::Tensor& tensor, at::Tensor values) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    values.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  if (tensor.is_conj()) values._set_conj(true);
  if (tensor.is_neg()) values._set_neg(true);
  return values;
}

// Returns a host tensor with the shape and strides of `tensor`. The host tensor shares the memory
// of `contents` from byte `begin` on. It keeps this memory alive, even if another thread frees the
// contents.
at::Tensor over(const Contents& contents, const at::Tensor& tensor, std::size_t begin) {
  at::Tensor values = at::from_blob(
      contents.memory() + begin, tensor.sizes(), tensor.strides(),
      [kept = contents.shared_memory()](void*) {}, at::TensorOptions().dtype(tensor.dtype()));
  return with_bits_of(tensor, values);
}

Contents& contents_of(Allocation& allocation) {
  if (!allocation.contents) allocation.contents = std::make_unique<Contents>(allocation.size);
  return static_cast<Contents&>(*allocation.contents);
}

// Returns an allocation's contents; null if the program never wrote or read them.
const Contents* contents_of(const Allocation* allocation) {
  return allocation == nullptr ? nullptr : static_cast<const Contents*>(allocation->contents.get());
}

Description bounds_of(const at::Tensor& values) {
  if (values.numel() == 0 || values.is_complex()) return {};
  if (values.scalar_type() == at::kBool) {
    return Description::truth(values.count_nonzero().item<double>() /
                              static_cast<double>(values.numel()));
  }
  const at::Tensor numbers = values.to(at::kDouble);
  if (numbers.numel() == 1) {
    const double value = numbers.item<double>();
    return std::isnan(value) ? Description() : Description::constant(value);
  }
  const auto [low, high] = at::aminmax(numbers);
  Description found = Description::between(low.item<double>(), high.item<double>());
  if (std::isnan(found.low) || std::isnan(found.high)) return {};
  return found;
}

// Describes the values that a tensor may have on a GPU if plimsoll only assumes its values.
// `bounds` describes the assumed values. For numbers, returns `any`, limited to the signs of the
// assumed values. For truth values, returns a description with about the same share of true
// elements as `bounds`.
Description signs_of(const Description& bounds, const Description& any, at::ScalarType type) {
  if (type == at::kBool) {
    // Even if all assumed values are equal, the values on a GPU may differ. So the share is never
    // quite 0 or 1.
    constexpr double kUnsure = 1e-6;
    const double share = bounds.is_constant() ? bounds.low : bounds.mean;
    return Description::likely(std::clamp(share, kUnsure, 1 - kUnsure));
  }
  Description kept = any;
  if (bounds.low >= 0) kept.low = std::max(kept.low, 0.0);
  if (bounds.high <= 0) kept.high = std::min(kept.high, 0.0);
  return kept.is_constant() ? any : kept;
}

bool are_searched(std::int64_t count, at::ScalarType type) {
  return count <=
         (c10::isIntegralType(type, /*includeBool=*/true) ? kMostSearchedIntegers : kMostSearched);
}

// Describes the part's bytes from `begin` to `end` as numbers of `type`. If plimsoll only assumes
// the part's values, a GPU may hold other values, so the result is not limited to their bounds
// (signs_of()).
Description description_within(const Contents& contents, const Contents::Part& part,
                               std::size_t begin, std::size_t end, at::ScalarType type,
                               std::uint64_t capture) {
  // Data that the capture did not write may be different at each replay.
  if (capture != 0 && part.capture != capture) return Description::of_type(type);
  if (part.source == Source::described) return description_of(part, type);
  const std::size_t item = c10::elementSize(type);
  if (contents.memory() == nullptr || begin % item != 0 || end - begin < item) {
    return Description::of_type(type);
  }
  const auto count = static_cast<std::int64_t>((end - begin) / item);
  if (!are_searched(count, type)) return description_of(part, type);
  const at::Tensor values =
      at::from_blob(contents.memory() + begin, {count}, at::TensorOptions().dtype(type));
  const Description bounds = bounds_of(values);
  return part.source < Source::assumed ? bounds
                                       : signs_of(bounds, description_of(part, type), type);
}

// Returns the part that contains all of the tensor's elements, and the part's start; null if the
// elements lie in several parts.
std::pair<const Contents::Part*, std::size_t> only_part(const Contents& contents,
                                                        const at::Tensor& tensor) {
  const Extent extent = extent_of(tensor);
  std::pair<const Contents::Part*, std::size_t> found{nullptr, 0};
  for_parts_in(contents, extent.begin, extent.end,
               [&](const Contents::Part& part, std::size_t start) {
                 if (start <= extent.begin && part.end >= extent.end) found = {&part, start};
               });
  return found;
}

// Returns the origin of known values. Values of up to 64 bytes are identified by their contents,
// larger ones by their allocation and the tensor's version.
Origin origin_of_values(const at::Tensor& tensor, const Contents& contents, std::uint64_t serial) {
  constexpr std::size_t kMostBytes = 64;
  const Extent extent = extent_of(tensor);
  if (extent.end - extent.begin <= kMostBytes) {
    const std::string_view bytes(reinterpret_cast<const char*>(contents.memory() + extent.begin),
                                 extent.end - extent.begin);
    return origin_by_number(std::hash<std::string_view>()(bytes));
  }
  const auto& version = tensor.unsafeGetTensorImpl()->version_counter();
  if (!version.enabled()) return {};
  return origin_by_number(serial, version.current_version());
}

// Records what plimsoll knows about bytes that a device writes. Adds an assumption to the report
// if the bytes lie in mapped host memory and plimsoll has only a description of them. The program
// reads such memory directly, and still finds the old bytes there.
void put(Allocation& allocation, std::size_t begin, const Contents::Part& part) {
  Contents& contents = contents_of(allocation);
  if (contents.are_mapped() && part.source == Source::described) {
    const std::uint32_t named = current_operation().name;
    runtime().assume(named != 0 ? named : runtime().name("a library's own kernel"), kMappedUnknown);
  }
  contents.write(begin, part);
}

// Sets what is known of the written bytes. If a graph is being captured, its replays repeat the
// write.
void write(const at::Tensor& tensor, Allocation& allocation, std::size_t begin,
           Contents::Part part) {
  part.capture = runtime().current_capture(allocation.device);
  put(allocation, begin, part);
  if (part.capture != 0) note_captured(tensor, begin, part);
}

}  // namespace

Known known_of(const at::Tensor& tensor) {
  const WithContentsScope real;
  const ContentsLock lock(contents_mutex());
  const Allocation* const allocation = allocation_of(tensor);
  const Contents* const found = contents_of(allocation);
  const Description any = Description::of_type(tensor.scalar_type());
  if (tensor.numel() == 0) return {Source::computed, any};
  if (found == nullptr) return {Source::described, any};
  const Contents& contents = *found;
  const std::uint64_t capture = runtime().current_capture(allocation->device);
  Known known{worst_source(contents, tensor), any, 0, 0};
  known.origin = origin_of(tensor);
  if (known.source < Source::assumed && capture == 0 &&
      are_searched(tensor.numel(), tensor.scalar_type())) {
    known.description = bounds_of(read_values(tensor));
  } else {
    bool is_first = true;
    double before = 0;  // bytes of the parts before this one
    for_parts_of(
        contents, tensor,
        [&](const Contents::Part& part, std::size_t start, std::size_t begin, std::size_t end) {
          const auto here = static_cast<double>(end - begin);
          known.description =
              join(known.description,
                   description_within(contents, part, begin, end, tensor.scalar_type(), capture),
                   before / (before + here));
          before += here;
          const bool is_whole_part = begin == start && end == part.end;
          if (!is_whole_part) known.description.reaches_bounds = false;
          known.series = is_first && (capture == 0 || part.capture == capture) ? part.series : 0;
          known.first = part.first + (begin - start) / tensor.itemsize();
          is_first = false;
        });
  }
  if (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    known.description.is_whole = true;
  }
  return known;
}

Source source_of(const at::Tensor& tensor) {
  const ContentsLock lock(contents_mutex());
  if (tensor.numel() == 0) return Source::computed;
  const Contents* const contents = contents_of(allocation_of(tensor));
  return contents == nullptr ? Source::described : worst_source(*contents, tensor);
}

Description spread_of(const at::Tensor& tensor) {
  {
    const ContentsLock lock(contents_mutex());
    const Contents* const contents = contents_of(allocation_of(tensor));
    if (contents != nullptr && source_of(tensor) == Source::random) {
      const Contents::Part* const part = only_part(*contents, tensor).first;
      if (part != nullptr && part->description.is_random()) {
        return description_of(*part, tensor.scalar_type());
      }
    }
  }
  return known_of(tensor).description;
}

Origin origin_of(const at::Tensor& tensor) {
  const ContentsLock lock(contents_mutex());
  if (tensor.numel() == 0) return {};
  const Allocation* const allocation = allocation_of(tensor);
  const Contents* const contents = contents_of(allocation);
  if (contents == nullptr) return {};
  const auto [part, start] = only_part(*contents, tensor);
  if (part == nullptr || part->is_unwritten) return {};
  if (const std::uint64_t capture = runtime().current_capture(allocation->device);
      capture != 0 && part->capture != capture) {
    return {};
  }
  if (part->origin.is_known()) return part->origin;
  if (part->source != Source::described) {
    return origin_of_values(tensor, *contents, allocation->serial);
  }
  return part->series != 0 ? origin_by_number(part->series, part->first) : Origin();
}

bool can_be_read(const at::Tensor& tensor) {
  const ContentsLock lock(contents_mutex());
  if (tensor.numel() == 0) return true;
  const Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return false;
  const Extent extent = extent_of(tensor);
  const Contents* const contents = contents_of(allocation);
  const bool has_values = contents != nullptr && contents->memory() != nullptr &&
                          worst_source(*contents, tensor) != Source::described;
  return has_values || are_few(extent.end - extent.begin, tensor.scalar_type());
}

at::Tensor read_values(const at::Tensor& tensor) {
  const WithContentsScope real;
  const ContentsLock lock(contents_mutex());
  if (tensor.numel() == 0)
    return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()));
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return {};
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  const Source worst = worst_source(contents, tensor);
  if (worst != Source::described) return over(contents, tensor, extent.begin);
  const std::size_t item = tensor.itemsize();
  const auto count = static_cast<std::int64_t>((extent.end - extent.begin) / item);
  if (count > kMostDrawn) return {};
  if (contents.memory() != nullptr) {
    draw_missing(contents, extent, tensor.scalar_type(), item);
    return over(contents, tensor, extent.begin);
  }
  at::Tensor drawn = at::empty({count}, at::TensorOptions().dtype(tensor.dtype()));
  auto* const to = static_cast<std::byte*>(drawn.mutable_data_ptr());
  for_parts_in(contents, extent.begin, extent.end,
               [&](const Contents::Part& part, std::size_t start) {
                 const std::size_t from = std::max(start, extent.begin);
                 const std::size_t until = std::min(part.end, extent.end);
                 draw_into(to + (from - extent.begin), part, part.first + (from - start) / item,
                           static_cast<std::int64_t>((until - from) / item), tensor.scalar_type());
               });
  return with_bits_of(tensor, drawn.as_strided(tensor.sizes(), tensor.strides()));
}

at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten) {
  const WithContentsScope real;
  const ContentsLock lock(contents_mutex());
  if (tensor.numel() == 0) return read_values(tensor);
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return {};
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  const bool is_replaced = is_overwritten && extent.is_dense;
  if (!is_replaced) contents.take_zeros(extent.begin, extent.end, tensor.scalar_type());
  const bool is_missing = worst_source(contents, tensor) == Source::described && !is_replaced;
  const std::size_t item = tensor.itemsize();
  if (is_missing && !are_few(extent.end - extent.begin, tensor.scalar_type())) return {};
  if (!contents.make_room(tensor.scalar_type())) return {};
  if (is_missing) draw_missing(contents, extent, tensor.scalar_type(), item);
  return over(contents, tensor, extent.begin);
}

void note_values(const at::Tensor& tensor, Source source) {
  Known known;
  known.description = Description::of_type(tensor.scalar_type());
  note_values(tensor, source, known);
}

void note_values(const at::Tensor& tensor, Source source, const Known& known) {
  const ContentsLock lock(contents_mutex());
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || tensor.numel() == 0) return;
  Contents& contents = contents_of(*allocation);
  const Extent extent = extent_of(tensor);
  if (contents.memory() == nullptr) {  // meanwhile another thread freed the values
    note_described(tensor, Description::of_type(tensor.scalar_type()));
    return;
  }
  Contents::Part part;
  part.type = tensor.scalar_type();
  part.description = known.description;
  part.origin = known.origin;
  const Pieces pieces = extent.is_dense ? Pieces() : pieces_of(tensor);
  part.source = extent.is_dense || !pieces.offsets.empty()
                    ? source
                    : std::max(source, worst_source(contents, tensor));
  for (const std::size_t offset : pieces.offsets) {
    part.end = extent.begin + offset + pieces.bytes;
    write(tensor, *allocation, extent.begin + offset, part);
  }
  if (!pieces.offsets.empty()) return;
  part.end = extent.end;
  write(tensor, *allocation, extent.begin, part);
}

void note_described(const at::Tensor& tensor, const Description& description) {
  Known known;
  known.description = description;
  note_same(tensor, known);
}

void note_written(Allocation& allocation, std::size_t begin, std::size_t end) {
  const ContentsLock lock(contents_mutex());
  Contents::Part part;
  part.end = end;
  part.description = Description::of_type(part.type);
  part.series = next_series();
  part.capture = runtime().current_capture(allocation.device);
  put(allocation, begin, part);
}

void note_told(const at::Tensor& tensor, const at::Tensor& values, const Description& could_be) {
  const at::Tensor to = writable_values(tensor, true);
  if (!to.defined()) return;
  to.copy_(values);
  Known known;
  known.description = could_be;
  note_values(tensor, Source::told, known);
}

void note_same(const at::Tensor& tensor, const Known& as) {
  const ContentsLock lock(contents_mutex());
  Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr || tensor.numel() == 0) return;
  const Extent extent = extent_of(tensor);
  Contents::Part part;
  part.end = extent.end;
  part.type = tensor.scalar_type();
  part.description = as.description;
  if (!extent.is_dense) part.description.reaches_bounds = false;
  part.series = as.series != 0 ? as.series : next_series();
  part.first = as.series != 0 ? as.first : 0;
  part.origin = as.origin;
  Contents& contents = contents_of(*allocation);
  if (const Pieces pieces = pieces_of(tensor); !extent.is_dense && !pieces.offsets.empty()) {
    const std::uint64_t first = part.first;
    for (const std::size_t offset : pieces.offsets) {
      part.end = extent.begin + offset + pieces.bytes;
      part.first = first + offset / tensor.itemsize();
      write(tensor, *allocation, extent.begin + offset, part);
    }
    return;
  }
  if (!extent.is_dense) {  // the description also covers the elements in the gaps
    const auto elements = static_cast<double>((extent.end - extent.begin) / tensor.itemsize());
    const double share = std::min(static_cast<double>(tensor.numel()) / elements, 1.0);
    Description between;
    double before = 0;  // bytes of the parts before this one
    for_parts_in(
        contents, extent.begin, extent.end, [&](const Contents::Part& each, std::size_t start) {
          const std::size_t begin = std::max(start, extent.begin);
          const std::size_t end = std::min(each.end, extent.end);
          const auto here = static_cast<double>(end - begin);
          between = join(between,
                         description_within(contents, each, begin, end, tensor.scalar_type(),
                                            runtime().current_capture(allocation->device)),
                         before / (before + here));
          before += here;
        });
    part.description = share < 1 ? join(part.description, between, share) : part.description;
    part.series = next_series();
    part.first = 0;
    part.origin = {};
  }
  write(tensor, *allocation, extent.begin, part);
}

void replay_writes(std::uint64_t capture) {
  std::unordered_map<std::uint64_t, std::uint64_t> renewed;  // old to new series
  for (CapturedWrite& write : captured_writes(capture)) {
    const auto storage = write.storage.lock();
    if (!storage) continue;
    std::uint64_t& series = renewed[write.part.series];
    if (series == 0) series = next_series();
    write.part.series = series;
    write.part.capture = 0;
    write.part.origin = {};
    const ContentsLock lock(contents_mutex());
    Allocation* const allocation = allocation_of(*storage);
    if (allocation == nullptr || write.part.end > allocation->size) continue;
    put(*allocation, write.begin, write.part);
  }
}

void keep_contents(const Allocation& before, Allocation& after) {
  const ContentsLock lock(contents_mutex());
  if (const Contents* const kept = contents_of(&before)) contents_of(after).take_over(*kept);
}

at::Tensor map_host(const at::Tensor& host, c10::DeviceIndex device) {
  const std::size_t size = host.nbytes();
  auto* const memory = static_cast<std::byte*>(host.mutable_data_ptr());
  if (size == 0) return at::empty(host.sizes(), host.options().device(at::kCUDA, device));
  at::DataPtr pointer = lent_memory(reinterpret_cast<std::uint64_t>(memory), size, device);
  auto& allocation = *static_cast<Allocation*>(pointer.get_context());
  allocation.host = host;
  if (!is_virtual(host)) {
    const std::shared_ptr<std::byte[]> kept(memory, [host](std::byte*) {});
    allocation.contents = std::make_unique<Contents>(size, kept);
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(pointer));
  return at::detail::make_tensor<c10::TensorImpl>(
             std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), host.dtype())
      .as_strided(host.sizes(), host.strides());
}

void fill_unknown(const at::Tensor& tensor) {
  const bool is_integer = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  tensor.fill_(is_integer ? 0 : 1);
}

}  // namespace plimsoll::simulated
