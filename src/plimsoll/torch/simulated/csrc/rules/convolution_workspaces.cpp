// Tables of measured convolutions (cuDNN 9.19, compute capability 9.0). For a convolution that was
// not measured, plimsoll takes the most similar entry. In that measurement, cuDNN copied some of
// the operands into another layout. plimsoll assumes that cuDNN copies the same operands of the
// requested convolution, whatever their sizes. It also assumes that the rest of the workspace grows
// with the weight. Workspaces of Winograd's algorithm follow from the sizes.
#include "rules/convolution_workspaces.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

namespace plimsoll::simulated {
namespace {

bool is_transposed(std::int32_t kind) { return kind == kImagesBack || kind == kVolumesBack; }

// Holds a row of data/cudnn_workspaces.csv, cudnn_largest.csv or cudnn_fastest.csv.
struct Measured {
  std::int32_t kind, type, channels_last, batch, channels, side, out_channels, kernel, stride,
      padding, groups, dilation;
  std::int64_t forward, input_gradient, weight_gradient;
};

constexpr Measured kFirst[] = {
#include "cudnn_workspaces.inc"
};
constexpr Measured kLargest[] = {
#include "cudnn_largest.inc"
};
constexpr Measured kFastest[] = {
#include "cudnn_fastest.inc"
};

std::span<const Measured> table_of(Plan plan) {
  switch (plan) {
    case Plan::first: return kFirst;
    case Plan::largest: return kLargest;
    case Plan::fastest: return kFastest;
  }
  return kFirst;
}

std::int64_t measured_bytes(const Measured& entry, Pass pass) {
  return pass == Pass::forward          ? entry.forward
         : pass == Pass::input_gradient ? entry.input_gradient
                                        : entry.weight_gradient;
}

// Returns the operands' bytes after padding the channels of each group to multiples of `step`, as
// cuDNN does to fill its vectors.
Operands padded(const Operands& bytes, double channels, double out_channels, double groups,
                double step) {
  const double whole = step * groups;
  const double in = std::ceil(channels / whole) * whole / channels;
  const double out = std::ceil(out_channels / whole) * whole / out_channels;
  return {bytes[0] * in, bytes[1] * in * out, bytes[2] * out};
}

Operands operands_of(const Measured& entry) {
  const double element = entry.type == 0 ? 4 : 2;
  const double side = entry.side;
  const double reach = entry.dilation * (entry.kernel - 1) + 1;
  const double out_side = is_transposed(entry.kind)
                              ? (side - 1) * entry.stride - 2 * entry.padding + entry.kernel
                              : std::floor((side + 2 * entry.padding - reach) / entry.stride) + 1;
  const double dimensions = entry.kind == kLines ? 1 : entry.kind >= kVolumes ? 3 : 2;
  return {element * entry.batch * entry.channels * std::pow(side, dimensions),
          element * entry.channels * entry.out_channels / entry.groups *
              std::pow(entry.kernel, dimensions),
          element * entry.batch * entry.out_channels * std::pow(out_side, dimensions)};
}

double ratio(double first, double second) { return std::abs(std::log2(first / second)); }

// Returns whether two convolutions can be compared at all: their kind, type and layout agree.
bool are_of_one_sort(const Convolution& call, const Measured& entry) {
  return call.kind == entry.kind && call.type == entry.type &&
         call.channels_last == (entry.channels_last != 0);
}

double distance(const Convolution& call, const Measured& entry) {
  const auto group_class = [](double groups, double channels) {
    return groups == 1 ? 0 : groups == channels ? 1 : 2;
  };
  const double vector = call.type == 0 ? 4 : 8;  // elements per 16 bytes
  const auto is_aligned = [vector](double channels, double groups, double inputs) {
    return std::fmod(groups == inputs ? channels : channels / groups, vector) == 0;
  };
  const auto alignment = [is_aligned](double channels, double out_channels, double groups) {
    return std::pair(is_aligned(channels, groups, channels),
                     is_aligned(out_channels, groups, channels));
  };
  double total = ratio(call.batch, entry.batch) + ratio(call.channels, entry.channels) +
                 2 * ratio(call.side, entry.side) + ratio(call.out_channels, entry.out_channels);
  if (call.kernel != entry.kernel) {
    total += 2 + ratio(static_cast<double>(call.kernel), entry.kernel);
    if (call.kernel == 1 || entry.kernel == 1) total += 20;
  }
  if (call.stride != entry.stride) total += 3;
  if ((call.stride == call.kernel) != (entry.stride == entry.kernel)) total += 6;
  if (call.dilation != entry.dilation) total += 1;
  if (group_class(static_cast<double>(call.groups), call.channels) !=
      group_class(entry.groups, entry.channels)) {
    total += 40;
  }
  const auto here = alignment(call.channels, call.out_channels, static_cast<double>(call.groups));
  const auto there = alignment(entry.channels, entry.out_channels, entry.groups);
  if (here.first != there.first) total += 10;
  if (here.second != there.second) total += 10;
  return total;
}

constexpr std::size_t kNeighbours = 8;

struct Neighbours {
  // Measured convolutions, the most similar first.
  std::array<const Measured*, kNeighbours> entries{};
  bool has_equal = false;  // the first entry is equal to the call, except perhaps in its padding
  std::uint64_t number = 0;
};

const Neighbours& neighbours_of(const Convolution& call, Plan plan) {
  using Key = std::tuple<Plan, std::int32_t, std::int32_t, bool, double, double, double, double,
                         std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static std::mutex mutex;
  static auto* const known = new std::map<Key, Neighbours>;
  const Key key{plan,        call.kind,     call.type,   call.channels_last,
                call.batch,  call.channels, call.side,   call.out_channels,
                call.kernel, call.stride,   call.groups, call.dilation};
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known->try_emplace(key);
  Neighbours& found = place->second;
  if (is_new) {
    std::array<std::pair<double, const Measured*>, kNeighbours> nearest;
    const std::span<const Measured> table = table_of(plan);
    nearest.fill({std::numeric_limits<double>::infinity(), table.data()});
    for (const Measured& entry : table) {
      if (!are_of_one_sort(call, entry)) continue;
      std::pair candidate{distance(call, entry), &entry};
      for (auto& kept : nearest) {
        if (candidate.first < kept.first) std::swap(candidate, kept);
      }
    }
    // If fewer than kNeighbours entries can be compared, the most similar one fills the rest of the
    // array.
    std::ranges::transform(nearest, found.entries.begin(), [&](const auto& each) {
      return std::isinf(each.first) ? nearest[0].second : each.second;
    });
    found.number = known->size();
    found.has_equal = nearest[0].first == 0;
  }
  return found;
}

// Returns whether the call itself was measured. The measurement is then the first entry of `found`.
// An entry has one image side, one kernel size and one padding for all dimensions. If a call
// differs from the entry in these, the call's operands mostly have other sizes. The call then
// counts as not measured.
bool is_measured(const Convolution& call, const Neighbours& found) {
  return found.has_equal && operands_of(*found.entries[0]) == call.bytes;
}

// Returns the workspace of the weight's gradient by Winograd's algorithm F(3x3, 4x4). The kernel
// keeps three things as squares of 6 by 6 floats: each 4 by 4 tile of the output's gradient, the
// part of the input that belongs to the tile, and the weight's gradient for each pair of channels.
// 692 measured workspaces have exactly this size.
double winograd_bytes(double batch, double channels, double out_channels, double tiles) {
  constexpr double kTransformed = 6 * 6 * sizeof(float);
  return kTransformed * (batch * tiles * (channels + out_channels) + channels * out_channels);
}

bool is_by_winograd(const Measured& entry, Pass pass) {
  if (pass != Pass::weight_gradient || entry.kind != kImages || entry.kernel != 3) return false;
  if (entry.stride != 1 || entry.dilation != 1 || entry.groups != 1) return false;
  const std::int64_t side = entry.side + 2 * entry.padding - 2;
  return static_cast<double>(entry.weight_gradient) ==
         winograd_bytes(entry.batch, entry.channels, entry.out_channels, tiles_of(side, side));
}

bool suits_winograd(const Convolution& call) {
  const double element = call.type == 0 ? 4 : 2;
  const bool is_square = call.bytes[1] == element * 9 * call.channels * call.out_channels;
  return call.kind == kImages && is_square && call.kernel == 3 && call.stride == 1 &&
         call.dilation == 1 && call.groups == 1 && call.tiles > 0;
}

// Returns the workspace under the assumption that cuDNN chooses the same kernel as for `entry`.
std::uint64_t workspace_like(const Measured& entry, const Convolution& call, Pass pass) {
  const auto bytes = static_cast<double>(measured_bytes(entry, pass));
  if (is_by_winograd(entry, pass) && suits_winograd(call)) {
    return static_cast<std::uint64_t>(
        winograd_bytes(call.batch, call.channels, call.out_channels, call.tiles));
  }
  constexpr double kSmall = 4096;
  if (bytes < kSmall) return static_cast<std::uint64_t>(bytes);
  // The measured workspace probably holds copies of some operands. plimsoll guesses which operands:
  // among the sets of copies that fit into the workspace, it takes the largest set. It tries each
  // set with unpadded channels, and with channels padded to multiples of 4 and of 8.
  const Operands there = operands_of(entry);
  double best_bytes = 0;
  double here = 0;
  for (const double step : {1.0, 4.0, 8.0}) {
    const Operands old_bytes =
        padded(there, entry.channels, entry.out_channels, entry.groups, step);
    const Operands new_bytes = padded(call.bytes, call.channels, call.out_channels,
                                      static_cast<double>(call.groups), step);
    for (int set = 1; set < 8; ++set) {
      double old_sum = 0;
      double new_sum = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if ((set >> i & 1) == 0) continue;
        old_sum += old_bytes[i];
        new_sum += new_bytes[i];
      }
      if (old_sum <= bytes * 1.0001 + 64 && old_sum > best_bytes) {
        best_bytes = old_sum;
        here = new_sum;
      }
    }
  }
  const double rest = std::max(0.0, bytes - best_bytes);
  const double growth = rest < kSmall ? 1 : std::clamp(call.bytes[1] / there[1], 0.25, 4.0);
  return static_cast<std::uint64_t>(here + rest * growth);
}

// Returns whether `entry` is so similar to `call` that cuDNN probably chooses the same kernels for
// both convolutions.
bool is_like(const Convolution& call, const Measured& entry) {
  const double weights = operands_of(entry)[1] / (1.0 * entry.channels * entry.out_channels);
  const double per_pair = call.bytes[1] / (call.channels * call.out_channels);
  const bool is_grouped = call.groups != 1 && call.groups < call.channels;
  const bool has_like_groups =
      is_grouped ? call.groups == entry.groups : (call.groups == 1) == (entry.groups == 1);
  // If one convolution has more than eight times as many channels as the other, cuDNN probably
  // chooses different algorithms for them.
  constexpr double kMostDoublings = 3;
  const bool has_near_channels = ratio(call.channels, entry.channels) <= kMostDoublings &&
                                 ratio(call.out_channels, entry.out_channels) <= kMostDoublings;
  return are_of_one_sort(call, entry) && has_like_groups && has_near_channels &&
         call.stride == entry.stride && call.kernel == entry.kernel &&
         call.dilation == entry.dilation &&
         per_pair * static_cast<double>(call.groups) == weights * entry.groups;
}

// Returns the factor by which the largest padding of channels enlarges an operand. cuDNN pads the
// channels of each group: an H200 pads groups of 5, 10 and 20 channels to 8, 16 and 32 channels. A
// group of a depthwise convolution has a single channel. In the tables, cuDNN pads it only if the
// type is float32.
double largest_padding(const Convolution& call, double channels) {
  constexpr double kStep = 8;
  const double of_group = channels / static_cast<double>(call.groups);
  if (call.groups == 1) return std::ceil(channels / kStep) * kStep / channels;
  if (of_group <= 1) return call.type == 0 ? kStep / 2 : 1;
  return std::exp2(std::ceil(std::log2(std::max(of_group, kStep)))) / of_group;
}

// Estimates how large the workspace can be. The estimate has room for a copy of each operand in
// another layout, and for other data of the kernels. It is too small for 3 % of the measured
// workspaces of weight gradients, most of them Winograd's.
std::uint64_t copies_of_all(const Convolution& call) {
  constexpr double kMiB = 1 << 20;
  const double in = largest_padding(call, call.channels);
  const double out = largest_padding(call, call.out_channels);
  const double copies = call.bytes[0] * in + call.bytes[1] * in * out + call.bytes[2] * out;
  return static_cast<std::uint64_t>(copies + std::min(32 * kMiB, copies / 2 + kMiB));
}

}  // namespace

