#include <cmath>

#include "device/tensors.h"
#include "values/chances.h"
#include "values/conversion.h"
#include "values/describing/describing.h"

namespace plimsoll::simulated {

at::Tensor Operands::tensor(std::size_t i) const {
  if (!has(i)) return {};
  const c10::IValue& value = call_.argument(i);
  if (value.isTensor()) return value.toTensor();
  if (!value.isTensorList()) return {};
  const c10::ArrayRef<c10::IValue> list = value.toListRef();
  return written_.element < list.size() ? list[written_.element].toTensor() : at::Tensor();
}

double Operands::number(std::size_t i, double otherwise) const {
  if (!has(i)) return otherwise;
  const c10::IValue& value = call_.argument(i);
  if (!value.isScalar()) return otherwise;
  const c10::Scalar scalar = value.toScalar();
  return scalar.isComplex() ? otherwise : scalar.toDouble();
}

Known Operands::known(std::size_t i) const {
  if (const at::Tensor one = tensor(i); one.defined()) {
    if (is_simulated(one)) return known_of(one);
    const bool is_number = one.is_cpu() && one.dim() == 0 && !one.is_complex();
    if (!is_number) return {Source::computed, Description::of_type(one.scalar_type())};
    const double value = one.item().toDouble();
    Known known{Source::computed, std::isnan(value) ? Description() : Description::constant(value)};
    known.description.is_finite = std::isfinite(value);
    return known;
  }
  const double value = number(i, std::nan(""));
  if (std::isfinite(value)) return {Source::computed, Description::constant(value)};
  Known known{Source::computed, std::isinf(value) ? Description::constant(value) : Description()};
  known.description.is_finite = !has(i) || !call_.argument(i).isScalar();
  return known;
}

Description Operands::as_numbers(std::size_t i) const {
  const at::Tensor of = tensor(i);
  if (!of.defined()) return (*this)[i];
  return in_type((*this)[i], of.scalar_type(), result().scalar_type());
}

Description bounded(double low, double high) {
  return {std::isnan(low) ? -kNone : low, std::isnan(high) ? kNone : high};
}

Description linear(const Description& x, double factor, double shift) {
  Description y = bounded(factor * x.low + shift, factor * x.high + shift);
  if (factor < 0) std::swap(y.low, y.high);
  if (x.is_random()) {
    y.spread = x.spread;
    y.mean = factor * x.mean + shift;
    y.deviation = std::abs(factor) * x.deviation;
  }
  y.is_finite = x.is_finite;
  y.reaches_bounds = x.reaches_bounds;
  y.is_whole = x.is_whole && factor == std::trunc(factor) && shift == std::trunc(shift);
  for (const Description::Atom& atom : x.atoms) {
    y.add_atom({factor * atom.at + shift, atom.share, atom.is_random});
  }
  return y;
}

double share_of(const Description& x, c10::ScalarType type) {
  if (x.is_constant()) return x.low != 0 ? 1 : 0;
  if (type == at::kBool) return x.mean;
  return 1 - chance_of_equal(x, Description::constant(0), type).share;
}

double share(const Operands& of, std::size_t i) {
  const at::Tensor tensor = of.tensor(i);
  return share_of(of[i], tensor.defined() ? tensor.scalar_type() : at::kBool);
}

Description as_result(const Operands& of, const Description& truth) {
  return in_type(truth, at::kBool, of.result().scalar_type());
}

double reduced(const Operands& of) {
  const auto results = static_cast<double>(std::max<std::int64_t>(of.result().numel(), 1));
  return static_cast<double>(of.tensor(0).numel()) / results;
}

Description elsewhere(const Operands& of) {
  Description x = of[0];
  x.sums_to_one = 0;
  x.per_row = 1;
  x.reaches_bounds = false;
  return x;
}

Description bounds(const Operands& of) {
  const Description x = of[0];
  return x.is_constant() ? x : bounded(x.low, x.high);
}

}  // namespace plimsoll::simulated
