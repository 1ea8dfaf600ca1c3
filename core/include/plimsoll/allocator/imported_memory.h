// Memory of other processes, mapped into this one from the file descriptors that they sent.
#pragma once

#include <map>
#include <mutex>
#include <span>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

class ImportedMemory {
 public:
  // Memory of one driver handle, as it is sent to another process: a file descriptor and the size.
  // The owner of the Piece closes the descriptor.
  struct Piece {
    int descriptor = -1;
    Bytes size = 0;
  };

  explicit ImportedMemory(Driver& driver) : driver_(driver) {}

  // Maps the pieces side by side. Throws DriverError if a call fails; then no piece is mapped.
  [[nodiscard]] Address open(std::span<const Piece> pieces);
  // Unmaps memory. Returns false if nothing was opened at the address. No queued work may use the
  // memory any more.
  bool close(Address address);

 private:
  Status map(Address address, const Piece& piece);

  Driver& driver_;
  std::mutex mutex_;
  std::map<Address, Bytes> open_;
};

}  // namespace plimsoll
