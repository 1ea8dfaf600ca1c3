#include "plimsoll/allocator/paused_memory.h"

#include <utility>

namespace plimsoll {
namespace {

constexpr StreamId kStream = 0;  // the device is idle, so any serves

}  // namespace

PausedMemory::PausedMemory(Driver& driver, HostPool* backup, std::vector<PausedPiece> pieces)
    : driver_(driver), backup_(backup), pieces_(std::move(pieces)) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (batches_.empty() || batches_.back().size >= kBatch) batches_.push_back({i, i, 0, 0});
    batches_.back().last = i + 1;
    batches_.back().size += pieces_[i].piece.size;
  }
  if (backup_ == nullptr) return;
  try {
    for (Batch& batch : batches_) batch.backup = backup_->allocate(batch.size);
  } catch (...) {
    for (const Batch& batch : batches_) {
      if (batch.backup != 0) backup_->free(batch.backup);
    }
    throw;
  }
}

PausedMemory::~PausedMemory() {
  for (const Batch& batch : batches_) {
    if (backup_ != nullptr) backup_->free(batch.backup);
  }
}

Bytes PausedMemory::size() const {
  Bytes size = 0;
  for (const PausedPiece& piece : pieces_) size += piece.piece.size;
  return size;
}

Bytes PausedMemory::size_off() const {
  Bytes size = 0;
  for (const PausedPiece& piece : pieces_) {
    if (piece.piece.handle == 0) size += piece.piece.size;
  }
  return size;
}

void PausedMemory::visit_backup(const std::function<void(Address, Bytes)>& visit) const {
  for (const Batch& batch : batches_) {
    if (backup_ != nullptr) visit(batch.backup, batch.size);
  }
}

std::vector<Handle> PausedMemory::take_unreleased() { return std::exchange(unreleased_, {}); }

// Calls function(address, size, offset in the batch) for each stretch of neighbours.
template <typename Function>
Status PausedMemory::for_each_run(const Batch& batch, Function function) const {
  Bytes offset = 0;
  for (std::size_t first = batch.first; first < batch.last;) {
    const Address address = pieces_[first].address;
    Bytes size = 0;
    std::size_t next = first;
    for (; next < batch.last && pieces_[next].address == address + size; ++next) {
      size += pieces_[next].piece.size;
    }
    if (const Status status = function(address, size, offset); status != Status::success) {
      return status;
    }
    offset += size;
    first = next;
  }
  return Status::success;
}

Status PausedMemory::copy(const Batch& batch, Direction direction) const {
  if (backup_ == nullptr) return Status::success;
  return for_each_run(batch, [&](Address address, Bytes size, Bytes offset) {
    const Address backup = batch.backup + offset;
    return direction == Direction::to_backup ? driver_.copy(backup, address, size, kStream)
                                             : driver_.copy(address, backup, size, kStream);
  });
}

Status PausedMemory::take_off() {
  // All copies are queued before anything is unmapped: a driver that refuses one has done no harm.
  std::vector<Event> copied;
  Status status = Status::success;
  for (const Batch& batch : batches_) {
    Event event = 0;
    status = copy(batch, Direction::to_backup);
    if (status == Status::success) status = driver_.record(kStream, event);
    if (status != Status::success) break;
    copied.push_back(event);
  }
  if (status != Status::success) {
    static_cast<void>(driver_.synchronize());
    for (const Event event : copied) driver_.destroy(event);
    return status;
  }
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    if (status == Status::success) status = driver_.synchronize(copied[i]);
    driver_.destroy(copied[i]);
    for (std::size_t p = batches_[i].first; p < batches_[i].last; ++p) {
      if (status == Status::success) status = take_off(pieces_[p]);
    }
  }
  if (status == Status::success) return status;
  static_cast<void>(driver_.synchronize());
  static_cast<void>(put_back());
  return status;
}

Status PausedMemory::take_off(PausedPiece& piece) {
  const Status status = driver_.unmap(piece.address, piece.piece.size);
  if (status != Status::success) return status;
  const Handle handle = std::exchange(piece.piece.handle, 0);
  if (driver_.release(handle) != Status::success) unreleased_.push_back(handle);
  return status;
}

Status PausedMemory::put_back() {
  std::vector<PausedPiece*> put;
  Status status = Status::success;
  for (const Batch& batch : batches_) {
    if (status == Status::success) status = put_back(batch, put);
  }
  const Status done = driver_.synchronize();
  if (status == Status::success) status = done;
  if (status != Status::success) {
    for (PausedPiece* const piece : put) static_cast<void>(take_off(*piece));
  }
  return status;
}

// Only what is off the card is made anew. What never left holds its content already; copying it
// over once more changes nothing.
Status PausedMemory::put_back(const Batch& batch, std::vector<PausedPiece*>& put) {
  const std::size_t before = put.size();
  for (std::size_t p = batch.first; p < batch.last; ++p) {
    PausedPiece& piece = pieces_[p];
    if (piece.piece.handle != 0) continue;
    Handle handle = 0;
    Status status = driver_.create(piece.piece.size, Tier::dedicated, handle);
    if (status != Status::success) return status;
    status = driver_.map(piece.address, piece.piece.size, handle);
    if (status != Status::success) {
      if (driver_.release(handle) != Status::success) unreleased_.push_back(handle);
      return status;
    }
    piece.piece.handle = handle;
    put.push_back(&piece);
  }
  if (put.size() == before) return Status::success;
  const Status status = for_each_run(batch, [this](Address address, Bytes size, Bytes) {
    return driver_.set_access(address, size);
  });
  return status == Status::success ? copy(batch, Direction::from_backup) : status;
}

}  // namespace plimsoll
