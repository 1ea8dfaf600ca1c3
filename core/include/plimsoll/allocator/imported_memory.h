// Memory of other processes, mapped into this one from the file descriptors they sent.
#pragma once

#include <map>
#include <mutex>
#include <span>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

class ImportedMemory {
 public:
  // A driver's handle on its way to another process. Whoever holds it closes the descriptor.
  struct Piece {
    int descriptor = -1;
    Bytes size = 0;
  };

  explicit ImportedMemory(Driver& driver) : driver_(driver) {}

  // Maps the pieces side by side. Throws DriverError; then nothing is mapped.
  [[nodiscard]] Address open(std::span<const Piece> pieces);
  // False if nothing was opened there. No queued work may use the memory any more.
  bool close(Address address);

 private:
  Status map(Address address, const Piece& piece);

  Driver& driver_;
  std::mutex mutex_;
  std::map<Address, Bytes> open_;
};

}  // namespace plimsoll
