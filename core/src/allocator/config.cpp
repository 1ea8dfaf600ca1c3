#include "plimsoll/allocator/config.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "plimsoll/base/numbers.h"

namespace plimsoll {
namespace {

constexpr std::string_view kJudge = "large_segment_size_mb";
constexpr std::string_view kReserves = "expandable_segments_reserve_by_class";
constexpr std::string_view kOnlyPinned = "it concerns pinned host memory";

constexpr std::string_view kOnlyLocking = "it changes locking, not memory";

// Each call of torch.cuda.memory._set_allocator_settings first resets these keys to their defaults.
constexpr std::array<std::string_view, 3> kResetKeys{
    "garbage_collection_threshold",
    "max_split_size_mb",
    "roundup_power2_divisions",
};
// In PyTorch versions with a setting for the size of large segments, each call of
// _set_allocator_settings also sets this key to the size of large segments.
constexpr std::string_view kRounding = "max_non_split_rounding_mb";

bool is_reset(std::string_view key, TorchVersion version) {
  return std::find(kResetKeys.begin(), kResetKeys.end(), key) != kResetKeys.end() ||
         (key == kRounding && version.has_large_segment_size());
}

struct Setting {
  std::string key;
  std::vector<std::string> values;  // one word, or the items of a list
  bool is_list = false;
  TorchVersion version;

  [[nodiscard]] std::string written() const {
    std::string joined;
    for (const std::string& value : values) joined += (joined.empty() ? "" : ",") + value;
    return key + ":" + (is_list ? "[" + joined + "]" : joined);
  }
};

[[noreturn]] void fail(const std::string& message) { throw ConfigError(message); }

// Reads settings of the form key:value, with commas in between. A value is a word or a
// [list,of,words].
class Reader {
 public:
  explicit Reader(std::string_view text) {
    for (const char character : text) {
      if (character != ' ' && character != '\t') text_ += character;
    }
  }

  std::vector<Setting> settings() {
    std::vector<Setting> result;
    while (position_ < text_.size()) {
      result.push_back(setting());
      if (position_ < text_.size() && text_[position_++] != ',') {
        fail("expected a comma after the value of '" + result.back().key + "' in '" + text_ + "'");
      }
    }
    return result;
  }

 private:
  Setting setting() {
    Setting setting;
    setting.key = until(":,[]");
    if (setting.key.empty()) fail("expected a key in '" + text_ + "'");
    if (const std::size_t equals = setting.key.find('='); equals != std::string::npos) {
      std::string meant = setting.key;
      meant[equals] = ':';
      fail("a colon stands between a key and its value; did you mean '" + meant + "'?");
    }
    if (position_ == text_.size() || text_[position_] != ':') {
      fail("'" + setting.key + "' needs a value, as in '" + setting.key + ":VALUE'");
    }
    ++position_;
    if (position_ < text_.size() && text_[position_] == '[') {
      setting.is_list = true;
      const std::size_t end = text_.find(']', position_);
      if (end == std::string::npos) fail("the list of '" + setting.key + "' has no closing ']'");
      ++position_;
      while (position_ < end) {
        setting.values.push_back(until(",]"));
        if (text_[position_] == ',') ++position_;
      }
      position_ = end + 1;
    } else {
      setting.values.push_back(until(",[]"));
    }
    if (setting.values.empty() || setting.values.front().empty()) {
      fail("'" + setting.key + "' needs a value, as in '" + setting.key + ":VALUE'");
    }
    return setting;
  }

  std::string until(std::string_view stops) {
    const std::size_t end = std::min(text_.find_first_of(stops, position_), text_.size());
    std::string word = text_.substr(position_, end - position_);
    position_ = end;
    return word;
  }

