// The time of matrix products and of operations made of them: convolutions, attention, recurrent
// layers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "chips/chip.h"
#include "timing/timing.h"

namespace plimsoll::simulated {
namespace {

// The part of the result that one multiprocessor computes at a time.
struct Tile {
  double rows, columns;
  double efficiency;  // fraction of the peak rate
};

// The costs of a library's matrix products in one number type, fitted to 520 products on an H200.
struct Kind {
  double start_ns;   // fixed time of any product
  double wave_ns;    // time of each wave of tiles
  double split_ns;   // time to add up parts, if a sum's terms are split over multiprocessors
  double sustained;  // fraction of the data sheet's rate that is reached
  double memory;     // fraction of the memory bandwidth that is reached
  double unaligned;  // slowdown if rows may begin at any element, not only at multiples of 16 bytes
  std::span<const Tile> tiles;
};

constexpr Tile kHalfTiles[] = {{128, 256, 1.00}, {128, 128, .92}, {64, 128, .93}, {64, 64, .98}};
constexpr Tile kTf32Tiles[] = {{128, 128, 1.00}, {64, 128, .90}, {64, 64, .92}, {32, 64, .81}};
constexpr Tile kFloatTiles[] = {{128, 128, 1.00}, {64, 128, .79}, {64, 64, .86}, {32, 32, .54}};
constexpr Kind kHalfProducts{3150, 150, 1800, .833, .65, 6.0, kHalfTiles};
constexpr Kind kTf32Products{3680, 1680, 24900, .900, .74, 2.8, kTf32Tiles};
constexpr Kind kFloatProducts{805, 3170, 3865, .785, .76, 1.0, kFloatTiles};

// Operands that fit into the cache are loaded this many times faster than operands in memory.
constexpr double kFasterInCache = 1.7;
constexpr double kFewestTermsOfPart = 128;
constexpr double kMostParts = 32;

bool is_half(at::ScalarType type) { return c10::elementSize(type) <= 2; }
bool has_tensor_cores_for(at::ScalarType type, const DeviceProperties& on) {
  return is_half(type) && chip_of(on).tensor_cores >= (type == at::kBFloat16 ? 2 : 1);
}
bool is_tf32(at::ScalarType type, bool is_allowed, const DeviceProperties& on) {
  return type == at::kFloat && is_allowed && chip_of(on).tensor_cores >= 2;
}
bool is_tf32(const Product& product, const DeviceProperties& on) {
  return is_tf32(product.type, product.allows_tf32, on);
}

const Kind& kind_of(const Product& product, const DeviceProperties& on) {
  if (has_tensor_cores_for(product.type, on)) return kHalfProducts;
  return is_tf32(product, on) ? kTf32Products : kFloatProducts;
}

double rate(const Product& product, const DeviceProperties& on) {
  if (has_tensor_cores_for(product.type, on)) return on.tensor_flops_per_ns;
  if (is_tf32(product, on)) return on.tensor_flops_per_ns / 2;
  if (product.type == at::kDouble) {
    return on.flops_per_ns / static_cast<double>(chip_of(on).double_rate);
  }
  return on.flops_per_ns;
}

// Returns the shortest time over all tiles and all ways to split the sums: libraries choose the
// fastest.
double tiled_ns(const Product& p, const Kind& kind, const DeviceProperties& on) {
  const double processors = std::max(1, on.multiprocessors);
  const double per_processor = rate(p, on) * kind.sustained / processors;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kind.tiles) {
    const double tiles =
        p.batch * std::ceil(p.rows / tile.rows) * std::ceil(p.columns / tile.columns);
    for (double parts = 1; parts <= kMostParts; parts *= 2) {
      const double terms = p.terms / parts;
      if (parts > 1 && terms < kFewestTermsOfPart) break;
      const double waves = std::ceil(tiles * parts / processors);
      const double one = 2 * tile.rows * tile.columns * terms / (per_processor * tile.efficiency);
      double time = waves * (kind.wave_ns + one);
      if (parts > 1) {
        const double sums = 8 * p.batch * p.rows * p.columns;
        time += kind.split_ns + sums / (on.bytes_per_ns * 1.5);
      }
      best = std::min(best, time);
    }
  }
  return best;
}

}  // namespace

double multiplied_ns(const Product& p, const DeviceProperties& on) {
  if (p.flops() == 0) return 0;
  const Kind& kind = kind_of(p, on);
  const double item = static_cast<double>(c10::elementSize(p.type));
  const double bytes = p.bytes();
  const double moved =
      bytes / (on.bytes_per_ns * kind.memory * (bytes < kCacheBytes ? kFasterInCache : 1));
  const bool is_vector = std::min(p.rows, p.columns) <= 2;
  const double multiplied = is_vector ? 2000 : tiled_ns(p, kind, on);
  // `unaligned` was measured with rows that may begin at any element. If rows begin only at every
  // second element, one load reads twice as many elements.
  const double narrow =
      p.alignment < 16 ? kind.unaligned * item / static_cast<double>(p.alignment) : 1;
  return kind.start_ns + std::max(multiplied, moved) * std::max(1.0, narrow);
}

