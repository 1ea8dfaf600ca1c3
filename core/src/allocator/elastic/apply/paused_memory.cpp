#include "plimsoll/allocator/elastic/apply/paused_memory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

namespace plimsoll {
namespace {

constexpr StreamId kStream = 0;  // the device is idle, so any stream will do

}  // namespace

// A few buffers between the card and the store, used in turn. While the card copies to or from one
// buffer, another buffer is written to the store or filled from it.
class SliceRing {
 public:
  struct Buffer {
    Address address = 0;
    std::optional<Event> copied = {};
    // The part of the content that the buffer holds and that must still be written to the store;
    // `size` is 0 if there is none.
    Bytes offset = 0;
    Bytes size = 0;
  };

  // Allocates buffers through which `total` bytes are copied, one slice at a time. One buffer is
  // enough, so the constructor throws HostOutOfMemory only if the pool cannot allocate even the
  // first buffer.
  SliceRing(Driver& driver, HostPool& pool, Bytes total)
      : driver_(driver), pool_(pool), slice_(std::min(total, kMostSlice)) {
    try {
      for (Bytes size = 0; size < total && buffers_.size() < kMostBuffers; size += slice_) {
        buffers_.push_back({pool_.allocate(slice_)});
      }
    } catch (const HostOutOfMemory&) {
      if (buffers_.empty()) throw;
    } catch (...) {
      for (const Buffer& buffer : buffers_) pool_.free(buffer.address);
      throw;
    }
  }
  SliceRing(const SliceRing&) = delete;
  SliceRing& operator=(const SliceRing&) = delete;
  ~SliceRing() {
    for (Buffer& buffer : buffers_) {
      if (wait(buffer) != Status::success) pool_.record(buffer.address, kStream);
      pool_.free(buffer.address);
    }
  }

  [[nodiscard]] Bytes slice() const { return slice_; }
  // Returns the buffer that was used longest ago.
  [[nodiscard]] Buffer& next() { return buffers_[turn_++ % buffers_.size()]; }
  [[nodiscard]] std::size_t count() const { return buffers_.size(); }

  Status copy(Buffer& buffer, Address to, Address from, Bytes size) {
    const Status status = driver_.copy(to, from, size, kStream);
    if (status != Status::success) return status;
    Event event = 0;
    const Status recorded = driver_.record(kStream, event);
    if (recorded != Status::success) {
      static_cast<void>(driver_.synchronize());
      return recorded;
    }
    buffer.copied = event;
    return recorded;
  }
  // Waits until the buffer's copy is done.
  Status wait(Buffer& buffer) {
    if (!buffer.copied) return Status::success;
    const Event event = *std::exchange(buffer.copied, std::nullopt);
    const Status status = driver_.synchronize(event);
    driver_.destroy(event);
    return status;
  }

 private:
  static constexpr Bytes kMostSlice = 16 * kMiB;
  static constexpr std::size_t kMostBuffers = 4;

