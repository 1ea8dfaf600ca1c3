// The program's own functions that give a private pool its segments and take them back, in place of
// the driver: torch.cuda.MemPool(allocator=...).
//
// The functions are the program's code, which may wait for the interpreter or call the allocator.
// So no lock is held while they run. Before a request that needs a segment, the engine
// (engine/engine.h) gets one from these functions, and offers it to the allocator. If the allocator
// releases segments during a call, the engine gives them back to the program after that call.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

class PoolSource {
 public:
  // PyTorch's signatures of a pluggable allocator. `Give` returns null if it has no memory.
  using Give = void* (*)(std::ptrdiff_t size, int device, void* stream);
  using TakeBack = void (*)(void* address, std::ptrdiff_t size, int device, void* stream);

  PoolSource(Give giving, TakeBack taking_back, int device)
      : give_(giving), take_back_(taking_back), device_(device) {}

  struct Segment {
    Address address = 0;
    Bytes size = 0;
    StreamId stream = 0;
  };

  // --- Calls of the program's functions. The caller holds no lock.

  // Returns the address of new memory; 0 if the program has none.
  [[nodiscard]] Address give(Bytes size, StreamId stream) const;
  void take_back(const Segment& segment) const;

  // --- Exchange with the allocator, under its lock.

  // Stores a segment that `give` returned, so that the allocator can get it from `accept`.
  void offer(const Segment& segment) { offered_.push_back(segment); }
  // Returns the address of an offered segment of exactly this size and stream, which is then no
  // longer on offer; 0 if there is none.
  [[nodiscard]] Address accept(Bytes size, StreamId stream);
  // Moves an offered segment to the released ones, because the allocator did not accept it.
  void withdraw(Address address);
  // Notes that the allocator has released a segment.
  void release(const Segment& segment) { released_.push_back(segment); }
  // Returns the segments that were released since the last call.
  [[nodiscard]] std::vector<Segment> released() { return std::exchange(released_, {}); }

 private:
  Give give_;
  TakeBack take_back_;
  int device_;
  std::vector<Segment> offered_;
  std::vector<Segment> released_;
};

}  // namespace plimsoll
