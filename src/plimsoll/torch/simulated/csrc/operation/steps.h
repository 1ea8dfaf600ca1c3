// The steps of a simulated kernel. Most steps take or free memory or make the host wait. The
// computation of the results is not a step.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <variant>

#include "device/runtime.h"

namespace plimsoll::simulated {

class Call;

// Takes the memory of a result.
struct Allocate {
  std::size_t result;
};
// Allocates memory for the kernel's internal use, and frees it immediately afterwards. plimsoll
// knows only a range for the memory's size.
struct TakeUncertain {
  UncertainMemory memory;
};
// Takes internal memory of the kernel and keeps it under a number.
struct Take {
  std::size_t number;
  std::size_t bytes;
};
// Frees the memory that is kept under a number.
struct Release {
  std::size_t number;
};
// Takes a workspace of cuBLAS or cublasLt for the current stream. Takes nothing if `is_kept` is
// true and PyTorch already keeps such a workspace for this stream.
struct TakeWorkspace {
  bool is_lt;
  bool is_kept;  // kept for later calls; otherwise freed immediately after the allocation
  std::size_t bytes;
};
// Makes the host wait for the stream, as a copy to the host does.
struct Wait {};
// Gives cached memory back to the driver, as torch.cuda.empty_cache() does.
struct EmptyCache {};
// Notes an assumption about the operation. The text must live as long as the process.
struct Assume {
  std::string_view what;
};
// Once the earlier steps are done, appends further steps, which depend on the earlier results.
struct Then {
  std::function<void(Call&)> decide;
};

using Step = std::variant<Allocate, TakeUncertain, Take, Release, TakeWorkspace, Wait, EmptyCache,
                          Assume, Then>;

}  // namespace plimsoll::simulated
