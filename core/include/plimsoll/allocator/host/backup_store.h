// A file for the content of paused memory that is not kept in host memory. The content passes
// through page-locked memory, a small piece at a time.
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

// A store for memory without content, such as a simulated GPU's. The file stays empty, but the disk
// must have room for the content. The check ignores the room that other EmptyFiles need.
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
