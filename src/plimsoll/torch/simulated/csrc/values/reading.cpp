#include "values/reading.h"

#include <ATen/ops/empty_strided.h>

#include "device/runtime.h"
#include "device/virtual.h"
#include "values/known.h"
#include "values/waiting.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Returns a tensor with the shape and type of `like`, in which all elements have the same value.
// plimsoll uses it if a tensor has too many elements to draw each of them.
Tensor fill(const Tensor& like, const Description& description) {
  Tensor made =
      at::empty_strided(like.sizes(), like.strides(), at::TensorOptions().dtype(like.dtype()));
  if (description.is_constant()) return made.fill_(description.low);
  fill_unknown(made);
  return made;
}

}  // namespace

Tensor read_by_host(const Tensor& tensor, std::uint32_t operation) {
  const WithContentsScope real;
  const Source source = source_of(tensor);
  Tensor values = read_values(tensor);
  if (source == Source::computed && values.defined()) return values;
  if (source == Source::random && values.defined()) {
    runtime().assume(operation, kReadsRandom);
    return values;
  }
  const Known known = known_of(tensor);
  const Description& description = known.description;
  const bool is_sure = source == Source::described && description.is_constant();
  if (is_sure && description.is_given) return fill(tensor, description);
  runtime().assume(operation, kReadsUnknown);
  if (!values.defined()) values = fill(tensor, description);
  if (is_sure || source == Source::told) return values;
  const Tensor told = as_in_a_healthy_run(tensor, values, known, operation);
  // Keeps the values, so that later reads return the same values.
  if (!told.is_same(values)) note_told(tensor, told, description);
  return told;
}

}  // namespace plimsoll::simulated