  std::string text_;
  std::size_t position_ = 0;
};

const std::string& single(const Setting& setting) {
  if (setting.is_list) fail("'" + setting.key + "' takes one value, not a list");
  return setting.values.front();
}

template <typename Number>
Number number(const std::string& key, const std::string& text) {
  const std::optional<Number> value = parse_number<Number>(text);
  if (!value) fail("'" + key + "' takes a number, not '" + text + "'");
  return *value;
}

// Each function below reads the value of a setting; settings.inc says which function reads which
// setting. `config` holds the settings read so far.

bool boolean(const Setting& setting, const AllocatorConfig&) {
  const std::string& value = single(setting);
  if (value != "True" && value != "False") {
    fail("'" + setting.key + "' takes True or False, not '" + value + "'");
  }
  return value == "True";
}

bool only_native(const Setting& setting, const AllocatorConfig&) {
  if (single(setting) != "native") {
    fail("'backend:" + single(setting) +
         "' is another allocator, which is not modelled; only backend:native is");
  }
  return true;
}

double between_0_and_1(const Setting& setting, bool with_both) {
  const auto value = number<double>(setting.key, single(setting));
  const bool is_end = value == 0 || value == 1;
  if (!(value >= 0 && value <= 1) || (is_end && !with_both)) {
    fail("'" + setting.key + "' must lie between 0 and 1, not " + single(setting));
  }
  return value;
}
double part_of_one(const Setting& setting, const AllocatorConfig&) {
  return between_0_and_1(setting, false);
}
double one_or_less(const Setting& setting, const AllocatorConfig&) {
  return between_0_and_1(setting, true);
}

Bytes mebibytes(const Setting& setting, Bytes least) {
  const auto value = number<Bytes>(setting.key, single(setting));
  if (value < least) {
    fail("'" + setting.key + "' must be at least " + std::to_string(least) + ", not " +
         std::to_string(value));
  }
  return std::min(value, AllocatorConfig::kUnlimited / kMiB) * kMiB;
}
Bytes eleven_or_more(const Setting& setting, const AllocatorConfig&) {
  return mebibytes(setting, 11);
}
Bytes large_segment_or_more(const Setting& setting, const AllocatorConfig& config) {
  const Bytes least = setting.version.splits_from_segment_size() ? 0 : 1;
  return mebibytes(setting, config.large_segment_size / kMiB + least);
}

Bytes power_of_two(const Setting& setting, const std::string& text, bool may_be_zero) {
  const auto value = number<Bytes>(setting.key, text);
  if (!std::has_single_bit(value) && !(may_be_zero && value == 0)) {
    fail("'" + setting.key + "' divides by powers of two, not by " + text);
  }
  return value;
}

// Returns the number of divisions for each interval of sizes. In a list such as [256:4,512:2,>:1],
// an entry sets the interval that begins at the size before the colon, in MiB. The leftmost entry
// also sets all intervals of smaller sizes, even if a later entry has a smaller size. An entry with
// '>' sets all intervals of larger sizes than the interval of the entry to its left. In PyTorch
// 2.9, the entry with '>' also sets the interval of the entry to its left.
AllocatorConfig::Divisions divisions(const Setting& setting, const AllocatorConfig& config) {
  AllocatorConfig::Divisions slots = config.roundup_power2_divisions;
  if (!setting.is_list) {
    slots.fill(power_of_two(setting, setting.values.front(), false));
    return slots;
  }
  std::size_t last = 0;
  bool first = true;
  for (const std::string& entry : setting.values) {
    const std::size_t colon = entry.find(':');
    if (colon == std::string::npos) {
      fail("'" + setting.key + "' takes entries like 256:4, not '" + entry + "'");
    }
    const std::string size = entry.substr(0, colon);
    const Bytes value = power_of_two(setting, entry.substr(colon + 1), true);
    if (size == ">") {
      const std::size_t begin = setting.version.keeps_last_interval() ? last + 1 : last;
      std::fill(slots.begin() + static_cast<std::ptrdiff_t>(begin), slots.end(), value);
      continue;
    }
    const auto interval = number<Bytes>(setting.key, size);
    if (!std::has_single_bit(interval)) {
      fail("'" + setting.key + "' takes sizes that are powers of two in MiB, not " + size);
    }
    const auto slot =
        std::min(static_cast<std::size_t>(std::bit_width(interval) - 1), slots.size() - 1);
    if (first) std::fill(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(slot), value);
    slots[slot] = value;
    last = slot;
    first = false;
  }
  return slots;
}

// Reads "0.5", a fraction of the device's memory, or "40G", a size. Throws for any other text.
// PyTorch ignores such text with a warning.
std::variant<double, Bytes> part_or_size(const Setting& setting, const std::string& text) {
  const bool is_size = !text.empty() && (text.back() == 'G' || text.back() == 'g');
  const auto digits = std::string_view(text).substr(0, text.size() - (is_size ? 1 : 0));
  const double value = parse_number<double>(digits).value_or(0);
  if (!std::isfinite(value) || !(value > 0)) {
    fail("'" + setting.key +
         "' takes a part of the device's memory, such as 0.5, or a size such as " + "40G, not '" +
         text + "'");
  }
  if (!is_size) return value;
  constexpr auto most = static_cast<double>(AllocatorConfig::kUnlimited / 2);
  return static_cast<Bytes>(std::min(value * static_cast<double>(kGiB), most));
}
AllocatorConfig::Reserve reserve(const Setting& setting, const AllocatorConfig&) {
  return part_or_size(setting, single(setting));
}

// Checks the form of a setting that lists a memory reserve for each class of streams; the error
// message shows an example. The setting has no effect here: only C++ code can give a stream a
// class.
void check_reserves(const Setting& setting) {
  for (const std::string& entry : setting.values) {
    const std::size_t colon = entry.find(':');
    if (!setting.is_list || colon == 0 || colon == std::string::npos) {
      fail("'" + setting.key + "' takes a list like [name:0.5,other:40G], not '" + entry + "'");
    }
    (void)part_or_size(setting, entry.substr(colon + 1));
  }
}

struct ConfigKey {
  std::string_view name;
  TorchVersion since;
  void (*read)(const Setting&, AllocatorConfig&);  // null if the setting changes no device memory
  std::string_view why = {};                       // why `read` is null; empty if `read` is set
};

constexpr ConfigKey kConfigKeys[] = {
#define PLIMSOLL_SETTING(key, type, field, initial, reader, major, minor)      \
  {#key, {major, minor}, [](const Setting& setting, AllocatorConfig& config) { \
     config.field = reader(setting, config);                                   \
   }},
#define PLIMSOLL_WITHOUT_EFFECT(key, why, major, minor) {#key, {major, minor}, nullptr, why},
#include "plimsoll/allocator/settings.inc"
};

const ConfigKey& find_config_key(const std::string& name, TorchVersion version) {
  const auto* const key = std::find_if(std::begin(kConfigKeys), std::end(kConfigKeys),
                                       [&](const ConfigKey& each) { return each.name == name; });
  if (key == std::end(kConfigKeys)) {
    std::string known;
    for (const ConfigKey& each : kConfigKeys) {
      if (each.read != nullptr) known += (known.empty() ? "" : ", ") + std::string(each.name);
    }
    fail("unknown key '" + name + "'; those that change device memory are " + known);
  }
  if (version < key->since) {
    fail("'" + name + "' exists from PyTorch " + key->since.to_string() + " on, not in " +
         version.to_string());
  }
  return *key;
}

// Returns the text of all settings after a change. `before` is the text until now. `text` is the
// change, and `settings` are the settings that were read from it. The result consists of the
// settings in `before` that the change neither replaces nor resets, followed by `text`.
std::string text_after(std::string_view before, const std::vector<Setting>& settings,
                       std::string_view text, TorchVersion version) {
  std::string kept;
  for (const Setting& setting : Reader(before).settings()) {
    const bool is_replaced =
        is_reset(setting.key, version) ||
        std::any_of(settings.begin(), settings.end(),
                    [&](const Setting& later) { return later.key == setting.key; });
    if (!is_replaced) kept += setting.written() + ",";
  }
  if (!kept.empty() && settings.empty()) kept.pop_back();
  return kept + std::string(text);
}

}  // namespace

