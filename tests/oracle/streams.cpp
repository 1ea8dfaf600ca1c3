#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cuda/gpus.h"
#include "side.h"

// Finds stream numbers that PyTorch's hash table visits in ascending order.

namespace {

using plimsoll::StreamId;

c10::cuda::CUDAStream pytorch_stream(StreamId stream) {
  if (stream == 0) return c10::cuda::getDefaultCUDAStream(0);
  return c10::cuda::getStreamFromExternal(plimsoll::wheel::handle_of<cudaStream_t>(stream), 0);
}

// Returns whether PyTorch's table visits these streams in the given order, whatever the order in
// which they were inserted.
bool is_in_order(std::vector<StreamId> streams) {
  const std::vector<StreamId> ordered = streams;
  do {
    ska::flat_hash_map<c10::cuda::CUDAStream, int> table;
    for (const StreamId stream : streams) table[pytorch_stream(stream)] = 0;
    std::vector<StreamId> found;
    for (const auto& [stream, nothing] : table) {
      found.push_back(plimsoll::wheel::stream_of(stream.stream()));
    }
    if (found != ordered) return false;
  } while (std::next_permutation(streams.begin(), streams.end()));
  return true;
}

// Adds streams to `found` until there are kStreams. Returns false if that is impossible.
bool find_streams(std::vector<StreamId>& found) {
  if (found.size() == kStreams) return is_in_order(found);
  for (StreamId next = found.back() + 1; next < 100; ++next) {
    if (!std::all_of(found.begin(), found.end(),
                     [&](StreamId before) { return is_in_order({before, next}); })) {
      continue;
    }
    found.push_back(next);
    if (find_streams(found)) return true;
    found.pop_back();
  }
  return false;
}

std::array<StreamId, kStreams> find_streams() {
  std::vector<StreamId> found{0};
  if (!find_streams(found)) throw std::logic_error("no streams have a stable order");
  std::array<StreamId, kStreams> streams{};
  std::copy(found.begin(), found.end(), streams.begin());
  return streams;
}

}  // namespace

const std::array<StreamId, kStreams>& streams_in_order() {
  static const std::array<StreamId, kStreams> streams = find_streams();
  return streams;
}
