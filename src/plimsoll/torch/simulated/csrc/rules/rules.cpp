#include "rules/rules.h"

#include <array>

namespace plimsoll::simulated {
namespace {

constexpr const char* kNoTemporaries[] = {
#include "no_temporaries.inc"
};

}  // namespace

void register_rules() {
  for (const auto table :
       {activation_rules(), attention_rules(), convolution_rules(),    counting_rules(),
        distance_rules(),   embedding_rules(), filling_rules(),        fourier_rules(),
        image_rules(),      indexing_rules(),  linear_algebra_rules(), list_rules(),
        loss_rules(),       matmul_rules(),    normalization_rules(),  random_rules(),
        recurrent_rules(),  reduction_rules(), scan_rules(),           shape_rules(),
        sorting_rules(),    trait_rules(),     transformer_rules()}) {
    add_rules(table);
  }
  for (const char* const name : kNoTemporaries) add_rules(std::array{RuleRow{name, nothing}});
}

}  // namespace plimsoll::simulated