TorchVersion TorchVersion::parse(std::string_view text) {
  TorchVersion version;
  const char* const end = text.data() + text.size();
  auto [dot, error] = std::from_chars(text.data(), end, version.major);
  if (error == std::errc{} && dot != end && *dot == '.') {
    const auto [rest, minor_error] = std::from_chars(dot + 1, end, version.minor);
    if (minor_error == std::errc{} && (rest == end || *rest == '.' || *rest == '+') &&
        version >= kOldestTorch && version <= kNewestTorch) {
      return version;
    }
  }
  fail("unknown PyTorch version '" + std::string(text) + "'; known are " +
       kOldestTorch.to_string() + " to " + kNewestTorch.to_string());
}

std::string TorchVersion::to_string() const {
  return std::to_string(major) + "." + std::to_string(minor);
}

AllocatorConfig AllocatorConfig::parse(std::string_view text, TorchVersion version) {
  return AllocatorConfig().with(text, version);
}

AllocatorConfig AllocatorConfig::with(std::string_view settings, TorchVersion version) const {
  const AllocatorConfig defaults;
  AllocatorConfig config = *this;
  config.max_split_size = defaults.max_split_size;
  config.roundup_power2_divisions = defaults.roundup_power2_divisions;
  config.garbage_collection_threshold = defaults.garbage_collection_threshold;
  config.without_effect.clear();
  std::vector<Setting> parsed = Reader(settings).settings();
  for (Setting& setting : parsed) setting.version = version;
  config.text = text_after(text, parsed, settings, version);
  // The size of large segments is read first, wherever it stands in the text, because other
  // settings are checked against it.
  const auto is_judge = [](const Setting& setting) { return setting.key == kJudge; };
  for (const bool judges : {true, false}) {
    for (const Setting& setting : parsed) {
      if (is_judge(setting) != judges) continue;
      const ConfigKey& key = find_config_key(setting.key, version);
      if (key.read != nullptr) {
        key.read(setting, config);
        continue;
      }
      if (key.name == kReserves) check_reserves(setting);
      config.without_effect.emplace_back(key.name, key.why);
    }
    if (judges && version.has_large_segment_size()) {
      config.max_non_split_rounding = config.large_segment_size;
    }
  }
  return config;
}