// Returns the time of a kernel that torch.compile makes from a matrix product template. The model
// is fitted to 380 runs on an H200 (benchmarks/templates.py; the median error is 16 %). Thread
// blocks wait for their operands, which come from the cache that all multiprocessors share.
double template_ns(const Product& p, const TemplateTile& tile, const DeviceProperties& on) {
  constexpr double kStartNs = 7000, kWarp = 32;
  // Resources of one multiprocessor.
  constexpr double kSharedBytes = 227 << 10, kMostWarps = 64, kRegisters = 65536;
  constexpr double kRegistersBesides = 64;  // registers per thread that hold no results
  // If a multiprocessor holds only one block, each step takes longer by this share of the wait for
  // operands.
  constexpr double kWaitingAlone = 0.7;
  const bool is_on_cores = has_tensor_cores_for(p.type, on);
  const double latency_ns = is_on_cores ? 650 : 900;
  const double bytes_per_ns = is_on_cores ? 80 : 105;  // per multiprocessor
  // TF32: operands whose terms are not adjacent pass through registers, which is far slower.
  const bool is_slow = is_tf32(p, on) && !tile.is_along_terms;
  const double efficiency = is_slow ? 0.18 : is_on_cores || is_tf32(p, on) ? 0.8 : 0.6;
  const double processors = std::max(1, on.multiprocessors);
  const double tiles =
      p.batch * std::ceil(p.rows / tile.rows) * std::ceil(p.columns / tile.columns);
  const double turns = tiles / processors;
  const double loaded =
      static_cast<double>(c10::elementSize(p.type)) * tile.terms * (tile.rows + tile.columns);
  const double registers = kWarp * tile.warps * kRegistersBesides + tile.rows * tile.columns;
  const double resident = std::max(
      1.0, std::floor(std::min({kSharedBytes / (loaded * tile.buffers), kMostWarps / tile.warps,
                                kRegisters / registers, std::ceil(turns)})));
  const double waiting = latency_ns / std::max(1.0, tile.buffers - 1) / resident;
  const double working =
      std::max(loaded / bytes_per_ns,
               2 * tile.rows * tile.columns * tile.terms * processors / (rate(p, on) * efficiency));
  const double step = resident > 1 ? std::max(working, waiting) : working + kWaitingAlone * waiting;
  const double steps = std::ceil(p.terms / tile.terms);
  return kStartNs + (resident > 1 ? std::max(1.0, turns) : std::ceil(turns)) * steps * step;
}

double multiplied_ns(const ConvolutionWork& w, const DeviceProperties& on) {
  const bool is_fast = is_tf32(w.type, w.allows_tf32, on);
  const double numbers = w.inputs * w.channels + w.outputs * w.out_channels;
  const double item = static_cast<double>(c10::elementSize(w.type));
  const double slower = kH200FlopsPerNs / on.flops_per_ns;
  // With fewer than four channels per group, cuDNN does not multiply matrices. The time then grows
  // with the number of results and, more slowly, with the number of taps of the filter.
  if (w.groups > 1 && w.groups * 4 > w.channels) {
    const double steps = w.outputs * w.out_channels * std::sqrt(w.taps);
    const double per_step = !w.channels_last  ? (w.pass == Pass::weight_gradient ? 9.8e-3 : 5.6e-3)
                            : is_half(w.type) ? (w.pass == Pass::forward ? 1.2e-3 : 1.9e-3)
                                              : (w.pass == Pass::forward ? 2.9e-3 : 3.4e-3);
    return 5000 + std::max(steps * per_step * slower, numbers * item / on.bytes_per_ns);
  }
  const double channels = w.channels / w.groups;
  const double out_channels = w.out_channels / w.groups;
  const double terms = channels * w.taps;
  Product product;
  product.batch = w.groups;
  product.type = w.type;
  product.allows_tf32 = w.allows_tf32;
  // With fewer than eight input channels per group, cuDNN uses the tensor cores poorly. An image,
  // for example, has three channels.
  if (channels < 8 && w.taps > 1) {
    const double flops = 2 * w.outputs * w.out_channels * terms;
    const double flops_per_ns = w.pass == Pass::forward          ? 25e3
                                : w.pass == Pass::input_gradient ? 14e3
                                                                 : 28e3;
    return 8000 + slower * flops / flops_per_ns + 2 * numbers * item / on.bytes_per_ns;
  }
  const auto shaped = [&](double rows, double columns, double depth) {
    product.rows = rows;
    product.columns = columns;
    product.terms = depth;
    return multiplied_ns(product, on);
  };
  double multiplied = 0;
  if (w.pass == Pass::forward) {
    multiplied = shaped(w.outputs, out_channels, terms);
  } else if (w.pass == Pass::input_gradient) {
    const double depth = std::max(8.0, out_channels * w.taps * w.outputs / w.inputs);
    multiplied =
        std::min(shaped(w.inputs, channels, depth), shaped(w.outputs, terms, out_channels));
  } else {
    multiplied = shaped(out_channels, terms, w.outputs);
  }
  if (is_half(w.type)) {
    // In the channels-last layout, cuDNN loads a tile of each operand once and uses it for all taps
    // of the filter. Tensors in any other layout are copied first.
    if (w.channels_last) return 3500 + 0.72 * multiplied;
    return 16000 + 0.9 * multiplied + numbers * 0.6e-3 * slower;
  }
  if (is_fast) {
    const double factor = w.pass == Pass::weight_gradient ? 1.1 : 0.8;
    if (w.channels_last) return 6000 + factor * multiplied;
    return 16000 + factor * 1.3 * multiplied + numbers * 0.6e-3 * slower;
  }
  if (w.pass == Pass::weight_gradient) return 4000 + 0.35 * multiplied + numbers * 9e-3 * slower;
  return 1.3 * multiplied;
}

