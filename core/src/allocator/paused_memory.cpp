#include "plimsoll/allocator/paused_memory.h"

#include <utility>

namespace plimsoll {
namespace {

constexpr StreamId kStream = 0;  // the device is idle, so any serves

}  // namespace

Status map_with_access(Driver& driver, Address address, const Piece& piece) {
  Status status = driver.map(address, piece.size, piece.handle);
  if (status != Status::success) return status;
  status = driver.set_access(address, piece.size);
  if (status != Status::success) static_cast<void>(driver.unmap(address, piece.size));
  return status;
}

PausedMemory::PausedMemory(Driver& driver, HostPool* backup, std::vector<PausedPiece> pieces)
    : driver_(driver), backup_(backup), pieces_(std::move(pieces)) {
  if (backup_ == nullptr) return;
  try {
    for (const Batch batch : batches()) {
      Bytes size = 0;
      for (const PausedPiece& piece : batch) size += piece.piece.size;
      Address place = backup_->allocate(size);
      chunks_.emplace_back(place, size);
      for (PausedPiece& piece : batch) {
        piece.backup = place;
        place += piece.piece.size;
      }
    }
  } catch (...) {
    for (const auto& [address, size] : chunks_) backup_->free(address);
    throw;
  }
}

PausedMemory::~PausedMemory() {
  for (const auto& [address, size] : chunks_) backup_->free(address);
}

Bytes PausedMemory::size_off() const {
  Bytes size = 0;
  for (const PausedPiece& piece : pieces_) {
    if (piece.piece.handle == 0) size += piece.piece.size;
  }
  return size;
}

void PausedMemory::visit_backup(const std::function<void(Address, Bytes)>& visit) const {
  for (const auto& [address, size] : chunks_) visit(address, size);
}

std::vector<Handle> PausedMemory::take_unreleased() { return std::exchange(unreleased_, {}); }

void PausedMemory::forget(const std::set<Address>& addresses) {
  std::erase_if(pieces_,
                [&](const PausedPiece& piece) { return addresses.contains(piece.address); });
}

// The pieces in parts, while one of which is copied the next or the last one is mapped or unmapped.
std::vector<PausedMemory::Batch> PausedMemory::batches() {
  std::vector<Batch> batches;
  Bytes size = kBatch;
  for (PausedPiece& piece : pieces_) {
    if (size >= kBatch) {
      batches.emplace_back(&piece, 0);
      size = 0;
    }
    batches.back() = {batches.back().data(), batches.back().size() + 1};
    size += piece.piece.size;
  }
  return batches;
}

// Calls function(address, backup, size) for each stretch of neighbours.
template <typename Function>
Status PausedMemory::for_each_run(Batch batch, Function function) {
  for (std::size_t first = 0; first < batch.size();) {
    const auto& [space, address, piece, backup] = batch[first];
    Bytes size = 0;
    for (; first < batch.size() && batch[first].address == address + size &&
           (backup == 0 || batch[first].backup == backup + size);
         ++first) {
      size += batch[first].piece.size;
    }
    if (const Status status = function(address, backup, size); status != Status::success) {
      return status;
    }
  }
  return Status::success;
}

Status PausedMemory::copy(Batch batch, Direction direction) const {
  if (backup_ == nullptr) return Status::success;
  return for_each_run(batch, [&](Address address, Address backup, Bytes size) {
    return direction == Direction::to_backup ? driver_.copy(backup, address, size, kStream)
                                             : driver_.copy(address, backup, size, kStream);
  });
}

// The memory of a piece is in the driver's hands when its last mapping is gone.
void PausedMemory::drop_handle(PausedPiece& piece) {
  const Handle handle = std::exchange(piece.piece.handle, 0);
  if (driver_.release(handle) != Status::success) unreleased_.push_back(handle);
}

Status PausedMemory::take_off() {
  // All copies are queued before anything is unmapped: a driver that refuses one has done no harm.
  std::vector<std::pair<Batch, Event>> copies;
  Status status = Status::success;
  for (const Batch batch : batches()) {
    Event event = 0;
    status = copy(batch, Direction::to_backup);
    if (status == Status::success) status = driver_.record(kStream, event);
    if (status != Status::success) break;
    copies.emplace_back(batch, event);
  }
  // Handles are kept to the last: to map them again undoes it all.
  std::vector<PausedPiece*> unmapped;
  for (const auto& [batch, copied] : copies) {
    if (status == Status::success) status = driver_.synchronize(copied);
    driver_.destroy(copied);
    for (PausedPiece& piece : batch) {
      if (status == Status::success) status = driver_.unmap(piece.address, piece.piece.size);
      if (status == Status::success) unmapped.push_back(&piece);
    }
  }
  if (status == Status::success) {
    for (PausedPiece& piece : pieces_) drop_handle(piece);
    return status;
  }
  static_cast<void>(driver_.synchronize());  // queued copies still write to the backup
  for (PausedPiece* const piece : unmapped) {
    const Status mapped = map_with_access(driver_, piece->address, piece->piece);
    if (mapped != Status::success) drop_handle(*piece);
  }
  return status;
}

Status PausedMemory::put_back() {
  std::vector<PausedPiece*> put;
  Status status = Status::success;
  for (const Batch batch : batches()) {
    if (status == Status::success) status = put_back(batch, put);
  }
  const Status done = driver_.synchronize();
  if (status == Status::success) status = done;
  if (status == Status::success) return status;
  for (PausedPiece* const piece : put) {
    const Status unmapped = driver_.unmap(piece->address, piece->piece.size);
    if (unmapped == Status::success) drop_handle(*piece);
  }
  return status;
}

Status PausedMemory::put_back(Batch batch, std::vector<PausedPiece*>& put) {
  for (PausedPiece& piece : batch) {
    if (piece.piece.handle != 0) continue;
    Handle handle = 0;
    Status status = driver_.create(piece.piece.size, Tier::dedicated, handle);
    if (status != Status::success) return status;
    piece.piece.handle = handle;
    status = driver_.map(piece.address, piece.piece.size, handle);
    if (status != Status::success) {
      drop_handle(piece);
      return status;
    }
    put.push_back(&piece);
  }
  const Status status = for_each_run(batch, [this](Address address, Address, Bytes size) {
    return driver_.set_access(address, size);
  });
  return status == Status::success ? copy(batch, Direction::from_backup) : status;
}

}  // namespace plimsoll