Bytes AllocatorConfig::round_request(Bytes size) const {
  if (size < kMinBlock) return kMinBlock;
  const Bytes divisions = divisions_for(size);
  if (divisions <= 1 || size <= kMinBlock * divisions) return round_up(size, kMinBlock);
  if (std::has_single_bit(size)) return size;
  const Bytes step = std::bit_floor(size) / divisions;
  return step == 0 ? std::bit_ceil(size) : round_up(size, step);
}

Bytes AllocatorConfig::segment_size(Bytes rounded) const {
  if (rounded <= kSmallRequest) return kSmallSegment;
  if (rounded < kLargeRequest) return large_segment_size;
  return round_up(rounded, kSegmentMultiple);
}

Bytes AllocatorConfig::expandable_size(Bytes device_memory) const {
  const Bytes most = device_memory + device_memory / 8;
  if (!expandable_segments_reserve) return most;
  if (const Bytes* const bytes = std::get_if<Bytes>(&*expandable_segments_reserve)) {
    return std::min(*bytes, most);
  }
  const double bytes =
      std::get<double>(*expandable_segments_reserve) * static_cast<double>(device_memory);
  return bytes < static_cast<double>(most) ? static_cast<Bytes>(bytes) : most;
}

Bytes AllocatorConfig::divisions_for(Bytes size) const {
  constexpr int first_interval = std::bit_width(kMiB) - 1;
  const int interval = static_cast<int>(std::bit_width(size)) - 1 - first_interval;
  const auto last = static_cast<int>(kRoundupIntervals) - 1;
  return roundup_power2_divisions[static_cast<std::size_t>(std::clamp(interval, 0, last))];
}

std::optional<Bytes> limit_of(double fraction, Bytes device_memory, TorchVersion version) {
  if (fraction >= 1 && version.lifts_limits()) return std::nullopt;
  const double bytes = fraction * static_cast<double>(device_memory);
  return static_cast<Bytes>(version.rounds_limits() ? std::round(bytes) : bytes);
}

}  // namespace plimsoll