double tiles_of(std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kTile = 4;
  return static_cast<double>((height + kTile - 1) / kTile * ((width + kTile - 1) / kTile));
}

SearchSettings& search_settings() {
  static SearchSettings settings;
  return settings;
}

std::optional<UncertainMemory> measured_on_h200(const Convolution& of, Pass pass) {
  const Neighbours& found = neighbours_of(of, Plan::first);
  if (!is_measured(of, found)) return std::nullopt;
  UncertainMemory memory;
  memory.bytes = memory.least = memory.most =
      static_cast<std::uint64_t>(measured_bytes(*found.entries[0], pass));
  return memory;
}

UncertainMemory convolution_workspace(const Convolution& of, Pass pass, Plan plan,
                                      const Chip& chip) {
  const Neighbours& found = neighbours_of(of, plan);
  UncertainMemory memory;
  memory.kind = found.number * 3 + static_cast<unsigned>(pass);
  memory.bytes = memory.least = memory.most = workspace_like(*found.entries[0], of, pass);
  const bool is_as_measured = chip.measured != 0 && of.has_usual_settings;
  if (is_measured(of, found) && is_as_measured && plan != Plan::fastest) return memory;
  const auto include = [&](const Neighbours& others) {
    for (const Measured* const entry : others.entries) {
      const std::uint64_t other = workspace_like(*entry, of, pass);
      memory.least = std::min(memory.least, other);
      memory.most = std::max(memory.most, other);
    }
  };
  include(found);
  // The fastest plan is often the plan that cuDNN's heuristics rank first. So the bounds include
  // the workspaces that were measured for the first plan.
  if (plan == Plan::fastest) include(neighbours_of(of, Plan::first));
  // cuDNN often takes Winograd's algorithm for floats. The most similar entries may show another
  // algorithm, because no convolution with an odd number of input channels above 3 was measured.
  if (pass == Pass::weight_gradient && of.type == 0 && !of.channels_last && suits_winograd(of)) {
    const double bytes = winograd_bytes(of.batch, of.channels, of.out_channels, of.tiles);
    memory.most = std::max(memory.most, static_cast<std::uint64_t>(bytes));
  }
  if (!is_as_measured || !is_like(of, *found.entries[0])) {
    memory.least = 0;
    memory.most = std::max(memory.most, copies_of_all(of));
  }
  return memory;
}

}  // namespace plimsoll::simulated