  Driver& driver_;
  HostPool& pool_;
  Bytes slice_;
  std::vector<Buffer> buffers_;
  std::size_t turn_ = 0;
};

PausedMemory::PausedMemory(Driver& driver, Backup backup, std::vector<PausedPiece> pieces)
    : driver_(driver), backup_(std::move(backup)), pieces_(std::move(pieces)) {
  number_batches();
  Bytes offset = 0;
  for (PausedPiece& piece : pieces_) {
    piece.backup = offset;
    offset += piece.piece->size;
  }
  if (backup_.store == nullptr && backup_.pool != nullptr) lock_chunks(offset);
}

PausedMemory::~PausedMemory() {
  for (const Chunk& chunk : chunks_) backup_.pool->free(chunk.address);
}

// Allocates the backup in chunks: as many as possible of the largest size, then smaller ones whose
// sizes are powers of two. Regions of different sizes thus have chunks of the same few sizes, and a
// later pause can reuse the chunks that this pause frees.
void PausedMemory::lock_chunks(Bytes total) {
  try {
    for (Bytes offset = 0; offset < total;) {
      const Bytes size = std::min(std::bit_floor(total - offset), kMostChunk);
      chunks_.push_back({offset, backup_.pool->allocate(size), size});
      offset += size;
    }
  } catch (...) {
    for (const Chunk& chunk : chunks_) backup_.pool->free(chunk.address);
    throw;
  }
}

Bytes PausedMemory::size() const {
  Bytes size = 0;
  for (const PausedPiece& piece : pieces_) size += piece.piece->size;
  return size;
}

Bytes PausedMemory::size_off() const {
  Bytes size = 0;
  for (const PausedPiece& piece : pieces_) {
    if (!piece.piece->has_memory()) size += piece.piece->size;
  }
  return size;
}

void PausedMemory::forget(const std::set<const Piece*>& pieces) {
  std::erase_if(pieces_, [&](const PausedPiece& each) { return pieces.contains(each.piece); });
}

// Divides the pieces into batches, so that one batch is copied while the next one is mapped or the
// previous one is unmapped.
void PausedMemory::number_batches() {
  std::size_t batch = 0;
  Bytes size = 0;
  for (PausedPiece& piece : pieces_) {
    if (size >= kBatch) {
      ++batch;
      size = 0;
    }
    piece.batch = batch;
    size += piece.piece->size;
  }
}

std::vector<PausedMemory::Batch> PausedMemory::batches() {
  std::vector<Batch> batches;
  for (PausedPiece& piece : pieces_) {
    if (batches.empty() || batches.back().front().batch != piece.batch) {
      batches.emplace_back(&piece, 0);
    }
    batches.back() = {batches.back().data(), batches.back().size() + 1};
  }
  return batches;
}

// Calls function(address, backup, size) for each run of pieces at adjacent addresses. Their backups
// are adjacent, too.
template <typename Function>
Status PausedMemory::for_each_run(Batch batch, Function function) {
  for (std::size_t first = 0; first < batch.size();) {
    const Address address = batch[first].piece->address;
    const Bytes backup = batch[first].backup;
    Bytes size = 0;
    for (; first < batch.size() && batch[first].piece->address == address + size; ++first) {
      size += batch[first].piece->size;
    }
    if (const Status status = function(address, backup, size); status != Status::success) {
      return status;
    }
  }
  return Status::success;
}

// Calls function(address, backup, size) for each run of adjacent pieces, in parts of at most `most`
// bytes.
template <typename Function>
Status PausedMemory::for_each_slice(Batch batch, Bytes most, Function function) {
  return for_each_run(batch, [&](Address address, Bytes backup, Bytes size) {
    Status status = Status::success;
    for (Bytes done = 0; done < size && status == Status::success; done += most) {
      status = function(address + done, backup + done, std::min(most, size - done));
    }
    return status;
  });
}

// Calls function(address, place, size) for each part of the batch's memory whose backup lies in a
// single chunk, at `place`.
template <typename Function>
Status PausedMemory::for_each_chunk(Batch batch, Function function) const {
  if (chunks_.empty()) return Status::success;
  return for_each_run(batch, [&](Address address, Bytes backup, Bytes size) {
    auto chunk = std::prev(std::upper_bound(
        chunks_.begin(), chunks_.end(), backup,
        [](Bytes offset, const Chunk& candidate) { return offset < candidate.offset; }));
    Status status = Status::success;
    for (Bytes done = 0; done < size && status == Status::success; ++chunk) {
      const Bytes within = backup + done - chunk->offset;
      const Bytes part = std::min(size - done, chunk->size - within);
      status = function(address + done, chunk->address + within, part);
      done += part;
    }
    return status;
  });
}

Status PausedMemory::copy_to_backup(Batch batch) const {
  return for_each_chunk(batch, [&](Address address, Address place, Bytes size) {
    return driver_.copy(place, address, size, kStream);
  });
}

// Writes all content to the store, before any piece is taken off the card.
Status PausedMemory::save() {
  if (pieces_.empty()) return Status::success;
  backup_.store->reserve(size());
  SliceRing ring(driver_, *backup_.pool, size());
  const auto write = [&](SliceRing::Buffer& buffer) {
    const Status status = ring.wait(buffer);
    const Bytes size = std::exchange(buffer.size, 0);
    if (status == Status::success && size > 0) {
      backup_.store->write(buffer.offset, buffer.address, size);
    }
    return status;
  };
  Status status =
      for_each_slice(pieces_, ring.slice(), [&](Address from, Bytes offset, Bytes size) {
        SliceRing::Buffer& buffer = ring.next();
        if (const Status written = write(buffer); written != Status::success) return written;
        buffer.offset = offset;
        buffer.size = size;
        return ring.copy(buffer, buffer.address, from, size);
      });
  for (std::size_t i = 0; i < ring.count() && status == Status::success; ++i) {
    status = write(ring.next());
  }
  return status;
}

Status PausedMemory::load(Batch batch, SliceRing* ring) const {
  if (ring == nullptr) {
    return for_each_chunk(batch, [&](Address address, Address place, Bytes size) {
      return driver_.copy(address, place, size, kStream);
    });
  }
  return for_each_slice(batch, ring->slice(), [&](Address to, Bytes offset, Bytes size) {
    SliceRing::Buffer& buffer = ring->next();
    if (const Status free = ring->wait(buffer); free != Status::success) return free;
    backup_.store->read(offset, buffer.address, size);
    return ring->copy(buffer, to, buffer.address, size);
  });
}

Status PausedMemory::take_off() {
  if (backup_.store != nullptr) {
    if (const Status status = save(); status != Status::success) return status;
  }
  // All copies are queued before anything is unmapped, so nothing has changed if the driver refuses
  // a copy.
  std::vector<std::pair<Batch, Event>> copies;
  Status status = Status::success;
  for (const Batch batch : batches()) {
    Event event = 0;
    status = copy_to_backup(batch);
    if (status == Status::success) status = driver_.record(kStream, event);
    if (status != Status::success) break;
    copies.emplace_back(batch, event);
  }
  // If the content is in page-locked memory, a batch's pieces are released while the next batch is
  // copied. If the content is in the store, all pieces are released at the end. Until then, the
  // pieces still have their content, so mapping them again undoes everything.
  const bool is_copied = !chunks_.empty();
  std::vector<PausedPiece*> unmapped;
  for (const auto& [batch, copied] : copies) {
    if (status == Status::success) status = driver_.synchronize(copied);
    driver_.destroy(copied);
    for (PausedPiece& each : batch) {
      if (status == Status::success) {
        status = driver_.unmap(each.piece->address, each.piece->size);
      }
      if (status != Status::success) break;
      unmapped.push_back(&each);
      if (is_copied) each.piece->release();
    }
  }
  if (status == Status::success) {
    for (PausedPiece* const each : unmapped) each->piece->release();
    return status;
  }
  static_cast<void>(driver_.synchronize());  // queued copies may still write to the backup
  for (PausedPiece* const each : unmapped) undo_take_off(*each);
  static_cast<void>(driver_.synchronize());
  return status;
}

// Maps an unmapped piece again and restores its content. If one of the driver's calls fails, the
// piece stays off the card.
void PausedMemory::undo_take_off(PausedPiece& each) {
  Piece& piece = *each.piece;
  const bool has_content = piece.has_memory();
  if (!has_content &&
      driver_.create(piece.size, Tier::dedicated, piece.handle) != Status::success) {
    return;
  }
  Status status = map_with_access(driver_, {piece.address, piece.size}, piece.handle);
  if (status == Status::success && !has_content) {
    status = load({&each, 1}, nullptr);
    if (status != Status::success) {
      // Copies to the piece must end before it is unmapped.
      static_cast<void>(driver_.synchronize());
      static_cast<void>(driver_.unmap(piece.address, piece.size));
    }
  }
  if (status != Status::success) piece.release();
}

Status PausedMemory::put_back() {
  std::optional<SliceRing> ring;
  if (backup_.store != nullptr && !pieces_.empty()) ring.emplace(driver_, *backup_.pool, size());
  std::vector<Piece*> put;
  const auto take_off_again = [&] {
    for (Piece* const piece : put) {
      const Status unmapped = driver_.unmap(piece->address, piece->size);
      if (unmapped == Status::success) piece->release();
    }
  };
  Status status = Status::success;
  try {
    for (const Batch batch : batches()) {
      if (status == Status::success) status = put_on(batch, put);
      if (status == Status::success) status = load(batch, ring ? &*ring : nullptr);
    }
  } catch (...) {  // the store failed
    static_cast<void>(driver_.synchronize());
    take_off_again();
    throw;
  }
  const Status done = driver_.synchronize();
  if (status == Status::success) status = done;
  if (status != Status::success) take_off_again();
  return status;
}

// Creates and maps memory for the pieces that have none, and adds these pieces to `put`.
Status PausedMemory::put_on(Batch batch, std::vector<Piece*>& put) {
  for (const PausedPiece& each : batch) {
    Piece& piece = *each.piece;
    if (piece.has_memory()) continue;
    Status status = driver_.create(piece.size, Tier::dedicated, piece.handle);
    if (status != Status::success) return status;
    status = driver_.map(piece.address, piece.size, piece.handle);
    if (status != Status::success) {
      piece.release();
      return status;
    }
    put.push_back(&piece);
  }
  return for_each_run(batch, [this](Address address, Bytes, Bytes size) {
    return driver_.set_access(address, size);
  });
}

}  // namespace plimsoll
