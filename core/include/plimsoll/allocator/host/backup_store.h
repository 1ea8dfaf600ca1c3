// A file that keeps the content of paused memory, so that the content takes no host memory. On the
// way between the GPU and the file, the content passes through page-locked memory in small parts.
#pragma once

#include <stdexcept>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

// Thrown when the store cannot be read or written. The message names the operation and the reason.
class BackupError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A place for the content of paused memory. Each function throws BackupError if it fails.
class BackupStore {
 public:
  BackupStore() = default;
  BackupStore(const BackupStore&) = delete;
  BackupStore& operator=(const BackupStore&) = delete;
  virtual ~BackupStore() = default;

  // Ensures that the store has room for `size` bytes.
  virtual void reserve(Bytes size) = 0;
  virtual void write(Bytes offset, Address from, Bytes size) = 0;
  virtual void read(Bytes offset, Address to, Bytes size) = 0;
};

class BackupFile final : public BackupStore {
 public:
  // Takes a file that is open for reading and writing. The caller keeps the descriptor and closes
  // it.
  explicit BackupFile(int descriptor);
  ~BackupFile() override;

  void reserve(Bytes size) override;
  // Checks that the file could become this large, without allocating the room.
  void check_room(Bytes size);
  void write(Bytes offset, Address from, Bytes size) override;
  void read(Bytes offset, Address to, Bytes size) override;

 private:
  [[maybe_unused]] int file_;
};

// A store for a simulated GPU, whose memory has no content. The file stays empty. But `reserve`
// fails if the disk has no room for what a real GPU would write. `reserve` does not count the room
// that other EmptyFiles have reserved.
class EmptyFile final : public BackupStore {
 public:
  // Takes the descriptor as `BackupFile` does.
  explicit EmptyFile(int descriptor) : file_(descriptor) {}

  void reserve(Bytes size) override { file_.check_room(size); }
  void write(Bytes, Address, Bytes) override {}
  void read(Bytes, Address, Bytes) override {}

 private:
  BackupFile file_;
};

}  // namespace plimsoll