// Returns the time that the multiplications of attention take, fitted to 256 calls of the three
// attention kernels. The rates are those of an H200: in half precision with tensor cores, in
// float32 without tensor cores.
double multiplied_ns(const AttentionWork& w, const DeviceProperties& on) {
  struct Row {
    double start_ns, narrow, wide, diagonal;
  };
  constexpr Row kRows[][2] = {
      {{4930, 290, 330, 4.0}, {19150, 250, 270, 5.4}},  // flash
      {{3230, 117, 161, 1.6}, {9000, 98, 121, 1.7}},    // efficient
      {{5390, 461, 659, 3.8}, {13000, 429, 541, 5.1}},  // cuDNN
  };
  constexpr Row kFloatRows[] = {{9000, 33, 44, 1.4}, {30000, 33, 36, 1.4}};
  constexpr double kBlock = 128;
  const Row& row =
      w.is_float ? kFloatRows[w.is_backward] : kRows[static_cast<int>(w.kernel)][w.is_backward];
  const double scale = w.is_float ? on.flops_per_ns / kH200FlopsPerNs
                                  : on.tensor_flops_per_ns / kH200TensorFlopsPerNs;
  const double tflops = (w.width <= 64 ? row.narrow : row.wide) * scale;
  const double rows = std::ceil(w.rows / kBlock) * kBlock;
  const double keys = std::ceil(w.key_rows / kBlock) * kBlock;
  const double of_a_row = w.is_causal ? (keys + kBlock * row.diagonal) / 2 : keys;
  const double processors = std::max(1, on.multiprocessors);
  const double blocks = w.heads * rows / kBlock;
  const double flops = 4 * kBlock * std::min(of_a_row, keys) * std::max(w.width, 32.0);
  const double one = flops * (w.is_backward ? 2.5 : 1) / (tflops * 1e3 / processors);
  const double turns = blocks / processors;
  // With few waves, the last one is partly empty, but takes the time of a whole one.
  const double waves = w.is_causal || turns > 6 ? std::max(1.0, turns) : std::ceil(turns);
  const double weights = w.drops ? w.heads * w.rows * w.key_rows : 0;
  const double of_dropout =
      weights * (w.is_backward ? 2.4e-3 : 1.9e-3) * kH200FlopsPerNs / on.flops_per_ns;
  return row.start_ns + waves * one + of_dropout;
}

double multiplied_ns(const RecurrentWork& w, const DeviceProperties& on) {
  const double gates = w.gates * w.hidden;
  const Product of_inputs{1,      w.steps * w.batch,
                          gates,  (w.input + (w.layers - 1) * w.hidden) / w.layers,
                          w.type, w.allows_tf32};
  Product of_step{1, w.batch, gates, w.hidden, w.type, w.allows_tf32};
  // If a row's size is no multiple of 16 bytes, cuDNN loads the elements of the row one at a time.
  const auto item = static_cast<std::int64_t>(c10::elementSize(w.type));
  if (static_cast<std::int64_t>(w.hidden) * item % 16 != 0) of_step.alignment = item;
  // The time steps run one after the other. Each step computes one matrix product with few rows,
  // and then the functions of the gates.
  const double step = multiplied_ns(of_step, on) + 3000 + w.batch * gates * 8e-3;
  const double passes = w.layers * w.directions;
  const double once = passes * (multiplied_ns(of_inputs, on) + w.steps * step);
  return w.is_backward ? 1.75 * once : once;
}

}  // namespace plimsoll::simulated
