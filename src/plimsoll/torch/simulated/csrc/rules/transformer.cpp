// The operations that compute a whole transformer layer for inference.
#include "rules/blas.h"
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Takes the memory of a linear layer's result, and returns the number with which `call.release`
// frees this memory.
std::size_t linear(Call& call, std::size_t bytes) {
  const std::size_t made = call.temporary(bytes);
  take_lt_workspace(call);
  return made;
}

// Takes the memory of attention that does not return its weights. In half precision cuDNN's kernel
// runs, otherwise the memory-efficient kernel.
std::size_t fused_attention(Call& call, const at::Tensor& query) {
  if (query.itemsize() != 2) return call.temporary(bytes_of(query));
  const std::size_t seed = call.temporary(8);
  const std::size_t offset = call.temporary(8);
  const std::size_t output = call.temporary(bytes_of(query));
  const std::size_t workspace = call.temporary(256);
  for (const std::size_t temporary : {workspace, seed, offset}) call.release(temporary);
  return output;
}

// The temporaries of attention, as numbers for `call.release`. `inner` is the query, key and value
// of all heads. `scores` is the attention weights. `context` is the input of the linear layer that
// ends the attention.
struct Weighted {
  std::size_t inner;
  std::size_t scores;
  std::size_t context;
};

// PyTorch's mask type 0: all sequences of a batch share one mask over pairs of positions.
constexpr std::int64_t kOfPositions = 0;

// Takes the memory of scores, softmax and weighted values. `keeps_scores` means that a later
// operation reads the scores, so they are not freed here.
Weighted plain_attention(Call& call, const at::Tensor& query, std::int64_t heads,
                         const at::Tensor& mask, std::int64_t mask_type, bool keeps_scores) {
  const std::size_t bytes = bytes_of(query);
  const auto steps = static_cast<std::size_t>(query.size(1));
  const std::size_t weights = static_cast<std::size_t>(query.size(0) * heads) * steps * steps;
  const std::size_t joint = call.temporary(3 * bytes);
  take_blas_workspace(call);
  const std::size_t split = call.temporary(3 * bytes);
  call.release(joint);
  std::size_t scores = call.temporary(weights * query.itemsize());
  take_blas_workspace(call);
  if (mask.defined()) {  // PyTorch converts the mask to booleans
    const std::size_t truth = call.temporary(mask_type == kOfPositions ? weights : elements(mask));
    const std::size_t masked = call.temporary(weights * query.itemsize());
    call.release(scores);
    call.release(truth);
    scores = masked;
  }
  take_blas_workspace(call);
  if (!keeps_scores) call.release(scores);
  const std::size_t context = call.temporary(bytes);
  return {split, scores, context};
}

// Simulates _native_multi_head_attention. The results are (output, weights).
void native_attention(Call& call) {
  const at::Tensor query = call.tensor(0);
  const bool needs_weights = call.argument(10).toBool();
  const at::Tensor mask = call.tensor(9);
  const bool is_self = query.is_same(call.tensor(1)) && query.is_same(call.tensor(2));
  if (!needs_weights && is_self && !mask.defined()) {
    const std::size_t joint = linear(call, 3 * bytes_of(query));
    const std::size_t attention = fused_attention(call, query);
    call.allocate(0);
    take_lt_workspace(call);
    call.release(attention);
    call.release(joint);
    return;
  }
  const std::int64_t mask_type = call.argument(12).isNone() ? 2 : call.argument(12).toInt();
  const Weighted weighted =
      plain_attention(call, query, call.argument(4).toInt(), mask, mask_type, needs_weights);
  call.allocate(0);
  take_lt_workspace(call);
  call.release(weighted.context);
  call.allocate(1);
  if (needs_weights) call.release(weighted.scores);
  call.release(weighted.inner);
}

void encoder_layer(Call& call) {
  const at::Tensor input = call.tensor(0);
  const at::Tensor mask = call.tensor(18);
  const bool norm_first = call.argument(8).toBool();
  const std::size_t bytes = bytes_of(input);
  const auto width = static_cast<std::size_t>(input.size(-1));
  const std::size_t rows = width == 0 ? 0 : elements(input) / width;
  const auto inner_width = static_cast<std::size_t>(call.tensor(14).size(0));
  call.set_shape(0, meta_contiguous(input));

  // A norm keeps means and deviations until the norm itself is done. The output of the last norm is
  // the layer's result.
  const auto norm = [&](bool is_result) {
    std::size_t output = 0;
    if (is_result) {
      call.allocate(0);
    } else {
      output = call.temporary(bytes);
    }
    const std::size_t means = call.temporary(rows * sizeof(float));
    const std::size_t deviations = call.temporary(rows * sizeof(float));
    call.release(means);
    call.release(deviations);
    return output;
  };
  const std::size_t first = norm_first ? norm(false) : 0;
  std::size_t attended = 0;
  if (mask.defined()) {
    const std::int64_t mask_type = call.argument(19).isNone() ? 2 : call.argument(19).toInt();
    const Weighted weighted =
        plain_attention(call, input, call.argument(2).toInt(), mask, mask_type, false);
    attended = linear(call, bytes);
    call.release(weighted.context);
    call.release(weighted.inner);
  } else {
    const std::size_t joint = linear(call, 3 * bytes);
    const std::size_t attention = fused_attention(call, input);
    attended = linear(call, bytes);
    call.release(attention);
    call.release(joint);
  }
  if (norm_first) call.release(first);
  const std::size_t second = norm(false);
  if (!norm_first) call.release(attended);
  const std::size_t inner = linear(call, rows * inner_width * input.itemsize());
  if (norm_first) {
    call.allocate(0);
    take_lt_workspace(call);
    call.release(inner);
    call.release(second);
    call.release(attended);
    return;
  }
  const std::size_t outer = linear(call, bytes);
  call.release(inner);
  norm(true);
  call.release(outer);
  call.release(second);
}

const RuleTable kTransformerRules{
    {"_native_multi_head_attention", native_attention},
    {"_transformer_encoder_layer_fwd", encoder_layer},
};

}  // namespace
}  // namespace plimsoll::simulated
