// Where the content of paused memory is kept when it is not to stay in the host's memory: a file.
// It passes through page-locked memory, a small piece at a time.
#pragma once

#include <stdexcept>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

// The message says what could not be done, and why.
class BackupError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Each function throws BackupError if it fails.
class BackupStore {
 public:
  BackupStore() = default;
  BackupStore(const BackupStore&) = delete;
  BackupStore& operator=(const BackupStore&) = delete;
  virtual ~BackupStore() = default;

  // Makes sure that there is room for so many bytes.
  virtual void reserve(Bytes size) = 0;
  virtual void write(Bytes offset, Address from, Bytes size) = 0;
  virtual void read(Bytes offset, Address to, Bytes size) = 0;
};

class BackupFile final : public BackupStore {
 public:
  // A file that is open for reading and writing; the descriptor stays the caller's.
  explicit BackupFile(int descriptor);
  ~BackupFile() override;

  void reserve(Bytes size) override;
  // Whether it could be as large, without taking the room.
  void check_room(Bytes size);
  void write(Bytes offset, Address from, Bytes size) override;
  void read(Bytes offset, Address to, Bytes size) override;

 private:
  [[maybe_unused]] int file_;
};

// For memory that has no content, as that of a simulated GPU: the file stays empty, but it must be
// possible that it was not. Several such files do not know of each other.
class EmptyFile final : public BackupStore {
 public:
  // As of a `BackupFile`.
  explicit EmptyFile(int descriptor) : file_(descriptor) {}

  void reserve(Bytes size) override { file_.check_room(size); }
  void write(Bytes, Address, Bytes) override {}
  void read(Bytes, Address, Bytes) override {}

 private:
  BackupFile file_;
};

}  // namespace plimsoll
