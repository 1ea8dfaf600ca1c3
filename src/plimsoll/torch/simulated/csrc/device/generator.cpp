#include "device/generator.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <vector>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;

bool next_generator_is_default = false;

// The seed and offset of a Philox generator. The values themselves are drawn by a host generator
// that is set to this seed and offset.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(DeviceIndex index)
      : GeneratorImpl(c10::Device(DeviceType::CUDA, index),
                      c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
    is_chosen_ = true;
  }
  // Notes that the program did not choose the seed. On a real GPU such a seed differs in each run.
  void forget_choice() { is_chosen_ = false; }
  [[nodiscard]] bool is_chosen() const { return is_chosen_; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    forget_choice();
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size");
    const auto* const bytes = static_cast<const std::uint8_t*>(state.data());
    const std::uint64_t before = seed_;
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
    is_chosen_ = is_chosen_ || seed_ != before;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({kStateBytes}, at::kByte);
    auto* const bytes = state.mutable_data_ptr<std::uint8_t>();
    std::memcpy(bytes, &seed_, sizeof seed_);
    std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto* const other = static_cast<const Generator*>(state.get());
    seed_ = other->seed_;
    offset_ = other->offset_;
    is_chosen_ = other->is_chosen_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }

 private:
  static constexpr std::int64_t kStateBytes = sizeof(std::uint64_t) + sizeof(std::int64_t);
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    copy->is_chosen_ = is_chosen_;
    return copy;
  }
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
  bool is_chosen_ = true;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* const generators = new std::vector<at::Generator>;
  const auto count = runtime().devices.size();
  while (generators->size() < count) {
    const auto index_of = static_cast<DeviceIndex>(generators->size());
    generators->push_back(at::make_generator<Generator>(index_of));
    generators->back().get<Generator>()->forget_choice();
  }
  return (*generators)[static_cast<std::size_t>(index < 0 ? runtime().current_device() : index)];
}

at::Generator new_generator(DeviceIndex index) {
  if (next_generator_is_default) return default_generator(index);
  return at::make_generator<Generator>(index < 0 ? runtime().current_device() : index);
}

void make_next_generator_default(bool value) { next_generator_is_default = value; }

bool has_chosen_seed(const at::Generator& generator) {
  return generator.get<Generator>()->is_chosen();
}

}  // namespace plimsoll::simulated
