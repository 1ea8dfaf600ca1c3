// Fourier transforms. cuFFT takes a workspace for lengths that none of its kernels handles alone.
#include <bit>
#include <vector>

#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

// Returns whether `length` has a prime factor above `bound`. cuFFT takes a workspace for a
// long transform and for a length with a large prime factor. The bounds in this file are fitted to
// recordings of a real GPU's memory: a complex transform takes a workspace for the lengths
// 129 = 3 * 43 and 65536, and none for 1023 = 3 * 11 * 31.
bool has_factor_above(std::int64_t length, std::int64_t bound) {
  for (std::int64_t factor = 2; factor <= bound; ++factor) {
    while (length % factor == 0) length /= factor;
  }
  return length > 1;
}

bool needs_fft_workspace(std::int64_t length) {
  return length > 8192 || has_factor_above(length, 31);
}

// Returns the workspace for a length with large prime factors. cuFFT computes such a transform as a
// convolution whose length is a power of two.
std::size_t convolution_fft_bytes(std::size_t length, std::size_t item) {
  return item * (2 * std::bit_ceil(2 * length) + length) + 512;
}

std::size_t complex_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kComplexDouble ? 16 : 8;
}

// Takes and frees cuFFT's workspace for a transform of real data.
void real_fft_workspace(Call& call, const at::Tensor& real, std::int64_t length) {
  const std::size_t item = complex_bytes(real);
  const auto size = static_cast<std::size_t>(length);
  const std::size_t rows = elements(real) / size;
  if (has_factor_above(length, 127)) {
    call.temporary(rows * convolution_fft_bytes(length % 2 != 0 ? size : size / 2, item));
  } else if (length % 2 != 0 && length > 512) {  // fitted to recordings, as the next two are
    call.temporary(rows * (size * item + item / 2));
  } else if (length % 2 == 0 && has_factor_above(length, 31)) {
    call.temporary(rows * (size / 2) * item);
  } else if (needs_fft_workspace(length)) {
    call.temporary(rows * (length % 2 != 0 ? size * item + item / 2 : (size / 2 + 1) * item));
  } else {
    return;
  }
  call.release_last();
}

// Returns whether a single call of cuFFT can transform all of `dims`. One call can always transform
// one dimension. It can transform two or three dimensions unless `dims` begins with 0, 1.
bool is_one_transform(const std::vector<std::int64_t>& dims) {
  return dims.size() == 1 || (dims.size() <= 3 && !(dims[0] == 0 && dims[1] == 1));
}

void fft_of_real(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::vector<std::int64_t> dims = call.argument(1).toIntVector();
  const at::Tensor result = call.shape_of_result(0);
  if (dims.empty() || elements(input) == 0) return;
  if (is_one_transform(dims)) {
    call.allocate(0);
  } else {
    call.temporary(bytes_of(result));
  }
  real_fft_workspace(call, input, input.size(dims.back()));
}

void fft_to_real(Call& call) {
  const at::Tensor input = call.tensor(0);
  const std::vector<std::int64_t> dims = call.argument(1).toIntVector();
  const at::Tensor result = call.allocate(0);
  if (dims.empty() || elements(result) == 0) return;
  call.temporary(bytes_of(input));  // a copy: the transform overwrites its input
  const std::int64_t length = result.size(dims.back());
  if (needs_fft_workspace(length)) real_fft_workspace(call, result, length);
}

void fft_of_complex(Call& call) {
  const at::Tensor input = call.tensor(0);
  call.allocate_all();
  for (const std::int64_t dim : call.argument(1).toIntVector()) {
    if (const std::int64_t length = input.size(dim); has_factor_above(length, 127)) {
      const auto size = static_cast<std::size_t>(length);
      call.temporary(elements(input) / size * convolution_fft_bytes(size, complex_bytes(input)));
      return;
    }
    if (needs_fft_workspace(input.size(dim))) {
      call.temporary(bytes_of(input));
      return;
    }
  }
}

template <void (*rule)(Call&)>
void by_cufft(Call& call) {
  call.use(Library::fourier);
  rule(call);
}

const RuleTable kFourierRules{
    {"_fft_r2c", by_cufft<fft_of_real>},
    {"_fft_c2r", by_cufft<fft_to_real>},
    {"_fft_c2c", by_cufft<fft_of_complex>},
};

}  // namespace
}  // namespace plimsoll::simulated
